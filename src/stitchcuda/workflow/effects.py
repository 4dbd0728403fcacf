"""What the journal holds of each effect, by kind. Data only; provider replies are ``agents.roles.ReplyRecord``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Plan
from stitchcuda.evaluation.model import Evaluation, Timing
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts
from stitchcuda.workflow.budget import Limits


class _Effect(BaseModel):
    model_config = ConfigDict(frozen=True)


class Created(_Effect):
    """The first effect: all that the run was asked."""

    version: int = Field(default=2, description="of the journal's format")
    stitchcuda: str = Field(description="version of the package that began the run")
    config: dict[str, Any]
    task: Task
    device: Device
    base: Program | None = Field(default=None, description="the program to start from")


class Prepared(_Effect):
    """The reference ran, and the device's ceilings are known."""

    facts: TaskFacts
    device: Device


class Stocked(_Effect):
    """Timings of the stock options."""

    timings: dict[str, Timing]


class Profiled(_Effect):
    """A profile, or why there is none."""

    profile: Profile | None = None
    problem: str = ""


class Planned(_Effect):
    """A Plan, or the limit that kept the Planner from answering, or why no answer held a further one."""

    plan: Plan | None = None
    budget: str = ""
    problem: str = ""


class Approved(_Effect):
    """The Plan as a person left it."""

    plan: Plan


class Coded(_Effect):
    """A Program, or why the answer held none, or why the step was refused, or the limit that was reached."""

    number: int = Field(default=0, description="of the program or of the failed answer; 0 where a limit was reached")
    program: Program | None = None
    problem: str = ""
    refused: str = Field(default="", description="why nothing is to be gained by the step; not written where empty")
    budget: str = ""
    candidate: bool = Field(default=True, description="it counts against the limit of candidates")

    @model_serializer(mode="wrap")
    def _without_what_was_not_refused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        if not self.refused:
            found.pop("refused", None)
        return found


class Cut(_Effect):
    """A turn ended before its next program, because the search was over."""

    reason: str


class Extended(_Effect):
    """New limits for a run that had come to its end."""

    limits: Limits


class Measured(_Effect):
    """An Evaluation of the program with this digest."""

    digest: str
    evaluation: Evaluation


class Judged(_Effect):
    """The Verifier's word, or the limit that was reached."""

    feedback: Feedback | None = None
    budget: str = ""
