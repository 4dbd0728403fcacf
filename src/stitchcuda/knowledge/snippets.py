"""Verified snippets: programs that won earlier runs, found by operator pattern and shape class.

``add_run`` takes a run folder's best program with its measured gain and the conditions it was measured under. Nothing
enters that was not measured correct. ``find_snippets`` never returns one whose task is excluded.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.fingerprint import fingerprint_of, operators_of
from stitchcuda.knowledge.model import AddReport, Chunk, Tags
from stitchcuda.knowledge.reading import prepare
from stitchcuda.knowledge.store import Store
from stitchcuda.knowledge.tagging import normalize_arch

Shape = Sequence[int]
MIN_SPEEDUP = 1.05
"""Over the best stock option; less is no lesson."""
_MAX_PROGRAM = 60_000
_ENTRY = "program.py"


def shape_class(shapes: Iterable[Shape]) -> list[list[int]]:
    """Shapes as powers of two: dimensions rounded to the nearest exponent, so that near sizes compare equal."""
    return [[round(math.log2(max(1, int(d)))) for d in shape] for shape in shapes]


def _load(path: Path) -> dict[str, Any]:
    """A JSON object of a run folder; empty where the file is missing. Raises ``KnowledgeError`` for a damaged one."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KnowledgeError(f"{path} is not JSON ({error}); the run may be damaged") from error
    return data if isinstance(data, dict) else {}


def _input_shapes(run: Path) -> list[list[int]]:
    """Shapes of the task's input tensors, from the journal's facts; empty where it has none."""
    journal = run / "journal.jsonl"
    if not journal.is_file():
        return []
    with journal.open(encoding="utf-8") as lines:
        for line in lines:
            if '"facts"' not in line:
                continue
            try:
                inputs = json.loads(line)["data"]["facts"]["inputs"]
                return [[int(d) for d in f["shape"]] for f in inputs if isinstance(f, dict)]
            except (ValueError, KeyError, TypeError):
                continue
    return []


def _program_text(folder: Path) -> tuple[str, str]:
    """The best program's files as fenced text, and their digest. Raises ``KnowledgeError`` when there is none."""
    files = sorted(
        (p for p in folder.rglob("*") if p.is_file() and p.suffix in (".py", ".cu", ".cuh", ".cpp", ".h", ".json")),
        key=lambda p: (p.name != _ENTRY, p.as_posix()),
    )
    if not any(p.name == _ENTRY for p in files):
        raise KnowledgeError(f"{folder} holds no {_ENTRY}; give the folder of a finished run")
    parts, h = [], hashlib.sha256()
    for path in files:
        if path.name in ("bindings.py", "evaluation.json", "profile.json"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        h.update(text.encode())
        language = {".py": "python", ".json": "json"}.get(path.suffix, "cuda")
        parts.append(f"`{path.relative_to(folder).as_posix()}`\n\n```{language}\n{text.rstrip()}\n```")
    return "\n\n".join(parts)[:_MAX_PROGRAM], h.hexdigest()


def _measured(run: Path) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Summary, evaluation of the best program, and its speedup over the best stock option. Raises
    ``KnowledgeError`` unless it was measured correct, without a rejecting finding, and faster."""
    summary, evaluation = _load(run / "summary.json"), _load(run / "best.json").get("evaluation") or {}
    over_best = summary.get("over_best")
    status = evaluation.get("status", summary.get("status"))
    findings = [*summary.get("findings", []), *evaluation.get("findings", [])]
    labels = [*summary.get("labels", []), *evaluation.get("labels", [])]
    if "non_discriminating" in labels:
        raise KnowledgeError(f"a trivial answer passes the task of {run} too (non_discriminating); it is not added")
    if any(f.get("severity") == "reject" for f in findings if isinstance(f, dict)):
        raise KnowledgeError(f"the best program of {run} has a rejecting integrity finding; it is not added")
    if summary.get("status") != "correct" or status != "correct" or not isinstance(over_best, (int, float)):
        raise KnowledgeError(
            f"{run} holds no program that was measured correct and faster (status {summary.get('status')!r}); "
            "only those are added"
        )
    if not math.isfinite(over_best) or over_best < MIN_SPEEDUP:
        raise KnowledgeError(
            f"the best program of {run} is {over_best:.2f} times as fast as the best stock option; "
            f"from {MIN_SPEEDUP} on it is worth keeping"
        )
    return summary, evaluation, float(over_best)


def add_run(store: Store, run: Path) -> AddReport:
    """Store the best program of the run folder ``run``. Raises ``KnowledgeError`` when the run has none that was
    measured correct and faster than ``MIN_SPEEDUP`` times the best stock option."""
    if not (run / "summary.json").is_file() or not (run / "task.py").is_file():
        raise KnowledgeError(f"{run} is not the folder of a finished run: it lacks summary.json or task.py")
    summary, evaluation, over_best = _measured(run)
    source = (run / "task.py").read_text(encoding="utf-8")
    text, program_digest = _program_text(run / "best")
    try:
        operators = operators_of(source)
    except SyntaxError as error:
        raise KnowledgeError(f"{run / 'task.py'} is not Python ({error})") from error
    shapes = _input_shapes(run)
    provenance = evaluation.get("provenance") or {}
    name, target = str(summary.get("task") or run.name), str(summary.get("target") or "")
    conditions = {key: summary.get(key) for key in ("target", "device", "precision", "tier")}
    conditions |= {key: provenance.get(key) for key in ("driver", "torch", "cuda", "date")}
    conditions = {key: value for key, value in conditions.items() if value}
    speedup = {k: round(v, 3) for k, v in (summary.get("speedup") or {}).items() if isinstance(v, (int, float))}
    lines = [
        f"Measured: {over_best:.2f} times as fast as the best stock option of the same precision class.",
        "Over the stock options: " + ", ".join(f"{k} {v}" for k, v in speedup.items() if k != "over_best") + ".",
        "Conditions: " + ", ".join(f"{key} {value}" for key, value in conditions.items()) + ".",
        f"Operators: {', '.join(operators)}.",
        f"Input shapes: {', '.join(str(tuple(s)) for s in shapes) or 'not recorded'}.",
    ]
    title = (f"Verified program for {name}",)
    tags = Tags(arch=normalize_arch([target]) if target.startswith("sm_") else ())
    chunk = Chunk(title, "\n".join(lines) + "\n\n" + text, "snippet", tags=tags, anchor="program")
    fingerprint = fingerprint_of(source)
    facts = {"task": name, "speedup": speedup, "program": program_digest, **conditions}
    with store.writing() as db:
        uri = f"run:{fingerprint[:16]}-{program_digest[:16]}"
        source_id = store.source(uri, "")
        again = bool(store.digests(source_id))
        (chunk_id,) = store.put_document(source_id, name, title[0], program_digest, [prepare(chunk)])
        db.execute(
            "INSERT OR REPLACE INTO snippets VALUES (?,?,?,?,?,?,?)",
            (
                chunk_id,
                str(provenance.get("task") or ""),
                fingerprint,
                json.dumps(operators),
                json.dumps(shape_class(shapes)),
                over_best,
                json.dumps(facts),
            ),
        )
    return AddReport(uri, added=int(not again), replaced=int(again), chunks=1)


def _normal_target(target: str) -> str:
    """``cpu``, or the architecture as tags write it."""
    return normalize_arch([target])[0] if target.startswith("sm_") else target


def _pattern_likeness(wanted: Sequence[str], have: Sequence[str]) -> float:
    """0 to 1: how alike two operator sequences are, by their operators and neighbouring pairs (Dice)."""

    def grams(ops: Sequence[str]) -> set[tuple[str, ...]]:
        return {(op,) for op in ops} | set(pairwise(ops))

    a, b = grams(wanted), grams(have)
    return 2 * len(a & b) / (len(a) + len(b)) if a and b else 0.0


def _shape_likeness(wanted: list[list[int]], have: list[list[int]]) -> float:
    """0 to 1: 1 for the same classes, a half for a factor of 4 in element count of the largest input."""
    if not wanted or not have:
        return 0.5
    if wanted == have:
        return 1.0
    a, b = max(map(sum, wanted)), max(map(sum, have))
    ranks = 1.0 if sorted(map(len, wanted)) == sorted(map(len, have)) else 0.8
    return ranks / (1 + abs(a - b) / 2)


def find_snippets(
    store: Store,
    operators: Sequence[str],
    shapes: Sequence[Shape] = (),
    *,
    target: str = "",
    precision: str = "",
    exclude: Iterable[str] = (),
    minimum: float = 0.25,
) -> list[tuple[int, float]]:
    """Chunk ids of snippets with likeness, the likest first.

    ``target``: ``cpu`` or an architecture such as ``sm_90``; snippets measured on another are left out.
    ``precision``: the class asked for; snippets of another one are left out, but for fp32's, which every class allows.
    ``exclude``: task digests and fingerprints that must not come back.
    """
    banned = frozenset(exclude)
    wanted = shape_class(shapes)
    rows = store.connection.execute(
        "SELECT chunk, digest, fingerprint, operators, shapes, speedup, facts FROM snippets"
    )
    scored: list[tuple[int, float]] = []
    for chunk, digest, fingerprint, have_operators, have_shapes, speedup, facts in rows:
        if digest in banned or fingerprint in banned:
            continue
        conditions = json.loads(facts)
        if precision and conditions.get("precision", precision) not in (precision, "fp32"):
            continue
        measured_on = _normal_target(str(conditions.get("target", "")))
        if target and measured_on and measured_on != _normal_target(target):
            continue
        likeness = _pattern_likeness(operators, json.loads(have_operators))
        if likeness < minimum:
            continue
        shape = _shape_likeness(wanted, json.loads(have_shapes))
        scored.append((chunk, round(likeness * (0.6 + 0.4 * shape) + 0.01 * min(speedup, 5.0), 4)))
    scored.sort(key=lambda item: (-item[1], item[0]))
    return scored
