"""What the workflow tells the world while it runs. Data only; how it is shown is ``report.terminal``'s business."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stitchcuda.agents.roles import Attempt
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.task.model import Task
from stitchcuda.workflow.budget import Spent
from stitchcuda.workflow.result import Result


@dataclass(frozen=True)
class RunStarted:
    """A run begins, or goes on: then ``served`` effects come from its journal."""

    folder: Path
    task: Task
    mind: str
    resumed: bool


@dataclass(frozen=True)
class DeviceFound:
    """What the run measures on."""

    device: Device


@dataclass(frozen=True)
class StateEntered:
    """The state machine moved on; ``detail`` says to what, in words."""

    state: str
    node: str
    detail: str
    replayed: bool


@dataclass(frozen=True)
class BaselinesMeasured:
    """Median seconds of the stock options."""

    seconds: dict[str, float]


@dataclass(frozen=True)
class ProfileTaken:
    """Of the reference (``number`` None) or of a program."""

    profile: Profile
    number: int | None


@dataclass(frozen=True)
class PlanMade:
    """The Planner answered."""

    summary: str
    ideas: list[str]
    replayed: bool


@dataclass(frozen=True)
class AttemptFinished:
    """A program was written and judged; ``best`` when it leads now."""

    attempt: Attempt
    best: bool
    replayed: bool
    message: str = ""


@dataclass(frozen=True)
class SpentSoFar:
    """What the run has used of its budget."""

    spent: Spent


@dataclass(frozen=True)
class Notice:
    """One sentence for people."""

    text: str
    replayed: bool = False


@dataclass(frozen=True)
class RunFinished:
    """The run is over; ``result`` is what summary.json holds."""

    result: Result
    profile: Profile | None = field(default=None)


Event = (
    RunStarted
    | DeviceFound
    | StateEntered
    | BaselinesMeasured
    | ProfileTaken
    | PlanMade
    | AttemptFinished
    | SpentSoFar
    | Notice
    | RunFinished
)


class EventSink(Protocol):
    """Whoever listens. Must not raise and should return fast: the workflow waits for it."""

    def emit(self, event: Event) -> None: ...


class Silent:
    """A sink that drops everything."""

    def emit(self, event: Event) -> None:
        """Do nothing."""
