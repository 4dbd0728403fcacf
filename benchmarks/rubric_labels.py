"""The labelled programs of ``tests/reward/labelled``: measure them, and compare the marks of evidence and of readers.

    OMP_NUM_THREADS=1 python benchmarks/rubric_labels.py measure --target cpu --missing   # all that has no file yet
    python benchmarks/rubric_labels.py measure --target cuda --missing [--out DIR --seconds 540]   # where a GPU is
    python benchmarks/rubric_labels.py facts                    # what readers are told, from what was measured
    python benchmarks/rubric_labels.py agree [--half tuning]    # compare; without --half results are written

``measure`` writes one file a program to ``tests/reward/labelled/observed`` (Evaluation, Profile, machine code in
numbers, and for an improvement the same of the program before, taken just before it) and one Profile a task; with
``--out`` to another folder, whose files belong there. It starts nothing after ``--seconds``, and ``--missing`` goes on.
``agree`` writes
``benchmarks/results/rubric_labels.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import provenance
from pydantic import BaseModel
from tests.reward import labelled
from tests.reward.labelled import Half, Item, comparison

from stitchcuda.evaluation.model import Evaluation
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.profiling.diagnosis import short
from stitchcuda.profiling.model import Profile
from stitchcuda.program.files import load_program
from stitchcuda.reward.engineering import headroom
from stitchcuda.reward.formula import overlap
from stitchcuda.reward.observe import Observer
from stitchcuda.reward.observed import Observed

RESULTS = Path(__file__).resolve().parent / "results" / "rubric_labels"
OBSERVED = labelled.ROOT / "observed"
BRIEF = EvaluationSettings(
    correctness_seeds=2, family_seconds=0.3, warmup_calls=2, screen_calls=14, screen_min_calls=8, screen_seconds=1.5
)
"""On cpu: all checks, fewer calls. Marks need an order here, not a number for a page."""
MEASURED = (
    "cpu programs were measured with one thread on a busy machine of two cores, at 58a0dee7a272 but for those of "
    "the task attention (a working tree shortly before it) and p023 (ced6e2614e78); cuda programs on an NVIDIA H200, "
    "driver 580.159.04, torch 2.11.0+cu130, at fbb24dd."
)
DIGITS = 5
LEAST_SHARE = 0.005
"""Operators of a reference with a smaller share are not told to readers."""


def measure(
    target: Literal["cpu", "cuda"], only: set[str], missing: bool, counters: int, out: Path, seconds: float
) -> None:
    """Observe every item of a target, those of a task together; no new one after so many seconds."""
    from stitchcuda.cli._session import open_session
    from stitchcuda.compute.folders import data_folder

    end = time.monotonic() + seconds
    wanted = [item for item in labelled.items() if item.target == target and (not only or item.id in only)]
    for task, group in groupby(sorted(wanted, key=lambda item: item.task), key=lambda item: item.task):
        members = [item for item in group if not (missing and _kept(item, out))]
        if not members or time.monotonic() > end:
            continue
        settings = BRIEF if target == "cpu" else None
        with open_session(str(members[0].task_path), target=target, settings=settings) as session:
            observer = Observer(
                session.task,
                session.facts,
                session.device,
                session.evaluator,
                data_folder(),
                counters=counters if target == "cuda" else 0,
                remark=print,
            )
            if (reference := observer.reference()) is not None:
                _write(out / f"{task}.json", _profile(reference))
            for item in members:
                if time.monotonic() > end or (missing and _kept(item, out)):
                    continue
                document = _observe(observer, item)
                if document["evaluation"]["status"] == "infrastructure_error":
                    print(f"{task} {item.id} not kept: {document['evaluation']['message']}")
                    continue
                _write(out / f"{item.id}.json", document)
                found = document["evaluation"]
                own = (found.get("census") or {}).get("own")
                print(f"{task} {item.id}: {found['status']}, {found.get('speedup', {}).get('over_best')}x, own {own}")
                sys.stdout.flush()


def _kept(item: Item, out: Path) -> bool:
    return any((folder / f"{item.id}.json").is_file() for folder in (OBSERVED, out))


def facts() -> None:
    """What readers may know of the measurements: times and bounds, nothing of traces, findings or marks."""
    tasks: dict[str, Any] = {}
    programs: dict[str, Any] = {}
    for item in labelled.items():
        seen = labelled.measured(item)
        if seen is None:
            built = "builds, not measured"
            programs[item.id] = {"status": built if item.target == "cuda" else "being measured: mark it later"}
            continue
        if seen.reference is not None and item.task not in tasks:
            work = [kernel for kernel in seen.reference.kernels if kernel.share >= LEAST_SHARE]
            tasks[item.task] = {short(kernel.name): round(kernel.share, 3) for kernel in work}
        programs[item.id] = _facts(seen)
    text = _lines({"reference": tasks}) + ",\n" + _lines({"programs": programs})
    provenance.write_text(labelled.ROOT / "facts.json", "{\n" + text + "\n}\n")


def _lines(document: dict[str, dict[str, Any]]) -> str:
    (name, entries), *_ = document.items()
    return f'"{name}": {{\n' + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in entries.items()) + "\n}"


def _facts(seen: Observed) -> dict[str, Any]:
    evaluation, previous = seen.evaluation, seen.previous
    found: dict[str, Any] = {"status": evaluation.status}
    if previous is not None:
        found["before_status"] = previous.status
    if not evaluation.passed:
        return found
    timings, program = evaluation.timings, evaluation.timings["program"]
    found["milliseconds"] = {name: round(timing.median * 1e3, 3) for name, timing in timings.items()}
    over = evaluation.speedup["over_best"]
    best = min((n for n in evaluation.speedup if n != "over_best"), key=lambda n: abs(evaluation.speedup[n] - over))
    found |= {"over_best": round(over, 3), "noise": overlap(program, timings[best])}
    if (sol := evaluation.sol) is not None:
        gained = headroom(over * program.median, program.median, sol.bound_seconds)
        found |= {"speed_of_light": round(sol.fraction, 3), "binds": sol.binds, "headroom": round(gained, 3)}
    if previous is not None and previous.passed:
        before = previous.timings["program"]
        found |= {
            "over_before": round(before.median / program.median, 3),
            "noise_before": overlap(program, before),
        }
    return found


def agree(chosen: Half | None) -> None:
    """Readers beside each other, and evidence beside the mean of both; printed, and kept unless it is one half."""
    readers = {reader: labelled.labels(reader) for reader in labelled.READERS}
    if not all(readers.values()):
        raise SystemExit("labels_a.json and labels_b.json are not there yet; see tests/reward/labelled/READING.md")
    known = comparison.rows(labelled.items(), list(readers.values()), labelled.classes())
    document: dict[str, Any] = {"readers": {}, "evidence": {}}
    halves: list[Half] = [chosen] if chosen else ["tuning", "test"]
    for target in ("cpu", "cuda"):
        document["readers"][target] = comparison.between_readers(known, target)
        for half in halves:
            found = comparison.of_evidence(known, half, target)
            if found["programs"]:
                document["evidence"][f"{half} half, {target}"] = found
    text = comparison.page(document)
    print(text)
    if chosen is None:
        record = provenance.host_provenance()
        document = {"provenance": record} | document
        text += f"\nCompared at {record['commit']} on {record['date']}; {MEASURED}\n"
        provenance.write_json(RESULTS.with_suffix(".json"), _rounded(document))
        provenance.write_text(RESULTS.with_suffix(".md"), text)


def _observe(observer: Observer, item: Item) -> dict[str, Any]:
    earlier = load_program(labelled.program_path(item.before)) if item.before else None
    seen = observer.observe(load_program(item.path), improves=earlier)
    document: dict[str, Any] = {"evaluation": _evaluation(seen.evaluation)}
    if seen.profile is not None:
        document["profile"] = _profile(seen.profile)
    if seen.sass:
        document["sass"] = [_rounded(kernel.model_dump(mode="json", exclude_defaults=True)) for kernel in seen.sass]
    if seen.previous is not None:
        document["previous"] = _evaluation(seen.previous)
    if seen.before is not None:
        document["before"] = _profile(seen.before)
    return document


def _evaluation(evaluation: Evaluation) -> Any:
    """Without what marks do not read: the compiler's words, the outputs one by one, stages and memory."""
    return _dump(evaluation, {"log", "correctness", "seconds", "memory"})


def _profile(profile: Profile) -> Any:
    return _dump(profile, {"counters", "operators", "critical_path", "remarks"})


def _dump(model: BaseModel, without: set[str]) -> Any:
    return _rounded(model.model_dump(mode="json", exclude_defaults=True, exclude=without))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


def _write(path: Path, document: Any) -> None:
    provenance.write_text(path, json.dumps(document, separators=(",", ":")) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    taking = verbs.add_parser("measure")
    taking.add_argument("--target", choices=("cpu", "cuda"), required=True)
    taking.add_argument("--only", default="", help="ids, with commas between them")
    taking.add_argument("--missing", action="store_true", help="those that have no file yet")
    taking.add_argument("--counters", type=int, default=2, help="kernels read by Nsight Compute, cuda only")
    taking.add_argument("--out", type=Path, default=OBSERVED, help="where files go")
    taking.add_argument("--seconds", type=float, default=float("inf"), help="start nothing after so many")
    verbs.add_parser("facts")
    comparing = verbs.add_parser("agree")
    comparing.add_argument("--half", choices=("tuning", "test"), default=None)
    chosen = parser.parse_args()
    if chosen.verb == "facts":
        facts()
        return
    if chosen.verb == "agree":
        agree(chosen.half)
        return
    only = {name for name in chosen.only.split(",") if name}
    measure(chosen.target, only, chosen.missing, chosen.counters, chosen.out, chosen.seconds)


if __name__ == "__main__":
    main()
