"""The data of a reward: settings, marks on the rubric, and every component of one Reward.

Computing it is in ``reward.formula``, giving marks from evidence in ``reward.evidence``.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Skill = Literal["scratch", "improve"]
"""What the Coder was asked for: to write from scratch, or to improve a program from feedback."""

Dimension = Literal["anti_hacking", "cuda_engineering", "operator_coverage", "skill_compliance"]
DIMENSIONS: tuple[Dimension, ...] = ("anti_hacking", "cuda_engineering", "operator_coverage", "skill_compliance")
LOWEST, HIGHEST = 1, 5

Against = Literal["best", "eager"]
"""Which stock option speed is measured against: the best of the same precision class, or eager."""

Level = Annotated[float, Field(strict=True, ge=LOWEST, le=HIGHEST, allow_inf_nan=False)]


class RewardSettings(BaseModel):
    """The constants of the formula; the defaults are the published ones, but for the baseline."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tau: float = Field(default=0.3, ge=0, description="worth of being correct at all, added to the speedup")
    scratch_weight: float = Field(default=1.0, ge=0, le=2, description="lambda of the rubric when writing from scratch")
    improve_weight: float = Field(default=0.7, ge=0, le=2, description="lambda of the rubric when improving")
    speedup_clip: float = Field(default=5.0, gt=0, description="larger speedups count as this")
    largest: float = Field(default=3.0, gt=0, description="cap of the reward")
    centred: bool = Field(default=True, description="marks move the reward both ways, by r - 0.5; False: upwards, by r")
    baseline: Against = Field(
        default="best",
        description="best: the fastest stock option of the precision class; eager: as the paper measures. A CUDA graph "
        "around eager alone reaches the cap over eager on launch-bound tasks",
    )

    @classmethod
    def preset(cls, name: Literal["default", "paper"]) -> RewardSettings:
        """``paper`` measures over eager."""
        return cls(baseline="eager") if name == "paper" else cls()

    def weight(self, skill: Skill) -> float:
        """The rubric's lambda for a skill."""
        return self.scratch_weight if skill == "scratch" else self.improve_weight


class Mark(BaseModel):
    """A score on one dimension, with what it rests on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: Level = Field(description="1 to 5; a number, never a text or a truth value that could be one")
    reasons: list[str] = Field(default_factory=list, description="what was seen, one sentence each")
    limit: Level = Field(default=float(HIGHEST), description="the most that what was seen allows, whoever marks")


class RubricScore(BaseModel):
    """One Program's marks on all four dimensions. The total is computed, never taken from whoever marked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skill: Skill
    marks: dict[Dimension, Mark]
    source: str = Field(default="evidence", description="who gave the marks")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if missing := [name for name in DIMENSIONS if name not in self.marks]:
            raise ValueError(f"no mark for {', '.join(missing)}; a score has all of {', '.join(DIMENSIONS)}")
        return self

    @property
    def total(self) -> float:
        """Sum of the four marks, 4 to 20."""
        return sum(self.marks[name].score for name in DIMENSIONS)

    @property
    def normalised(self) -> float:
        """The total from 0 (all marks 1) to 1 (all marks 5)."""
        return (self.total - LOWEST * len(DIMENSIONS)) / ((HIGHEST - LOWEST) * len(DIMENSIONS))


class Reward(BaseModel):
    """A reward with all that it was made of; numbers that do not enter into a reward of zero are None."""

    model_config = ConfigDict(frozen=True)

    value: float = Field(description="0 to the settings' cap")
    skill: Skill
    correct: bool = Field(description="I_corr")
    hack: bool = Field(description="I_hack: a rejecting finding, or a status that says so")
    hacks: list[str] = Field(default_factory=list, description="what says so, by rule or status")
    against: str | None = Field(
        default=None, description="what the speedup is over: a stock option, 'previous program'"
    )
    measured: float | None = Field(default=None, description="speedup as measured")
    within_interval: bool = Field(
        default=False, description="the 95 % intervals overlap: the difference counts as none"
    )
    speedup: float | None = Field(default=None, description="s: 1 within the interval, and clipped")
    over_eager: float | None = Field(default=None, description="for the log, whatever the baseline is")
    over_best: float | None = Field(default=None, description="for the log, whatever the baseline is")
    total: float | None = Field(default=None, description="of the four marks, 4 to 20")
    rubric: float | None = Field(default=None, description="r: the total from 0 to 1, less 0.5 when centred")
    base: float | None = Field(default=None, description="s + tau")
    multiplier: float | None = Field(default=None, description="1 + lambda r")
    capped: bool = Field(default=False, description="the product was larger than the cap")
    noise: float | None = Field(
        default=None,
        description="standard error of the value from the intervals of both times; None where one was not measured",
    )
    score_source: str | None = Field(default=None, description="who gave the marks")
    marks: dict[Dimension, float] = Field(default_factory=dict, description="the four marks, where there are any")
    judged: str = Field(default="", description="what came of asking a judge; '' where none was asked")
    status: str = Field(default="", description="of the Evaluation; 'no_program' for a reply that holds none")
    reason: str = Field(default="", description="of a reward of zero: what the evaluation, or the reader, said")
    labels: list[str] = Field(default_factory=list, description="of the Evaluation, such as 'non_discriminating'")
    settings: RewardSettings
