"""From a completion to its reward, as pure steps: what is to be scored, reading it, and the number that results.

Measuring is in ``reward.service``; nothing here runs a program.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.agents.reading import read_program
from stitchcuda.errors import ProgramError
from stitchcuda.program.model import Program
from stitchcuda.reward.formula import reward
from stitchcuda.reward.model import DIMENSIONS, Reward, RewardSettings, RubricScore, Skill
from stitchcuda.reward.observed import Observed
from stitchcuda.task.model import Task

NO_PROGRAM = "no_program"
LONGEST = 1 << 20
"""Characters of a completion that is read; none that is longer holds a Program a person would want."""


@dataclass(frozen=True)
class Item:
    """One completion to be scored, with what the Coder had been asked for."""

    task: Task
    completion: str
    """The Coder's whole reply; it is read as every reply of a Coder is."""
    skill: Skill = "scratch"
    previous: Program | None = None
    """The program that was to be improved: search/replace blocks edit it, and marks compare with it."""
    feedback: Feedback | None = None
    """What it was to be improved by."""
    step: Step | None = None
    """The step of a Plan that was asked for; what speed is then measured against says ``pays_over_previous``."""

    @property
    def digest(self) -> str:
        """SHA-256 over all of it."""
        parts = [
            task_key(self.task),
            self.skill,
            self.previous.digest if self.previous else "",
            self.feedback.model_dump_json() if self.feedback else "",
            self.step.model_dump_json() if self.step else "",
            self.completion,
        ]
        return hashed(*parts)


class Unscored(BaseModel):
    """No reward: the machine failed, not the program. The sample leaves its group; it is never a zero."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["infrastructure", "measurement"] = Field(
        description="infrastructure: the machine or the pool failed; measurement: a number that cannot be"
    )
    reason: str
    tries: int = Field(description="how often it was tried")


RewardOutcome: TypeAlias = Reward | Unscored


def hashed(*parts: str) -> str:
    """SHA-256 over texts that cannot run into each other."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def dumped(value: BaseModel) -> bytes:
    """JSON in which NaN and infinities survive: a number that cannot be is refused later, not read as a missing one."""
    return json.dumps(value.model_dump(mode="json"), separators=(",", ":")).encode()


def task_key(task: Task) -> str:
    """What tells measurements of one task from another's: its digest, and where its code and compiler look."""
    return f"{task.digest}:{task.target.kind}:{task.target.arch}:{task.search_path or ''}"


def read_completion(item: Item) -> Program:
    """The Program in the completion. Raises ProgramError, in words that can be sent back to the model."""
    if len(item.completion) > LONGEST:
        raise ProgramError(f"the reply has {len(item.completion):,} characters; at most {LONGEST:,} are read")
    try:
        return read_program(item.completion, item.previous, item.task.target.kind)
    except (RecursionError, ValueError, MemoryError) as error:
        raise ProgramError(f"the reply's code cannot be read: {type(error).__name__}") from None


def unreadable(item: Item, error: ProgramError, settings: RewardSettings) -> Reward:
    """The reward of a completion that holds no Program: zero, and why."""
    return Reward(
        value=0.0,
        skill=item.skill,
        correct=False,
        hack=False,
        status=NO_PROGRAM,
        reason=str(error)[:500],
        settings=settings,
    )


def pays_over_previous(skill: Skill, step: Step | None) -> bool:
    """Whether speed counts over the program so far, as for a step that is written from scratch on top of it.

    Not for *improve*: the program to be improved may have been made worse on purpose, and over that one a return to
    stock kernels would be worth as much as the best of kernels.
    """
    return step is not None and skill == "scratch"


def rewarded(item: Item, observed: Observed, marks: RubricScore, settings: RewardSettings) -> Reward:
    """The reward of what was seen.

    Raises InfrastructureError and RewardError as ``reward.formula`` does.
    """
    before = observed.previous if pays_over_previous(item.skill, item.step) else None
    found = reward(
        observed.evaluation,
        marks,
        item.skill,
        settings,
        previous=before if before is not None and before.passed else None,
    )
    evaluation = observed.evaluation
    return found.model_copy(
        update={
            "status": evaluation.status,
            "reason": "" if found.value else evaluation.message[:500],
            "marks": {name: marks.marks[name].score for name in DIMENSIONS},
        }
    )
