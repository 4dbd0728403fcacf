"""The data of a training set: one row is one request to the Coder with an answer that was verified.

A row is what the loop would ask: the prompt is rendered by the agents' own templates. Making rows is in ``dataset``,
``dataset_replay`` and ``dataset_worsened``; their file format in ``rows``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.program.model import Program
from stitchcuda.reward.model import Skill
from stitchcuda.task.model import Task, TaskFacts

Purpose = Literal["draft", "repair", "optimise"]
Origin = Literal["journal", "recipes", "worsened"]
Part = Literal["train", "held_out"]


class Row(BaseModel):
    """One request and one verified answer to it."""

    model_config = ConfigDict(frozen=True)

    task: Task
    facts: TaskFacts
    skill: Skill = Field(description="scratch: write from scratch; improve: repair or optimise from feedback")
    purpose: Purpose
    source: Origin = Field(description="a run's journal, recipes' own program, or a program that was made worse")
    fault: str = Field(default="", description="how the previous program was made worse; empty otherwise")
    run: str = Field(default="", description="name of the run's folder, for rows from a journal")
    mind: str = Field(default="recipes", description="who wrote the answer")
    step: Step = Field(description="what was asked for")
    instructions: str = Field(description="the prompt's first part, equal for a whole run")
    message: str = Field(description="the prompt's second part")
    completion: str = Field(description="a verified answer, in the form that a Coder's reply has")
    answer: Program = Field(description="the program in the completion")
    evaluation: Evaluation = Field(description="of the answer")
    previous: Program | None = Field(default=None, description="the program to be improved")
    previous_evaluation: Evaluation | None = None
    feedback: Feedback | None = Field(default=None, description="the Verifier's word on the previous program")
    part: Part = "train"

    @property
    def characters(self) -> tuple[int, int]:
        """Of the prompt and of the completion."""
        return len(self.instructions) + len(self.message), len(self.completion)


class Bounds(BaseModel):
    """How long a row may be, in estimated tokens."""

    model_config = ConfigDict(frozen=True)

    prompt: int = Field(default=8192, gt=0, description="longest prompt, tokens (estimated)")
    completion: int = Field(default=16384, gt=0, description="longest answer, tokens (estimated)")


class Built(BaseModel):
    """What a build gave, and what it left out."""

    model_config = ConfigDict(frozen=True)

    rows: int
    by: dict[str, int] = Field(description="rows by skill, purpose, origin, fault and part")
    tasks: int = Field(description="different tasks among the rows")
    found: int = Field(description="requests that were found or made, before any filter")
    dropped: dict[str, int] = Field(description="requests left out, by the first filter that did")
    skipped: dict[str, str] = Field(default_factory=dict, description="runs or tasks that gave nothing, and why")
    prompt_tokens: list[int] = Field(default_factory=list, description="estimated: median and longest")
    completion_tokens: list[int] = Field(default_factory=list, description="estimated: median and longest")
