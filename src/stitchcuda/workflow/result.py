"""The data of a Result: how a run ended. Written to ``summary.json`` and printed last."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.evaluation.model import Census, Evaluation, Finding, SpeedOfLight, Tier
from stitchcuda.task.model import Precision
from stitchcuda.workflow.budget import Spent

Outcome = Literal["correct", "no_gain", "no_rewrite", "nothing_correct", "awaiting_approval"]
"""correct: a program was found that is proven correct and at least as fast as eager. no_gain: correct ones were found,
all slower than eager. no_rewrite: the Planner found nothing to do. nothing_correct: every attempt failed.
awaiting_approval: the plan lies in the run folder for a look."""

NOISE = 0.02
"""Relative difference between two timings below which they count as equal."""


class Best(BaseModel):
    """The best program of a run."""

    model_config = ConfigDict(frozen=True)

    number: int = Field(description="its number under programs/")
    idea: str
    digest: str
    evaluation: Evaluation


class Result(BaseModel):
    """How a run ended."""

    model_config = ConfigDict(frozen=True)

    status: Outcome
    message: str = Field(description="one sentence: what was found, or why nothing was")
    task: str
    origin: str
    target: str
    device: str
    precision: Precision
    mind: str = Field(description="'recipes' or the model's name")
    run: str = Field(description="the run folder")
    best: str | None = Field(default=None, description="folder of the best program")
    number: int | None = Field(default=None, description="the best program's number under programs/")
    author: str = Field(
        default="", description="who wrote the best program: the mind, 'recipes' beside a model, or 'given' (--from)"
    )
    tier: Tier | None = Field(default=None, description="tier of the figures below")
    over_best: float | None = Field(default=None, description="speedup over the best stock option: the headline")
    speedup: dict[str, float] = Field(default_factory=dict, description="over each stock option, and 'over_best'")
    seconds: dict[str, float] = Field(default_factory=dict, description="median seconds, 'program' and stock options")
    census: Census | None = None
    sol: SpeedOfLight | None = None
    labels: list[str] = Field(default_factory=list)
    findings: list[Finding] = Field(default_factory=list)
    target_speedup: float | None = None
    target_met: bool | None = Field(default=None, description="None: no target was set")
    attempts: int = 0
    stopped: str = Field(default="", description="why the search ended")
    spent: Spent = Field(default_factory=Spent)

    @property
    def exit_code(self) -> int:
        """0: the run did what was asked. 1: the answer is no."""
        if self.status in ("no_gain", "nothing_correct") or self.target_met is False:
            return 1
        return 0


def finite(value: Any) -> Any:
    """The same JSON value with NaN and infinities as null, for readers that follow the standard."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


def score(evaluation: Evaluation) -> float:
    """What programs are ranked by: the speedup over the best stock option, else over eager; 0 when not correct."""
    if not evaluation.passed:
        return 0.0
    return evaluation.speedup.get("over_best", evaluation.speedup.get("eager", 0.0))
