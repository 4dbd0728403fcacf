"""Budget presets as data: how much a run may try, wait and spend. Enforcing them is the workflow's work."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

BudgetName = Literal["quick", "standard", "deep"]


class Budget(BaseModel):
    """Upper bounds of one run; typical use is about half."""

    model_config = ConfigDict(frozen=True)

    candidates: int = Field(gt=0, description="programs drafted or improved; repairs are not counted")
    seconds: float = Field(gt=0, description="wall time of the whole run")
    tokens: int = Field(ge=0, description="model tokens, input plus output")
    usd: float = Field(ge=0, description="model cost, US dollars")
    ideas: int = Field(default=2, gt=0, description="ideas of a Plan that are followed at once")
    drafts: int = Field(default=2, gt=0, description="independent drafts of an idea's first step")
    rounds: int = Field(default=8, gt=0, description="rounds of improvement")
    repairs: int = Field(default=3, ge=0, description="repairs of one candidate; equal errors twice end them sooner")


PRESETS: dict[BudgetName, Budget] = {
    "quick": Budget(candidates=10, seconds=600, tokens=300_000, usd=0.5, rounds=3),
    "standard": Budget(candidates=40, seconds=3_600, tokens=1_500_000, usd=3.0),
    "deep": Budget(candidates=120, seconds=14_400, tokens=6_000_000, usd=25.0, ideas=3, rounds=20),
}
