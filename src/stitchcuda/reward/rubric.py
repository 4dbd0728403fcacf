"""The scorecard as data: four dimensions with five anchored levels, in one version a skill, read from ``rubrics/``.

What a single task asks for beyond it is ``reward.task_rubric``; marks are given in ``reward.evidence``.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stitchcuda.reward.model import DIMENSIONS, Dimension, Skill


class Criterion(BaseModel):
    """One dimension: the question, and what must be seen for each level."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dimension: Dimension
    question: str
    levels: list[str] = Field(min_length=5, max_length=5, description="for 1 to 5, lowest first")


class Rubric(BaseModel):
    """All four dimensions, for one skill."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skill: Skill
    version: int = Field(ge=1, description="raised whenever an anchor changes its meaning")
    criteria: list[Criterion]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if [criterion.dimension for criterion in self.criteria] != list(DIMENSIONS):
            raise ValueError(f"a rubric has exactly these dimensions, in this order: {', '.join(DIMENSIONS)}")
        return self

    def criterion(self, dimension: Dimension) -> Criterion:
        """The criterion of one dimension."""
        return self.criteria[DIMENSIONS.index(dimension)]

    def anchor(self, dimension: Dimension, score: float) -> str:
        """What the level says that a score has reached."""
        return self.criterion(dimension).levels[int(score) - 1]


@cache
def load(skill: Skill) -> Rubric:
    """The rubric of a skill, as this package has it."""
    text = resources.files("stitchcuda.reward").joinpath("rubrics", f"{skill}.toml").read_text(encoding="utf-8")
    return Rubric.model_validate(tomllib.loads(text))
