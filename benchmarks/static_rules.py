"""What the static rules say about programs that others wrote, beside this repository's own cheats and honest programs.

    python benchmarks/static_rules.py --programs NAME=FOLDER --jsonl NAME=FILE:FIELD --kernelguard kernelguard.py

FOLDER is searched for ``*.py`` files that define ModelNew; FILE holds one JSON object a line with source text under
FIELD. Only counts and the evidence of rejections are kept, no source text. ``--kernelguard`` takes KernelGuard's module
(``pip install kernelguard``, or its file) and asks it about the corpus too. Reads text only; writes
``benchmarks/results/static_rules.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from provenance import ROOT, host_provenance

from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.integrity.inspect import inspect_program
from stitchcuda.program.files import load_program
from stitchcuda.program.model import ENTRY, Program
from stitchcuda.task.model import Target

TARGET = Target(kind="cuda", arch="sm_90")

Guard = Callable[[str], tuple[bool, bool]]
"""Whether a text would be filtered, and whether any pattern matched."""


def corpus(kind: str) -> Iterator[tuple[str, Program]]:
    """Programs of tests/exploits: ``cheats`` or ``honest``."""
    for path in sorted((ROOT / "tests" / "exploits" / kind).iterdir()):
        if path.name.startswith("_") or not (path.is_dir() or path.suffix == ".py"):
            continue
        try:
            yield path.name, load_program(path)
        except ProgramError as error:
            print(f"{path.name}: {error}", file=sys.stderr)


def folder(path: Path) -> Iterator[tuple[str, Program]]:
    """Single-file programs anywhere in a folder."""
    for file in sorted(path.rglob("*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if "ModelNew" in text:
            yield str(file.relative_to(path)), Program(files={ENTRY: text})


def lines(path: Path, field: str) -> Iterator[tuple[str, Program]]:
    """Single-file programs from a JSON-lines file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = json.loads(line).get(field)
        if isinstance(text, str) and text.strip():
            yield str(number), Program(files={ENTRY: text})


def guard(path: str) -> Guard:
    """KernelGuard, as its own command asks it."""
    spec = importlib.util.spec_from_file_location("kernelguard", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not KernelGuard's module; give the path of kernelguard.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernelguard"] = module
    spec.loader.exec_module(module)

    def asked(text: str) -> tuple[bool, bool]:
        answer = module.analyze_code(text)
        fields = answer if isinstance(answer, dict) else vars(answer)
        return bool(fields.get("should_filter")), bool(fields.get("matched_patterns"))

    return asked


def measure(programs: Iterator[tuple[str, Program]], other: Guard | None) -> dict[str, Any]:
    """Counts over a set of programs, and the evidence of each rejection."""
    count = rejected = flagged = filtered = matched = 0
    rules: Counter[str] = Counter()
    rejections: dict[str, list[str]] = {}
    slowest = total = 0.0
    for name, program in programs:
        began = time.process_time()
        found = inspect_program(program, TARGET, "fp32")
        took = time.process_time() - began
        slowest, total, count = max(slowest, took), total + took, count + 1
        rules.update(f"{finding.severity}:{finding.rule}" for finding in found)
        rejecting = [f"{f.rule}: {f.evidence}" for f in found if f.severity == "reject"]
        rejected += bool(rejecting)
        flagged += any(f.severity == "flag" and f.rule not in ("no_own_kernel", "library_compute") for f in found)
        if rejecting:
            rejections[name] = rejecting
        if other is not None:
            filters, matches = other("\n".join(program.files[path] for path in sorted(program.files)))
            filtered, matched = filtered + filters, matched + matches
    result: dict[str, Any] = {
        "programs": count,
        "rejected": rejected,
        "flagged": flagged,
        "rules": dict(rules.most_common()),
        "rejections": rejections,
        "cpu_seconds": {"mean": total / max(count, 1), "slowest": slowest},
    }
    return result | ({"kernelguard": {"filters": filtered, "matches": matched}} if other is not None else {})


def page(document: dict[str, Any]) -> str:
    """The Markdown page."""
    sets = document["sets"]
    beside = ["KernelGuard filters", "KernelGuard matches"] if any("kernelguard" in s for s in sets.values()) else []
    head = ["set", "programs", "rejected", "flagged", *beside, "mean CPU ms"]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, each in sets.items():
        cells = [name, each["programs"], each["rejected"], each["flagged"]]
        cells += list(each["kernelguard"].values()) if beside else []
        rows.append(f"| {' | '.join(map(str, [*cells, round(each['cpu_seconds']['mean'] * 1e3, 1)]))} |")
    parts = ["# Static rules alone", "", *rows, ""]
    parts += ["Flags for missing kernels and library operations are left out of `flagged`: they are no suspicion.", ""]
    if beside:
        parts += ["KernelGuard is made for the submissions of one competition, whose form differs from this one.", ""]
    for name, each in sets.items():
        if each["rejections"] and name != "cheats":
            parts += [f"Rejected among {name}:", ""]
            parts += [f"- `{key}`: {'; '.join(reasons)}" for key, reasons in each["rejections"].items()]
            parts.append("")
    facts = ", ".join(f"{key} {value}" for key, value in document["provenance"].items())
    return "\n".join([*parts, f"`{document['command']}`: {facts}", ""])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--programs", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--jsonl", action="append", default=[], metavar="NAME=FILE:FIELD")
    parser.add_argument("--kernelguard", metavar="FILE")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    other = guard(given.kernelguard) if given.kernelguard else None
    sets = {kind: measure(corpus(kind), other) for kind in ("cheats", "honest")}
    for item in given.programs:
        name, _, path = item.partition("=")
        sets[name] = measure(folder(Path(path)), other)
    for item in given.jsonl:
        name, _, rest = item.partition("=")
        path, _, field = rest.rpartition(":")
        sets[name] = measure(lines(Path(path), field), other)
    names = [f"--programs {item.partition('=')[0]}=..." for item in given.programs]
    names += [f"--jsonl {item.partition('=')[0]}=..." for item in given.jsonl]
    command = " ".join(["python benchmarks/static_rules.py", *names, *(["--kernelguard ..."] if other else [])])
    document = {"command": command, "provenance": host_provenance(), "sets": sets}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "static_rules.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (given.out / "static_rules.md").write_text(page(document), encoding="utf-8")
    print(page(document))


if __name__ == "__main__":
    main()
