"""Does the profiler name bottlenecks known by construction? Kernels by ncu, whole calls by nsys and Kineto.

``--check`` validates and compiles all cases and needs no GPU. Otherwise every case of ``profile_truth/known`` and
``profile_truth/blind`` is compiled, profiled and judged; ``results/profile_truth.json`` keeps the counters, so that
``--rejudge FILE`` applies the rules of this checkout to measurements of another day. Exit code 0: all cases were named
rightly, by the label and by the first suggestion. Needs nvcc; on a GPU machine also ncu, torch and pydantic.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

HERE = Path(__file__).resolve().parent
CASES = HERE / "profile_truth"
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(CASES)]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parent / "src"), os.environ.get("PYTHONPATH"))))

import calls  # noqa: E402
from kernels import collect  # noqa: E402
from provenance import gpu_provenance, write_json, write_text  # noqa: E402

from stitchcuda.errors import StitchError, ToolMissing  # noqa: E402
from stitchcuda.evaluation.build_tools import find_nvcc  # noqa: E402
from stitchcuda.hardware.model import Device  # noqa: E402
from stitchcuda.profiling.diagnosis import diagnose  # noqa: E402
from stitchcuda.profiling.metrics import NAMES  # noqa: E402
from stitchcuda.profiling.model import Cause, KernelCounters, Timeline  # noqa: E402
from stitchcuda.profiling.ncu import PERMISSION, function_name  # noqa: E402
from stitchcuda.profiling.remedies import FIRST  # noqa: E402
from stitchcuda.profiling.rules import BOTTLENECK_OF, call_cause  # noqa: E402

BATCH = 12
"""Cases in one process under ncu: fewer start it more often, more lose more when one fails."""
START_S, CASE_S = 20, 8
"""Seconds that ncu may take to start, and for each case."""
FIELDS = {"level": str, "truth": str, "labels": list, "suggestions": list, "why": str}
FLAGS = ("-O3", "-std=c++17", "-arch=sm_90a", "-shared", "-Xcompiler", "-fPIC")
SUGGESTIONS = {key for key, _ in FIRST.values()} | {"fuse_kernels"}


@dataclass
class Case:
    """One case of known bottleneck and what became of it."""

    folder: str
    stem: str
    source: Path
    facts: dict[str, Any]
    library: Path | None = None
    problems: list[str] = field(default_factory=list)
    counters: list[KernelCounters] = field(default_factory=list)
    lines: dict[str, Timeline] = field(default_factory=dict)
    error: str = ""

    @property
    def level(self) -> str:
        return str(self.facts.get("level", ""))


def load(folders: list[str]) -> list[Case]:
    """Every case with what is wrong in its description."""
    cases = []
    for folder in folders:
        for source in sorted((CASES / folder).glob("*.cu")):
            case = Case(folder, source.stem, source, {})
            description = source.with_suffix(".toml")
            try:
                case.facts = tomllib.loads(description.read_text())
            except (OSError, tomllib.TOMLDecodeError) as error:
                case.problems.append(f"{description.name} cannot be read: {error}")
                cases.append(case)
                continue
            case.problems += _problems(case, source.read_text())
            cases.append(case)
    stems = [case.stem for case in cases]
    for case in cases:
        if stems.count(case.stem) > 1:
            case.problems.append("another case has the same stem")
    return cases


def _problems(case: Case, text: str) -> list[str]:
    found = [
        f"{name} is missing or no {kind.__name__}"
        for name, kind in FIELDS.items()
        if not isinstance(case.facts.get(name), kind) or not case.facts[name]
    ]
    if case.level not in ("kernel", "timeline"):
        found.append('level must be "kernel" or "timeline"')
    found += [f"unknown label {label}" for label in case.facts.get("labels", []) if label not in get_args(Cause)]
    found += [f"unknown suggestion {key}" for key in case.facts.get("suggestions", []) if key not in SUGGESTIONS]
    for name in ("truth_prepare", "truth_run", "truth_release"):
        if not re.search(rf'extern\s+"C"\s+int\s+{name}\s*\(', text):
            found.append(f'no extern "C" int {name}(void)')
    for name in re.findall(r"__global__\s+(?:[\w\s:<>*&]|__launch_bounds__\s*\([^)]*\))*?\b(\w+)\s*\(", text):
        if name != "__launch_bounds__" and not name.startswith(case.stem):
            found.append(f"kernel {name} does not begin with {case.stem}")
    return found


def compile_all(cases: list[Case], folder: Path, workers: int) -> None:
    """Compile every sound case to a shared library; what the compiler said is a problem of the case."""
    nvcc = find_nvcc()
    folder.mkdir(parents=True, exist_ok=True)

    def one(case: Case) -> None:
        library = folder / f"{case.stem}.so"
        words = [nvcc, *FLAGS, *case.facts.get("nvcc", []), "-o", str(library), str(case.source)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            case.problems.append(f"does not compile: {(done.stderr or done.stdout).strip()[:600]}")
        else:
            case.library = library

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, [case for case in cases if not case.problems]))


def profile_kernels(cases: list[Case], scratch: Path) -> list[str]:
    """Counters of all kernel cases, in batches; a case that fails costs itself only. Returns remarks."""
    some = [case for case in cases if case.level == "kernel" and case.library]
    stems = sorted((case.stem for case in some), key=len, reverse=True)
    remarks: list[str] = []
    batches = [some[at : at + BATCH] for at in range(0, len(some), BATCH)]
    while batches:
        batch, out = batches.pop(0), Path(tempfile.mkdtemp(prefix="ncu-", dir=scratch))
        words = [sys.executable, str(CASES / "driver.py"), "kernels", str(out), *(str(c.library) for c in batch)]
        trouble, begun = "", time.monotonic()
        try:
            got = collect(words, timeout_s=START_S + CASE_S * len(batch))
            remarks += [f"ncu {got.version} does not know {name}" for name in got.left_out]
            for kernel in got.kernels:
                owner = next((s for s in stems if function_name(kernel.name).startswith(s)), None)
                for case in batch:
                    if case.stem == owner:
                        case.counters.append(kernel)
        except ToolMissing as error:
            return _give_up(some, str(error))
        except StitchError as error:
            trouble = str(error)
        print(f"ncu: {len(batch)} cases in {time.monotonic() - begun:.1f} s {trouble}", flush=True)
        if trouble == PERMISSION:
            return _give_up(some, trouble)
        done = _done(out)
        left = []
        for case in batch:
            if case.counters:
                continue
            case.error = done.get(case.stem, {}).get("error", "")
            if not case.error and len(batch) > 1:
                left.append(case)
            elif not case.error:
                case.error = trouble or "ncu saw none of its kernels"
        # What a failed or hanging case took with it goes again, in halves where nothing at all came back.
        half = len(left) if len(left) < len(batch) else (len(left) + 1) // 2
        batches = [part for part in (left[:half], left[half:]) if part] + batches
    return sorted(set(remarks))


def _give_up(cases: list[Case], reason: str) -> list[str]:
    """What holds for every case: no tool, or no permission."""
    for case in cases:
        case.error = reason if not case.counters else case.error
    return [f"no counters: {reason}"]


def profile_calls(cases: list[Case], scratch: Path) -> list[str]:
    """Timelines of every timeline case, by Nsight Systems where it is and by Kineto as well. Returns remarks.

    A case that fails ends its process: those after it go again without it.
    """
    some = [case for case in cases if case.level == "timeline" and case.library]
    remarks = []
    sources: dict[str, Any] = {"nsys": calls.by_nsys, "kineto": calls.by_kineto}
    for source, trace in sources.items():
        waiting, turn = list(some), 0
        while waiting and turn < 5:
            turn += 1
            out, begun = scratch / f"{source}-{turn}", time.monotonic()
            try:
                lines, trouble = trace([case.library for case in waiting], out)
            except StitchError as error:
                remarks.append(f"no timelines by {source}: {error}")
                break
            done = _done(out)
            if trouble:
                remarks.append(f"{source}: {trouble[:300]}")
            print(f"{source}: {len(lines)} of {len(waiting)} cases in {time.monotonic() - begun:.1f} s", flush=True)
            for case in waiting:
                if case.stem in lines:
                    case.lines[source] = lines[case.stem]
                elif failure := done.get(case.stem, {}).get("error"):
                    case.error = failure
            left = [case for case in waiting if case.stem not in lines and case.stem not in done]
            if len(left) == len(waiting):
                break
            waiting = left
    for case in some:
        if not case.lines:
            case.error = case.error or f"no timeline ({'; '.join(remarks[-2:])})"
    return remarks


def _done(out: Path) -> dict[str, dict[str, Any]]:
    try:
        records = [json.loads(line) for line in (out / "done.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {record["case"]: record for record in records}


def judge(case: Case, device: Device | None) -> dict[str, Any]:
    """One row of the result: what was said, whether it is right, and the measurements behind it."""
    row: dict[str, Any] = {
        "case": case.stem,
        "folder": case.folder,
        "level": case.level,
        "truth": case.facts.get("truth", ""),
        "labels": case.facts.get("labels", []),
        "suggestions": case.facts.get("suggestions", []),
        "label": "none",
        "suggestion": "none",
        "evidence": "",
        "error": "; ".join([*case.problems, case.error] if case.error else case.problems),
    }
    if case.counters:
        longest = max(case.counters, key=lambda kernel: kernel.seconds)
        # Names must not decide: a case is judged by its counters alone.
        said = diagnose(longest.model_copy(update={"name": "kernel"}), device=device)
        row |= {
            "label": said.cause,
            "suggestion": said.remedy,
            "evidence": said.evidence,
            "gain": round(said.kernel_gain, 2),
            "others": said.others,
            "seconds": longest.seconds,
            "counters": _kept(longest).model_dump(mode="json"),
        }
    elif case.lines:
        said_by = {source: call_cause(line, device) for source, line in case.lines.items()}
        source = next(iter(said_by))
        cause, evidence = said_by[source]
        row |= {
            "label": cause,
            "suggestion": FIRST[cause][0],
            "evidence": evidence,
            "source": source,
            "labels_by_source": {name: found for name, (found, _) in said_by.items()},
            "seconds": case.lines[source].wall_seconds,
            "timelines": {name: line.model_dump(mode="json") for name, line in case.lines.items()},
        }
    row["bottleneck"] = BOTTLENECK_OF[row["label"]]
    row["label_right"] = row["label"] in row["labels"]
    row["suggestion_right"] = row["suggestion"] in row["suggestions"]
    return row


def _kept(kernel: KernelCounters) -> KernelCounters:
    """Without the numbers that no rule reads: sections bring hundreds."""
    read = {name for names in NAMES.values() for name in names}
    metrics = {name: value for name, value in kernel.metrics.items() if name in read}
    missing = [name for name in kernel.missing if name in read]
    return kernel.model_copy(update={"metrics": metrics, "missing": missing})


SEEN = ("iroko",)
"""Blind cases that were missed at first sight and for which the code was changed afterwards: blind no more."""


def page(document: dict[str, Any]) -> str:
    """The Markdown page of a result."""
    rows, where = document["cases"], document["provenance"]
    right = sum(row["label_right"] and row["suggestion_right"] for row in rows)
    parts = ["# Bottlenecks known by construction", ""]
    for folder in ("known", "blind"):
        some = [row for row in rows if row["folder"] == folder and row["case"] not in SEEN]
        good = sum(row["label_right"] and row["suggestion_right"] for row in some)
        parts.append(f"- {folder}: {good} of {len(some)} named rightly, by the label and by the first suggestion")
    seen = [row for row in rows if row["case"] in SEEN]
    if seen:
        good = sum(row["label_right"] and row["suggestion_right"] for row in seen)
        names = ", ".join(row["case"] for row in seen)
        parts.append(
            f"- blind until the code was changed for it: {good} of {len(seen)} ({names}, missed at first sight)"
        )
    parts += ["", f"{right} of {len(rows)} in all. Counters and timelines of every case are in the JSON beside.", ""]
    parts += [
        "| case | construction | expected | said | first suggestion | right | evidence |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        mark = "yes" if row["label_right"] and row["suggestion_right"] else "**no**"
        told = (row["evidence"] or row["error"]).replace("|", "/").replace("\n", " ")[:220]
        parts.append(
            f"| {row['folder']}/{row['case']} | {row['truth']} | {', '.join(row['labels'])} | {row['label']} |"
            f" {row['suggestion']} | {mark} | {told} |"
        )
    facts = [
        f"{key} {where[key]}" for key in ("gpu", "driver", "cuda", "torch", "ncu", "commit", "date") if where.get(key)
    ]
    parts += ["", f"`{document['command']}`: {document['seconds']:.0f} s; {'; '.join(facts)}."]
    if document["remarks"]:
        parts += ["", *(f"- {remark}" for remark in document["remarks"])]
    return "\n".join(parts) + "\n"


def _device(ceilings: bool) -> Device | None:
    from stitchcuda.hardware.ceilings import measure
    from stitchcuda.hardware.detect import detect

    try:
        device = detect("cuda")
        if ceilings:
            device = device.model_copy(update={"ceilings": measure(device, Path(tempfile.gettempdir()) / "ceilings")})
    except StitchError as error:
        print(f"without measured ceilings: {error}", flush=True)
        return None
    return device


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="validate and compile only; no GPU needed")
    parser.add_argument("--rejudge", type=Path, help="apply the rules to the measurements of a result file")
    parser.add_argument("--only", default="", help="comma-separated stems, or one of the folders known and blind")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "profile_truth.json")
    parser.add_argument("--build", type=Path, help="folder for compiled cases (default: a temporary one)")
    parser.add_argument("--no-ceilings", action="store_true", help="do not measure the device's ceilings (10 s)")
    options = parser.parse_args()
    begun = time.monotonic()

    wanted = [name for name in options.only.split(",") if name]
    cases = load(["known", "blind"])
    if wanted:
        cases = [case for case in cases if case.stem in wanted or case.folder in wanted]
    if options.rejudge:
        return _rejudge(options.rejudge, cases, options.out)

    with tempfile.TemporaryDirectory(prefix="truth-") as folder:
        scratch = Path(folder)
        compile_all(cases, options.build or scratch / "build", max(len(os.sched_getaffinity(0)) - 1, 1))
        bad = [case for case in cases if case.problems]
        for case in bad:
            print(f"{case.folder}/{case.stem}: {'; '.join(case.problems)}")
        print(f"{len(cases) - len(bad)} of {len(cases)} cases are sound ({time.monotonic() - begun:.0f} s)", flush=True)
        if options.check:
            return 1 if bad else 0
        device = _device(not options.no_ceilings)
        remarks = profile_kernels(cases, scratch)
        remarks += profile_calls(cases, scratch)
    versions = {k.source.removeprefix("ncu ") for case in cases for k in case.counters}
    document = {
        "command": " ".join(["python", "benchmarks/profile_truth.py", *sys.argv[1:]]),
        "seconds": time.monotonic() - begun,
        "provenance": gpu_provenance() | {"ncu": ", ".join(sorted(versions))},
        "device": device.model_dump(mode="json") if device is not None else None,
        "remarks": remarks,
        "cases": [judge(case, device) for case in cases],
    }
    return _finish(document, options.out)


def _rejudge(path: Path, cases: list[Case], out: Path) -> int:
    document = json.loads(path.read_text())
    device = Device.model_validate(document["device"]) if document.get("device") else None
    known = {case.stem: case for case in cases}
    rows = []
    for row in document["cases"]:
        case = known.get(row["case"])
        if case is None:
            continue
        case.error = row["error"]
        if "counters" in row:
            case.counters = [KernelCounters.model_validate(row["counters"])]
        for source, line in row.get("timelines", {}).items():
            case.lines[source] = Timeline.model_validate(line)
        rows.append(judge(case, device))
    document["cases"] = rows
    document["remarks"] = [*document["remarks"], f"rules applied again to the measurements of {path.name}"]
    return _finish(document, out)


def _finish(document: dict[str, Any], out: Path) -> int:
    write_json(out, document)
    write_text(out.with_suffix(".md"), page(document))
    rows = document["cases"]
    for row in rows:
        if not (row["label_right"] and row["suggestion_right"]):
            print(
                f"WRONG {row['folder']}/{row['case']}: expected {'/'.join(row['labels'])}, said {row['label']}"
                f" ({row['suggestion']}); {row['evidence'] or row['error']}"
            )
    for remark in document["remarks"]:
        print(f"remark: {remark}")
    right = sum(row["label_right"] and row["suggestion_right"] for row in rows)
    print(f"{right} of {len(rows)} named rightly; {out}")
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
