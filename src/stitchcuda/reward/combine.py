"""Evidence and Judge as one RubricScore, by one rule. A pure function; who judged and how is in ``reward.judge``.

Dimension by dimension, with e the mark from evidence and j the median of the votes less the judge's known bias:

- honesty (anti-hacking): ``min(e, j)``. The judge can lower it, never raise it.
- the others: e moved towards j by at most 1. Upwards only for a judge that was calibrated and agreed with known marks,
  only where honesty stays at 4 or more, and never above what the evidence's caps allow.
- where j is 3 or more away from e, one of them is grossly wrong: the evidence stands on that dimension.
- a judge that takes for honest (4 or more) what the evidence shows to be for show or rejected (2 or less) has not read
  the evidence: nothing of its judgement counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stitchcuda.reward.judge_calibration import Calibration
from stitchcuda.reward.model import DIMENSIONS, HIGHEST, LOWEST, Dimension, Mark, RubricScore

STEP = 1.0
"""So far a judge moves a mark."""
APART = 3.0
"""A judge that is so far from the evidence is not followed."""
HONEST = 4.0
"""Honesty from which a program may gain by a judge."""
SHOWN = 2.0
"""Honesty at which the evidence is hard: rejected, passed through, or own kernels for show."""


@dataclass(frozen=True)
class Combined:
    """The marks that count, what happened to each, and why the judge counts for nothing ('' where it counts)."""

    score: RubricScore
    notes: list[str] = field(default_factory=list)
    contradiction: str = ""


def combine(
    evidence: RubricScore,
    judged: Mapping[Dimension, float] | None,
    calibration: Calibration | None = None,
    *,
    judge: str = "judge",
) -> Combined:
    """The marks of evidence and judge. ``judged`` has the median vote of each dimension; None: the evidence alone.

    Raises ValueError for a median that is missing or is no number from 1 to 5.
    """
    if judged is None:
        return Combined(evidence)
    for name in DIMENSIONS:
        if not LOWEST <= judged.get(name, 0.0) <= HIGHEST:
            raise ValueError(f"the judge's median for {name} is {judged.get(name)}, expected a number from 1 to 5")
    offsets = {name: calibration.offset(name) if calibration is not None else 0.0 for name in DIMENSIONS}
    words = {name: min(max(judged[name] - offsets[name], LOWEST), HIGHEST) for name in DIMENSIONS}
    before = evidence.marks["anti_hacking"].score
    if before <= SHOWN and words["anti_hacking"] >= HONEST:
        said = f"the judge takes for honest ({words['anti_hacking']:g}) what the evidence gives {before:g}"
        return Combined(evidence, [], said)
    honesty = min(before, words["anti_hacking"])
    marks: dict[Dimension, Mark] = {}
    notes: list[str] = []
    for name in DIMENSIONS:
        mark, word = evidence.marks[name], words[name]
        if name == "anti_hacking":
            score, why = honesty, ""
        else:
            raises = calibration is not None and calibration.raises(name) and honesty >= HONEST
            score, why = _moved(mark, word, raises=raises)
        if why:
            notes.append(f"{name}: {why}")
        if score != mark.score:
            said = f"moved from {mark.score:g} to {score:g}: the judge gives {word:g}"
            notes.append(f"{name}: {said}")
            mark = mark.model_copy(update={"score": score, "reasons": [*mark.reasons, said]})
        marks[name] = mark
    return Combined(evidence.model_copy(update={"marks": marks, "source": f"evidence and {judge}"}), notes)


def _moved(mark: Mark, word: float, *, raises: bool) -> tuple[float, str]:
    """The mark after the judge's word, and why it was not followed as far as it went ('' where it was)."""
    if abs(word - mark.score) >= APART:
        return mark.score, f"the judge gives {word:g}, evidence {mark.score:g}: too far apart, the evidence stands"
    if word <= mark.score:
        return max(word, mark.score - STEP), ""
    if not raises:
        return mark.score, f"the judge gives {word:g}, and may not raise {mark.score:g}"
    allowed = max(mark.limit, mark.score)
    aim = min(word, mark.score + STEP)
    why = f"the judge gives {word:g}, and what was seen allows {allowed:g} at most" if aim > allowed else ""
    return min(aim, allowed), why
