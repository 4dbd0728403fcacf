"""All that was seen of one Program as one document, so that it can be marked or judged again without running anything.

A machine with a GPU often cannot reach a model, and one that can has no GPU: measure on the first, judge on the second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.errors import RewardError
from stitchcuda.evaluation.model import Evaluation, SpeedOfLight
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.profiling.sass import KernelSass
from stitchcuda.program.model import Program
from stitchcuda.reward.model import Skill
from stitchcuda.reward.observed import Observed
from stitchcuda.task.model import Task


class Seen(BaseModel):
    """``Observed`` with its task and device, as data."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    task: Task
    skill: Skill
    evaluation: Evaluation
    device: Device | None = Field(default=None, description="that it was measured on")
    bound: SpeedOfLight | None = Field(default=None, description="of the task, with the reference's fraction of it")
    program: Program | None = None
    reference: Profile | None = None
    profile: Profile | None = None
    sass: list[KernelSass] = Field(default_factory=list)
    step: Step | None = None
    feedback: Feedback | None = None
    before: Profile | None = None
    previous: Evaluation | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        skill: Skill,
        observed: Observed,
        device: Device | None = None,
        bound: SpeedOfLight | None = None,
    ) -> Self:
        """The document of what was seen."""
        return cls(
            task=task,
            skill=skill,
            device=device,
            bound=bound,
            evaluation=observed.evaluation,
            program=observed.program,
            reference=observed.reference,
            profile=observed.profile,
            sass=list(observed.sass),
            step=observed.step,
            feedback=observed.feedback,
            before=observed.before,
            previous=observed.previous,
        )

    @property
    def observed(self) -> Observed:
        """What marks are given on."""
        return Observed(
            evaluation=self.evaluation,
            reference=self.reference,
            profile=self.profile,
            sass=self.sass,
            program=self.program,
            step=self.step,
            feedback=self.feedback,
            before=self.before,
            previous=self.previous,
        )


def read_seen(path: Path) -> Seen:
    """The document in a file. Raises RewardError where it is none."""
    try:
        return Seen.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RewardError(f"{path} cannot be read ({error}); 'rubric TASK PROGRAM --keep FILE' writes one") from None
    except ValidationError as error:
        first = " ".join(str(error).splitlines()[:3])
        raise RewardError(
            f"{path} is not what was seen of a program ({first}); 'rubric TASK PROGRAM --keep FILE' writes one"
        ) from None
