"""Marks of readers beside each other, and marks of evidence beside theirs. The measures are in ``agreement``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stitchcuda.reward.evidence import mark
from stitchcuda.reward.formula import reward
from stitchcuda.reward.model import DIMENSIONS, Dimension
from tests.reward.labelled import HACKS, Half, Item, measured
from tests.reward.labelled.agreement import difference, kappa, spearman

Marks = dict[Dimension, float]
EVERYTHING = "total"


@dataclass(frozen=True)
class Row:
    """One program: what readers and evidence gave it. ``evidence`` is None where it was not measured."""

    item: Item
    kind: str
    readers: Sequence[Marks]
    evidence: Marks | None
    reward: float | None
    reasons: dict[Dimension, list[str]]

    def label(self, dimension: str) -> float:
        """The readers' mean for a dimension, or for the total."""
        return sum(_value(marks, dimension) for marks in self.readers) / len(self.readers)

    def marked(self, dimension: str) -> float:
        """The evidence's mark for a dimension, or for the total."""
        assert self.evidence is not None
        return _value(self.evidence, dimension)


def _value(marks: Marks, dimension: str) -> float:
    return sum(marks.values()) if dimension == EVERYTHING else next(v for k, v in marks.items() if k == dimension)


def rows(items: Sequence[Item], readers: Sequence[dict[str, Marks]], kinds: dict[str, str]) -> list[Row]:
    """All items that every reader has marked, with the marks and the reward that evidence gives."""
    found = []
    for item in items:
        given = [reader[item.id] for reader in readers if item.id in reader]
        if len(given) < len(readers):
            continue
        seen = measured(item)
        score = mark(seen, item.skill) if seen is not None else None
        worth = reward(seen.evaluation, score, item.skill).value if seen is not None else None
        evidence = {name: score.marks[name].score for name in DIMENSIONS} if score is not None else None
        reasons = {name: score.marks[name].reasons for name in DIMENSIONS} if score is not None else {}
        found.append(Row(item, kinds[item.id], given, evidence, worth, reasons))
    return found


def between_readers(known: Sequence[Row], target: str) -> dict[str, dict[str, float]]:
    """For each dimension and the total: how two readers agree on the programs of a target."""
    chosen = [row for row in known if row.item.target == target]
    if not chosen:
        return {}
    found = {}
    for name in (*DIMENSIONS, EVERYTHING):
        a, b = ([_value(row.readers[at], name) for row in chosen] for at in (0, 1))
        found[name] = {"spearman": spearman(a, b), "kappa": kappa(a, b), "difference": difference(a, b)}
    return found


def of_evidence(known: Sequence[Row], half: Half, target: str) -> dict[str, Any]:
    """For each dimension and the total: how evidence agrees with the readers' mean on measured programs; and the order.

    Readers knew what was measured of programs for cpu and could only expect it of those for cuda, so both are apart.
    """
    chosen = [row for row in known if (row.item.half, row.item.target) == (half, target) and row.evidence is not None]
    found: dict[str, Any] = {"programs": len(chosen), "tasks": len({row.item.task for row in chosen})}
    if not chosen:
        return found
    for name in (*DIMENSIONS, EVERYTHING):
        a, b = [row.marked(name) for row in chosen], [row.label(name) for row in chosen]
        found[name] = {"spearman": spearman(a, b), "difference": difference(a, b)}
        for skill in ("scratch", "improve"):
            part = [row for row in chosen if row.item.skill == skill]
            if part:
                found[name][skill] = spearman([r.marked(name) for r in part], [r.label(name) for r in part])
    return found | {"order": order(chosen)}


def order(chosen: Sequence[Row]) -> dict[str, Any]:
    """Pairs of a hack and an honest program that evidence puts the wrong way round, by total and by reward.

    Programs that do not work count as neither: the reward of both is zero.
    """
    hacks = [row for row in chosen if row.kind in HACKS]
    honest = [row for row in chosen if row.kind not in HACKS]
    pairs = [(h, o) for h in hacks for o in honest]
    wrong = [(h, o) for h, o in pairs if h.marked(EVERYTHING) >= o.marked(EVERYTHING)]
    paid = [(h, o) for h, o in pairs if (h.reward or 0.0) >= (o.reward or 0.0)]
    return {
        "pairs": len(pairs),
        "wrong_by_total": len(wrong),
        "wrong_by_reward": len(paid),
        "highest_hack": max((row.marked(EVERYTHING) for row in hacks), default=0.0),
        "lowest_honest": min((row.marked(EVERYTHING) for row in honest), default=0.0),
        "wrong": sorted({f"{h.item.id} ({h.kind}) >= {o.item.id} ({o.kind})" for h, o in wrong}),
    }


def page(document: dict[str, Any]) -> str:
    """The numbers as Markdown."""
    lines = ["# Marks from evidence beside marks from readers", ""]
    lines += [
        "What this is and how it is made: `tests/reward/labelled/`, `benchmarks/rubric_labels.py`, `docs/reward.md`."
    ]
    for target, found in document["readers"].items():
        if not found:
            continue
        lines += ["", f"## Two readers, {target} programs", ""]
        lines += ["| dimension | Spearman | weighted kappa | mean difference |", "|---|---|---|---|"]
        for name, row in found.items():
            lines.append(f"| {_words(name)} | {row['spearman']:.2f} | {row['kappa']:.2f} | {row['difference']:.2f} |")
    for half, found in document["evidence"].items():
        count = f"{found['programs']} programs over {found['tasks']} tasks"
        lines += ["", f"## Evidence beside the readers' mean, {half}: {count}", ""]
        lines += ["| dimension | Spearman | scratch | improve | mean difference |", "|---|---|---|---|---|"]
        for name in (*DIMENSIONS, EVERYTHING):
            row = found[name]
            parts = " | ".join(f"{row[skill]:.2f}" if skill in row else "" for skill in ("scratch", "improve"))
            lines.append(f"| {_words(name)} | {row['spearman']:.2f} | {parts} | {row['difference']:.2f} |")
        chosen = found["order"]
        lines += [
            "",
            f"Of {chosen['pairs']} pairs of a hack and an honest program {chosen['wrong_by_total']} are the wrong way "
            f"round by total, {chosen['wrong_by_reward']} by reward; the highest hack has "
            f"{chosen['highest_hack']:g} of 20, the lowest honest program {chosen['lowest_honest']:g}.",
        ]
        lines += [f"- {pair}" for pair in chosen["wrong"]]
    return "\n".join(lines) + "\n"


def _words(name: str) -> str:
    return name.replace("_", " ")
