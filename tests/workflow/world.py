"""A small world for the workflow's own logic: a bench whose readings are chosen by the program's text, and a mind that
answers from a table. The real evaluator, models and command line are used in ``tests/cli``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stitchcuda.agents.feedback import Feedback, Route
from stitchcuda.agents.plan import Idea, Plan, Step
from stitchcuda.agents.roles import CodeRequest, Mind, PlanRequest, VerifyRequest
from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.model import Census, Evaluation, SpeedOfLight, Status, Tier, Timing
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile, Timeline
from stitchcuda.program.model import ENTRY, Program
from stitchcuda.task.model import Target, Task, TaskFacts
from stitchcuda.workflow import events
from stitchcuda.workflow.approval import Ask, approval, later
from stitchcuda.workflow.budget import Limits
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.journal import Journal
from stitchcuda.workflow.machine import Machine
from stitchcuda.workflow.result import Result

TARGET = Target(kind="cpu", arch="native")
TASK = Task(name="toy", origin="toy.py", source="class Model: ...\n", target=TARGET)
DEVICE = Device(target=TARGET, name="toy cpu", multiprocessors=1, memory_bytes=1, cache_bytes=1)
FACTS = TaskFacts(
    inputs=[],
    outputs=[],
    parameters=0,
    stochastic=False,
    seedable=False,
    training=False,
    mutates_state=False,
    eager_seconds=0.01,
)


def program(text: str) -> Program:
    """A program that the bench reads its verdict from: 'correct 1.5' or a bad status, and anything to tell it apart."""
    return Program(files={ENTRY: f"# {text}\nclass ModelNew:\n    pass\n"})


def words(written: Program) -> str:
    """What ``program`` was given."""
    return written.files[ENTRY].splitlines()[0].removeprefix("# ")


class ToyBench:
    """Reads verdicts from programs; counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def inspect(self, task: Task) -> TaskFacts:
        self.asked.append("inspect")
        return FACTS

    def ceilings(self, device: Device) -> Device:
        return device

    def use(self, task: Task, facts: TaskFacts, device: Device) -> None:
        pass

    def baselines(self) -> dict[str, Timing]:
        self.asked.append("baselines")
        return {"eager": _timing(0.010), "compile": _timing(0.008)}

    def evaluate(self, program: Program, tier: Tier) -> Evaluation:
        text = words(program)
        self.asked.append(f"evaluate {tier} {text}")
        if tier == "publish" and "flaky" in text:
            return _evaluation("crashed", tier, 0.0)
        match = re.search(r"correct ([0-9.]+)", text)
        if match is None:
            status: Status = "build_failed" if "build" in text else "wrong_output"
            return _evaluation(status, tier, 0.0, text)
        return _evaluation("correct", tier, float(match[1]))

    def profile(self, program: Program | None, counters: int = 0) -> Profile:
        counted = f" counting {counters}" if counters else ""
        self.asked.append(f"profile {'reference' if program is None else words(program)}{counted}")
        line = Timeline(wall_seconds=0.01, busy_seconds=0.009, gap_seconds=0.001, copy_seconds=0, launches=3)
        return Profile(
            subject="reference" if program is None else "program",
            source="toy",
            timeline=line,
            kernels=[],
            bottleneck="memory_bound",
            evidence="because it is so",
        )


def _timing(seconds: float) -> Timing:
    return Timing(median=seconds, p10=seconds, p90=seconds, n=20)


def _evaluation(status: Status, tier: Tier, over_best: float, text: str = "") -> Evaluation:
    good = status == "correct"
    timings = {"program": _timing(0.008 / over_best), "eager": _timing(0.010)} if good else {}
    return Evaluation(
        status=status,
        message=f"{status} {text}",
        tier=tier,
        precision="fp32",
        timings=timings,
        speedup={"eager": over_best * 1.25, "compile": over_best, "over_best": over_best} if good else {},
        census=Census(own=0.9, library=0.1, framework=0.0, label="hybrid", source="toy") if good else None,
        sol=SpeedOfLight(fraction=min(1.0, 0.2 * over_best), bound_seconds=0.001, binds="memory") if good else None,
    )


def idea(name: str, steps: Sequence[str] = ("one",)) -> Idea:
    """An idea with steps by these titles."""
    return Idea(
        name=name,
        rationale="",
        steps=[Step(title=title, operators=[], fusion="", acceptance="") for title in steps],
    )


@dataclass
class ToyMind:
    """Answers from tables: programs by 'idea/step' in the order of asking, routes by the program's words."""

    plans: list[list[Idea]]
    programs: dict[str, list[str]]
    routes: dict[str, Route] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    code_requests: list[CodeRequest] = field(default_factory=list)
    plan_requests: list[PlanRequest] = field(default_factory=list)
    verify_requests: list[VerifyRequest] = field(default_factory=list)
    before: Callable[[str], None] = lambda what: None
    paid: bool = False

    def mind(self) -> Mind:
        """As the workflow takes it."""
        return Mind(name="toy", planner=self, coder=self, verifier=self, paid=self.paid)

    def plan(self, request: PlanRequest) -> Plan:
        self._count("plan")
        self.plan_requests.append(request)
        place = min(1 if request.attempts else 0, len(self.plans) - 1)
        return Plan(summary="a plan", bottleneck="memory", ideas=self.plans[place])

    def code(self, request: CodeRequest) -> Program:
        key = f"{request.idea.name}/{request.step.title}"
        self._count(f"code {key}")
        self.code_requests.append(request)
        answers = self.programs[key]
        # Stateless, as a mind must be: which answer it is follows from the attempts that were made on this step.
        tries = sum(1 for text in answers if request.failed and text == words(request.failed))
        place = answers.index(words(request.failed)) + 1 if tries and request.failed else 0
        if request.failed is None and request.program is not None and words(request.program) in answers:
            place = answers.index(words(request.program)) + 1
        place += request.draft
        text = answers[min(place, len(answers) - 1)]
        if text == "nothing":
            raise ProgramError("the reply holds no code block")
        return program(text)

    def verify(self, request: VerifyRequest) -> Feedback:
        text = words(request.program)
        self._count(f"verify {text}")
        self.verify_requests.append(request)
        good = request.evaluation.passed
        route = self.routes.get(text, "next" if good else "retry")
        return Feedback(
            route=route,
            diagnosis=f"diagnosis of {text}",
            evidence="",
            suggestion="",
            fingerprint="" if good else text,
        )

    def _count(self, what: str) -> None:
        self.before(what)
        self.asked.append(what)


def config(**values: object) -> RunConfig:
    """Settings of a toy run."""
    return RunConfig.model_validate({"task": "toy.py", "beam": 2, "drafts": 1, **values})


class Ear:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def emit(self, event: events.Event) -> None:
        self.events.append(event)

    def states(self) -> list[str]:
        """Names of the states passed through."""
        return [event.state for event in self.events if isinstance(event, events.StateEntered)]


class Killed(BaseException):
    """As sudden as a kill within one process can be."""


EXTENDED = config(replans=0, beam=1, iterations=1)
"""Settings of a run that ends with its first program, until it is given more."""


def in_turn(programs: Sequence[str]) -> ToyMind:
    """Ideas a, b, ..., each with its program."""
    names = [chr(ord("a") + place) for place in range(len(programs))]
    table = {f"{name}/one": [text] for name, text in zip(names, programs, strict=True)}
    return ToyMind([[idea(name) for name in names]], table)


def stopping_at_the_last(programs: Sequence[str]) -> ToyMind:
    """The same, killed where the last program would be written."""
    mind = in_turn(programs)
    last = list(mind.programs)[-1]

    def die(what: str) -> None:
        if what == f"code {last}":
            raise Killed

    mind.before = die
    return mind


def extended(parent: Path, programs: Sequence[str]) -> RunFolder:
    """A run that ended with the first of these programs, was given room for all of them, and stopped at the last."""
    folder = new_folder(parent, EXTENDED)
    go(folder, in_turn(programs), settings=EXTENDED)
    more = EXTENDED.limits().model_copy(update={"iterations": len(programs)})
    with contextlib.suppress(Killed):
        go(folder, stopping_at_the_last(programs), settings=EXTENDED, resumed=True, more=more)
    return folder


def new_folder(parent: Path, settings: RunConfig) -> RunFolder:
    """A run folder with an empty journal."""
    folder = RunFolder.new(parent, TASK, settings)
    Journal.create(folder.path).close()
    return folder


def go(
    folder: RunFolder,
    mind: ToyMind,
    *,
    settings: RunConfig | None = None,
    bench: ToyBench | None = None,
    ear: events.EventSink | None = None,
    base: Program | None = None,
    ask: Ask = later,
    resumed: bool = False,
    more: Limits | None = None,
    journal: Journal | None = None,
) -> Result:
    """Start or resume a toy run; all journaled effects are served. ``journal``: the folder's, where it is open."""
    with contextlib.nullcontext(journal) if journal else Journal.open(folder.path) as journal:
        machine = Machine(
            settings or config(),
            TASK,
            DEVICE,
            journal=journal,
            folder=folder,
            bench=bench or ToyBench(),
            mind=mind.mind(),
            sink=ear or Ear(),
            approve=approval(folder, resumed=resumed, ask=ask),
            base=base,
            more=more,
        )
        return machine.run()
