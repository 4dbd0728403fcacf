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


def _find(data: Any, *names: str) -> Any:
    """The first value under one of ``names``, looking through nested objects breadth first."""
    level = [data]
    while level:
        following: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                for name in names:
                    if item.get(name) not in (None, "", [], {}):
                        return item[name]
                following.extend(item.values())
        level = following
    return None


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


def add_run(store: Store, run: Path) -> AddReport:
    """Store the best program of the run folder ``run``. Raises ``KnowledgeError`` when the run has none that was
    measured correct and faster than ``MIN_SPEEDUP`` times the best stock option."""
    summary_path, task_path = run / "summary.json", run / "task.py"
    if not summary_path.is_file() or not task_path.is_file():
        raise KnowledgeError(f"{run} is not the folder of a finished run: it lacks summary.json or task.py")
    try:
        summary = json.loads(summary_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KnowledgeError(f"{summary_path} is not JSON ({error}); the run may be damaged") from error
    source = task_path.read_text(encoding="utf-8")
    status = _find(summary, "status")
    speedups = _find(summary, "speedup", "speedups")
    over_best = speedups.get("over_best") if isinstance(speedups, dict) else speedups
    if over_best is None:
        over_best = _find(summary, "over_best")
    evaluation = _find(summary, "evaluation", "best_evaluation")
    if isinstance(evaluation, dict):
        status = evaluation.get("status", status)
    if status not in ("correct", "done", "finished", "improved", "target_reached") or not isinstance(
        over_best, (int, float)
    ):
        raise KnowledgeError(
            f"{run} holds no program that was measured correct (status {status!r}); only those are added"
        )
    if not math.isfinite(over_best) or over_best < MIN_SPEEDUP:
        raise KnowledgeError(
            f"the best program of {run} is {over_best:.2f} times as fast as the best stock option; "
            f"from {MIN_SPEEDUP} on it is worth keeping"
        )
    text, program_digest = _program_text(run / "best")
    try:
        operators = operators_of(source)
    except SyntaxError as error:
        raise KnowledgeError(f"{task_path} is not Python ({error})") from error
    inputs = _find(summary, "inputs") or []
    shapes = [f["shape"] for f in inputs if isinstance(f, dict) and isinstance(f.get("shape"), list)]
    conditions = {
        "task": _find(summary, "task_name", "name", "task") or task_path.parent.name,
        "speedup_over_best": round(float(over_best), 4),
        "speedup": speedups if isinstance(speedups, dict) else {},
        "precision": _find(summary, "precision"),
        "device": _find(summary, "device_name", "gpu", "device"),
        "arch": _find(summary, "arch"),
        "tier": _find(summary, "tier"),
        "torch": _find(summary, "torch"),
        "cuda": _find(summary, "cuda", "cuda_version"),
        "program": program_digest,
    }
    facts = {k: v for k, v in conditions.items() if v not in (None, "", {})}
    arch = facts.get("arch")
    try:
        tags = Tags(arch=normalize_arch([arch]) if isinstance(arch, str) and arch.startswith("sm_") else ())
    except ValueError:
        tags = Tags()
    name = str(facts["task"]) if not isinstance(facts["task"], dict) else str(facts["task"].get("name", run.name))
    lines = [
        f"Measured: {over_best:.2f} times as fast as the best stock option of the same precision class.",
        "Conditions: " + ", ".join(f"{k} {v}" for k, v in facts.items() if isinstance(v, (str, int, float))),
        f"Operators: {', '.join(operators)}.",
        f"Input shapes: {shapes or 'not recorded'}.",
    ]
    chunk = Chunk(
        (f"Verified program for {name}",), "\n".join(lines) + "\n\n" + text, "snippet", tags=tags, anchor="program"
    )
    digest = str(_find(summary, "task_digest") or "")
    fingerprint = fingerprint_of(source)
    with store.writing() as db:
        uri = f"run:{fingerprint[:16]}-{program_digest[:16]}"
        source_id = store.source(uri, str(facts.get("torch", "")))
        unchanged = bool(store.digests(source_id))
        (chunk_id,) = store.put_document(source_id, name, chunk.title[0], program_digest, [prepare(chunk)])
        db.execute(
            "INSERT OR REPLACE INTO snippets VALUES (?,?,?,?,?,?,?)",
            (
                chunk_id, digest, fingerprint, json.dumps(operators), json.dumps(shape_class(shapes)),
                float(over_best), json.dumps(facts, default=str),
            ),
        )  # fmt: skip
    return AddReport(uri, added=int(not unchanged), replaced=int(unchanged), chunks=1)


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
    exclude: Iterable[str] = (),
    minimum: float = 0.25,
) -> list[tuple[int, float]]:
    """Chunk ids of snippets with likeness, the likest first.

    ``target``: an architecture such as ``sm_90``; snippets measured on another are left out. ``exclude``: task
    digests and fingerprints that must not come back.
    """
    banned = frozenset(exclude)
    wanted = shape_class(shapes)
    rows = store.connection.execute(
        "SELECT s.chunk, s.digest, s.fingerprint, s.operators, s.shapes, s.speedup, t.arch FROM snippets s "
        "JOIN chunks c ON c.id = s.chunk JOIN tagsets t ON t.id = c.tagset"
    )
    scored: list[tuple[int, float]] = []
    for chunk, digest, fingerprint, have_operators, have_shapes, speedup, arch in rows:
        if digest in banned or fingerprint in banned:
            continue
        if target and arch and arch not in normalize_arch([target]):
            continue
        likeness = _pattern_likeness(operators, json.loads(have_operators))
        if likeness < minimum:
            continue
        shape = _shape_likeness(wanted, json.loads(have_shapes))
        scored.append((chunk, round(likeness * (0.6 + 0.4 * shape) + 0.01 * min(speedup, 5.0), 4)))
    scored.sort(key=lambda item: (-item[1], item[0]))
    return scored
