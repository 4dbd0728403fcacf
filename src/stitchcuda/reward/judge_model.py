"""The data of a judgement: settings, one vote's verdict, and what came of asking. Asking is in ``reward.judge``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.settings import OutputMode, Prices
from stitchcuda.reward.model import DIMENSIONS, HIGHEST, LOWEST, Dimension, RubricScore

Whole = Annotated[int, Field(strict=True, ge=LOWEST, le=HIGHEST)]
"""A mark of 1 to 5 as a whole number; never '5', true or 5.0."""


class JudgeSettings(BaseModel):
    """Which model judges, and how it is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(description="PROVIDER:NAME; stronger than the model that writes the programs")
    base_url: str | None = Field(default=None, description="address of a server that speaks the provider's protocol")
    votes: int = Field(default=3, ge=1, le=15, description="independent answers; the median counts")
    temperature: float | None = Field(default=0.3, ge=0, le=2, description="None: the provider's default")
    seed: int = Field(default=0, description="of the order in which each vote is shown dimensions and evidence")
    output_tokens: int = Field(default=3_000, gt=0, description="longest reply; doubled after a cut-off one")
    output_mode: OutputMode = "tool"
    reasks: int = Field(default=1, ge=0, description="times an unusable reply is sent back with what is wrong")
    request_seconds: float = Field(
        default=180.0, gt=0, description="for one reply, start to end; and for a server that is busy"
    )
    attempts: int = Field(default=3, gt=0, description="tries of one request when the endpoint fails")
    first_wait_seconds: float = Field(default=1.0, ge=0, description="before the second try; doubles each time")
    prices: dict[str, Prices] = Field(default_factory=dict, description="by PROVIDER:NAME; over the price list")


class Opinion(BaseModel):
    """One dimension's mark with its reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: Whole = Field(description="whole number from 1 to 5, by the levels of the dimension")
    reason: str = Field(min_length=1, max_length=1_000, description="one or two sentences")
    evidence: list[str] = Field(min_length=1, max_length=20, description="ids of the items it rests on, such as E3")


class Verdict(BaseModel):
    """One vote: a mark on each dimension. There is no total and no word on cheating: both are computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    anti_hacking: Opinion
    cuda_engineering: Opinion
    operator_coverage: Opinion
    skill_compliance: Opinion

    def opinion(self, dimension: Dimension) -> Opinion:
        """The one of a dimension."""
        found = getattr(self, dimension)
        assert isinstance(found, Opinion)
        return found


class Vote(BaseModel):
    """One asking: a verdict, or why there is none."""

    model_config = ConfigDict(frozen=True)

    number: int
    dimensions: list[Dimension] = Field(description="in the order in which they were shown")
    evidence: list[str] = Field(description="ids in the order in which they were shown")
    verdict: Verdict | None = None
    failure: str = Field(default="", description="why there is no verdict; '' with one")


Outcome = Literal["counted", "failed", "contradicted", "not asked"]
"""counted: judge and evidence are combined. In every other case the evidence stands alone: the judge gave too few
usable votes, contradicted hard evidence, or was not asked."""


class JudgeOutcome(BaseModel):
    """What came of asking the Judge: the marks that count, and everything they came from."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    reason: str = Field(default="", description="why the evidence stands alone; '' where the judge counted")
    score: RubricScore = Field(description="the marks that count")
    evidence: RubricScore = Field(description="the marks from evidence alone")
    model: str
    calibrated: bool = Field(default=False, description="the model's bias is known; without that it can only lower")
    medians: dict[Dimension, float] = Field(default_factory=dict, description="of the usable votes")
    spread: dict[Dimension, int] = Field(default_factory=dict, description="highest less lowest of the usable votes")
    notes: list[str] = Field(default_factory=list, description="where a mark was moved, held or contradicted, and why")
    items: dict[str, str] = Field(default_factory=dict, description="the evidence as the judge saw it, by id")
    votes: list[Vote] = Field(default_factory=list)
    prompt: str = Field(default="", description="SHA-256 of instructions, rubric and texts of the prompt's templates")
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    def dissent(self) -> list[Dimension]:
        """Dimensions on which votes differ by two levels or more."""
        return [name for name in DIMENSIONS if self.spread.get(name, 0) >= 2]
