"""How far a judge's marks are from known ones, by dimension: what is taken off them, and whether it may raise any.

Kept by the model's name with the digest of the prompt that it was asked with: after a change of prompt, rubric, votes
or temperature it is another judge.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.errors import RewardError
from stitchcuda.reward.model import DIMENSIONS, Dimension

ENOUGH = 20
"""Programs with known marks from which a judge may raise marks."""
CLOSE = 1.0
"""Standard deviation of what is left after the bias, up to which it may."""
AGREES = 0.6
"""Rank correlation (Spearman) with the known marks from which it may."""

Marks = Mapping[Dimension, float]


class Agreement(BaseModel):
    """One dimension over all programs that were judged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bias: float = Field(description="mean of the judge's marks less the known ones")
    spread: float = Field(ge=0, description="standard deviation of the same difference")
    spearman: float | None = Field(description="rank correlation; None where all marks of one side are equal")
    exact: float = Field(ge=0, le=1, description="share within half a level, the bias taken off")

    @property
    def good(self) -> bool:
        """Whether a judge of this agreement may raise marks."""
        return self.spread <= CLOSE and self.spearman is not None and self.spearman >= AGREES


class Calibration(BaseModel):
    """A judge against programs with known marks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(description="PROVIDER:NAME")
    prompt: str = Field(description="digest of the prompt, the rubrics and the settings it was asked with")
    programs: int = Field(ge=0)
    failures: int = Field(ge=0, description="programs that the judge gave no usable judgement on")
    labels: str = Field(description="where the known marks come from")
    measured_on: str = Field(description="date")
    dimensions: dict[Dimension, Agreement]

    def offset(self, dimension: Dimension) -> float:
        """What is taken off the judge's marks."""
        return self.dimensions[dimension].bias

    def raises(self, dimension: Dimension) -> bool:
        """Whether the judge may raise a mark: enough programs, and close to the known marks on them."""
        return self.programs >= ENOUGH and self.dimensions[dimension].good


def calibrate(
    known: Sequence[Marks],
    judged: Sequence[Marks | None],
    *,
    model: str,
    prompt: str,
    labels: str,
    measured_on: str,
) -> Calibration:
    """The agreement of a judge's medians with known marks, program by program; None is a judgement that failed.

    Raises RewardError without two judgements.
    """
    pairs = [(truth, found) for truth, found in zip(known, judged, strict=True) if found is not None]
    if len(pairs) < 2:
        raise RewardError(f"{len(pairs)} of {len(known)} programs were judged; a judge is known from two on")
    dimensions = {
        name: _agreement([truth[name] for truth, _ in pairs], [found[name] for _, found in pairs])
        for name in DIMENSIONS
    }
    return Calibration(
        model=model,
        prompt=prompt,
        programs=len(pairs),
        failures=len(known) - len(pairs),
        labels=labels,
        measured_on=measured_on,
        dimensions=dimensions,
    )


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation, equal values sharing their mean rank; None where one side is constant."""
    one, two = _ranks(first), _ranks(second)
    if len(set(one)) < 2 or len(set(two)) < 2:
        return None
    return max(-1.0, min(1.0, statistics.correlation(one, two)))


def place(folder: Path, model: str) -> Path:
    """Where a model's calibration is kept."""
    return folder / "judges" / f"{hashlib.sha256(model.encode()).hexdigest()[:24]}.json"


def store(calibration: Calibration, path: Path) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(calibration.model_dump_json(indent=2) + "\n")
    os.replace(aside, path)


def stored(path: Path) -> Calibration | None:
    """The calibration that is kept there; None without one. Raises RewardError for a damaged file."""
    try:
        return Calibration.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = str(error).splitlines()[0]
        raise RewardError(f"{path} is no calibration ({first}); calibrate again") from None


def _agreement(known: list[float], judged: list[float]) -> Agreement:
    differences = [found - truth for found, truth in zip(judged, known, strict=True)]
    bias = statistics.fmean(differences)
    return Agreement(
        bias=bias,
        spread=statistics.stdev(differences),
        spearman=spearman(known, judged),
        exact=sum(abs(difference - bias) <= 0.5 for difference in differences) / len(differences),
    )


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda at: values[at])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for at in order[start : end + 1]:
            ranks[at] = (start + end) / 2 + 1
        start = end + 1
    return ranks
