"""The three roles as typed calls, whatever mind is behind them (a language model, or recipes).

Requests carry everything a mind may see; a mind keeps no state of its own between calls, so that a
killed run can be resumed by asking again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Idea, Plan, Step
from stitchcuda.agents.references import References
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts


class Attempt(BaseModel):
    """One past try, as later requests show it (at most four are shown)."""

    model_config = ConfigDict(frozen=True)

    number: int = Field(description="the program's number in the run folder")
    idea: str
    step: str
    status: str
    speedup: float | None = Field(default=None, description="over eager")
    over_best: float | None = None
    diagnosis: str = ""
    suggestion: str = ""

    # What follows from other effects is not journaled again.
    draft: int = Field(default=0, exclude=True, description="0, 1, ...: which draft of the idea")
    planned: Step | None = Field(default=None, exclude=True, description="the step that it worked on")
    did: str = Field(default="", exclude=True, description="what its author says of it")
    seconds: float = Field(default=0.0, exclude=True, description="its median call; 0: not timed")
    gain: float | None = Field(default=None, exclude=True, description="over what the step started from")
    within: tuple[float, float] | None = Field(
        default=None, exclude=True, description="between what over_best lies, where the figure is doubtful"
    )
    same_as: int | None = Field(default=None, exclude=True, description="the first program with the same files")


class Room(BaseModel):
    """What is left of the run's budget; None where nothing bounds it."""

    model_config = ConfigDict(frozen=True)

    candidates: int | None = Field(default=None, description="programs, repairs not counted")
    seconds: float | None = Field(default=None, description="of wall time")
    tokens: int | None = Field(default=None, description="input plus output of model requests")
    usd: float | None = Field(default=None, description="dollars of model requests")
    plans: int | None = Field(default=None, description="further plans, this one apart")


class PlanRequest(BaseModel):
    """What the Planner sees."""

    model_config = ConfigDict(frozen=True)

    task: Task
    facts: TaskFacts
    device: Device
    profile: Profile = Field(description="of the reference")
    baselines: dict[str, float] = Field(description="median seconds by baseline")
    attempts: list[Attempt] = Field(default_factory=list, description="when replanning: what was tried")
    tried: list[Attempt] = Field(default_factory=list, description="every attempt so far")
    ideas: list[Attempt] = Field(default_factory=list, description="of every idea tried, its best attempt")
    best: Program | None = Field(default=None, description="the best program so far, from which new ideas start")
    best_number: int | None = Field(default=None, description="its number")
    best_profile: Profile | None = None
    best_speedup: float = Field(default=0.0, description="its over_best")
    best_seconds: float = Field(default=0.0, description="its median call")
    room: Room | None = Field(default=None, description="what is left of the budget; None: not told")
    references: References | None = Field(default=None, description="what was looked up; None when nothing is")

    @property
    def first(self) -> bool:
        """Nothing was tried for a plan yet; a program that the run was given (number 0) is no try."""
        return all(attempt.number == 0 for attempt in self.attempts)


class CodeRequest(BaseModel):
    """What the Coder sees: one Step, the program so far, and the last Feedback on it."""

    model_config = ConfigDict(frozen=True)

    task: Task
    facts: TaskFacts
    device: Device
    idea: Idea
    step: Step
    draft: int = Field(default=0, description="0, 1, ...: which draft of the idea")
    others: dict[int, Attempt | None] = Field(
        default_factory=dict, description="the idea's other drafts, each by its best attempt; None where none is known"
    )
    program: Program | None = Field(default=None, description="the best program so far that this step builds on")
    failed: Program | None = Field(default=None, description="the program that the feedback is about, when repairing")
    feedback: Feedback | None = None
    evaluation: Evaluation | None = None
    outdone: bool = Field(
        default=False, description="evaluation and feedback are of a slower program that was made from ``program``"
    )
    may_refuse: bool = Field(default=False, description="NO GAIN and a reason is an answer, too")
    attempts: list[Attempt] = Field(default_factory=list)
    tried: list[Attempt] = Field(default_factory=list, description="every attempt of earlier rounds and of this turn")
    baselines: dict[str, float] = Field(default_factory=dict, description="median seconds by baseline, where known")
    best_number: int | None = Field(default=None, description="number of the run's best program so far")
    best_speedup: float = Field(default=0.0, description="its over_best")
    best_seconds: float = Field(default=0.0, description="its median call")
    references: References | None = Field(default=None, description="what was looked up; None when nothing is")


class VerifyRequest(BaseModel):
    """What the Verifier sees."""

    model_config = ConfigDict(frozen=True)

    task: Task
    device: Device
    idea: Idea
    step: Step
    program: Program
    evaluation: Evaluation
    gain: float | None = Field(default=None, description="of a correct program, over what its step started from")
    profile: Profile | None = Field(default=None, description="of a correct program")
    reference_profile: Profile | None = None
    unprofiled: str = Field(default="", description="why a correct program has no profile")
    start: int | None = Field(default=None, description="number of the program that it was made from")
    parent: int | None = Field(default=None, description="number of the program whose text it changes")
    parent_program: Program | None = Field(default=None, description="that one: what it repairs, or was made from")
    start_profile: Profile | None = Field(default=None, description="of that one, where the program's own is missing")
    same_as: int | None = Field(default=None, description="number of the first program with the same files")
    baselines: dict[str, float] = Field(default_factory=dict, description="median seconds by baseline, where known")
    best_number: int | None = Field(default=None, description="number of the run's best program so far")
    best_speedup: float = Field(default=0.0, description="its over_best")
    best_seconds: float = Field(default=0.0, description="its median call")
    room: Room | None = Field(default=None, description="what is left of the budget; None: not told")
    attempts: list[Attempt] = Field(default_factory=list)
    last_step: bool = Field(default=False, description="no step of the idea follows")
    references: References | None = Field(default=None, description="what was looked up; None when nothing is")


class NoGain(Exception):
    """A Coder's answer in place of a Program: nothing is to be gained by the Step, and why."""


class NoPlan(Exception):
    """No reply of a Planner held a usable Plan, and what was wrong; it was reached, and asked as often as allowed."""


class Planner(Protocol):
    """Reads the reference and its timeline, writes the to-do list. Raises NoPlan when no answer holds one."""

    def plan(self, request: PlanRequest) -> Plan: ...


class Coder(Protocol):
    """Implements one Step. Raises ProgramError when its answer holds no usable program, and NoGain where it refuses a
    Step that it may refuse."""

    def code(self, request: CodeRequest) -> Program: ...


class Verifier(Protocol):
    """Names what matters and routes what comes next."""

    def verify(self, request: VerifyRequest) -> Feedback: ...


class RequestKey(BaseModel):
    """Where in a run one provider request happens; equal keys and hashes mean the same paid effect."""

    model_config = ConfigDict(frozen=True)

    node: str = Field(description="state-machine node instance, e.g. 'plan#0', 'code#3', set by the workflow")
    role: str
    ordinal: int = Field(description="0, 1, ... within the node: re-asks are paid too")
    request_hash: str


class ReplyRecord(BaseModel):
    """One provider reply as journaled."""

    model_config = ConfigDict(frozen=True)

    key: RequestKey
    reply: dict[str, object] = Field(description="the provider's answer, serialised by the model layer")
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0


class ReplyLog(Protocol):
    """The journal as the model layer sees it. ``node`` is what the workflow is in now."""

    @property
    def node(self) -> str: ...

    def find(self, key: RequestKey) -> ReplyRecord | None: ...

    def append(self, record: ReplyRecord) -> None:
        """Durable when it returns. Raises BudgetExceeded *before* the next request, not here."""


@dataclass(frozen=True)
class Mind:
    """The three roles together, as the workflow gets them."""

    name: str
    """'recipes' or 'openai:NAME'; printed beside every result."""
    planner: Planner
    coder: Coder
    verifier: Verifier
    paid: bool = False
    """Requests cost tokens or money."""
    judge: Verifier | None = None
    """The second role of the coder-judge scheme, where there is one."""
