"""What a run's journal tells, without taking part in the run: for showing runs that go on, stopped or ended."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.plan import Plan
from stitchcuda.agents.roles import Attempt, ReplyRecord
from stitchcuda.profiling.model import Profile
from stitchcuda.workflow import effects
from stitchcuda.workflow.budget import Spent
from stitchcuda.workflow.folder import RunFolder, listed
from stitchcuda.workflow.records import NAME, Record, read_records, wall_seconds
from stitchcuda.workflow.result import Result


class Story(BaseModel):
    """A run as its journal tells it."""

    model_config = ConfigDict(frozen=True)

    run: str
    status: str = Field(description="a Result's status, or 'running', 'interrupted', 'awaiting_approval'")
    task: str = ""
    mind: str = ""
    device: str = ""
    baselines: dict[str, float] = Field(default_factory=dict, description="median seconds of the stock options")
    reference: Profile | None = None
    plans: list[Plan] = Field(default_factory=list)
    attempts: list[Attempt] = Field(default_factory=list)
    best: int | None = Field(default=None, description="number of the best program so far")
    spent: Spent = Field(default_factory=Spent)
    result: Result | None = None


def read_story(folder: RunFolder) -> Story:
    """Read a run's journal. Raises RunError when it is missing or damaged."""
    records, _ = read_records(folder.path / NAME)
    entry = listed(folder.path)
    teller = _Teller()
    for record in records:
        teller.take(record)
    return Story(
        run=str(folder.path),
        status=entry.status,
        task=entry.task,
        mind=entry.mind,
        device=teller.device,
        baselines=teller.baselines,
        reference=teller.reference,
        plans=teller.plans,
        attempts=teller.attempts,
        best=teller.best,
        spent=Spent.of(teller.replies, iterations=len(teller.attempts), seconds=wall_seconds(records)),
        result=folder.summary(),
    )


class _Teller:
    """Gathers the story line by line."""

    def __init__(self) -> None:
        self.device = ""
        self.baselines: dict[str, float] = {}
        self.reference: Profile | None = None
        self.plans: list[Plan] = []
        self.attempts: list[Attempt] = []
        self.replies: list[ReplyRecord] = []
        self.best: int | None = None

    def take(self, record: Record) -> None:
        """One record."""
        match record.kind:
            case "prepared":
                self.device = effects.Prepared.model_validate(record.data).device.name
            case "baselines":
                timings = effects.Stocked.model_validate(record.data).timings
                self.baselines = {name: timing.median for name, timing in timings.items() if timing.n}
            case "profile" if record.node.startswith("reference"):
                self.reference = effects.Profiled.model_validate(record.data).profile
            case "plan":
                plan = effects.Planned.model_validate(record.data).plan
                self.plans += [plan] if plan else []
            case "attempt":
                attempt = Attempt.model_validate(record.data["attempt"])
                self.attempts.append(attempt)
                if record.data["leads"]:
                    self.best = attempt.number
            case "reply":
                self.replies.append(ReplyRecord.model_validate(record.data))
