"""What a run's journal tells, without taking part in the run: for showing runs that go on, stopped or ended."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.plan import Plan
from stitchcuda.agents.roles import Attempt, ReplyRecord
from stitchcuda.profiling.model import Profile
from stitchcuda.workflow import effects
from stitchcuda.workflow.budget import Spent
from stitchcuda.workflow.folder import RunFolder, listed
from stitchcuda.workflow.records import NAME, Record, ends, read_records, wall_seconds
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
    result: Result | None = Field(default=None, description="how it ended; None while it has not")
    earlier: Result | None = Field(default=None, description="how one that goes on had ended before it was given more")


def read_story(folder: RunFolder) -> Story:
    """Read a run's journal. Raises RunError when it is missing or damaged."""
    records, _ = read_records(folder.path / NAME)
    entry = listed(folder.path)
    teller = _Teller()
    for record in records:
        teller.take(record)
    result = folder.summary() if records and ends(records[-1]) else None
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
        spent=Spent.of(teller.replies, iterations=teller.iterations, seconds=wall_seconds(records)),
        result=result,
        earlier=teller.earlier if result is None else None,
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
        self.ended: Result | None = None
        """How it ended last."""
        self.earlier: Result | None = None
        """How it had ended before it was given more."""
        self._candidates: set[int] = set()
        """Numbers of programs that count against the limit."""

    @property
    def iterations(self) -> int:
        """Candidates that were judged."""
        return sum(attempt.number in self._candidates for attempt in self.attempts)

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
            case "program":
                coded = effects.Coded.model_validate(record.data)
                self._candidates |= {coded.number} if coded.candidate and not coded.budget else set()
            case "attempt":
                attempt = Attempt.model_validate(record.data["attempt"])
                self.attempts.append(attempt)
                if record.data["leads"]:
                    self.best = attempt.number
            case "result":
                self.ended = Result.model_validate(record.data)
                self.best = self.ended.number
            case "extended":
                self.earlier = self.ended
            case "reply":
                self.replies.append(ReplyRecord.model_validate(record.data))
