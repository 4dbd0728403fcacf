"""What the workflow measures with, behind one interface: this machine's evaluator and profiler, or a compute place that
does the same work elsewhere.

What measures starts when the first live measurement needs it, so that replaying a journal costs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from stitchcuda.errors import ComputeError, DeviceError, InfrastructureError, NotMeasured, RunError, TaskError
from stitchcuda.evaluation.model import Evaluation, Tier, Timing
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts

if TYPE_CHECKING:
    from stitchcuda.compute.model import Compute, Job, Kind, Outcome, Wanted
    from stitchcuda.evaluation.evaluator import Evaluator
    from stitchcuda.evaluation.settings import EvaluationSettings


class Bench(Protocol):
    """Measures one Task on one Device."""

    def inspect(self, task: Task) -> TaskFacts:
        """Run the reference once. Raises TaskError when it does not run."""
        ...

    def ceilings(self, device: Device) -> Device:
        """The same device with its measured ceilings."""
        ...

    def use(self, task: Task, facts: TaskFacts, device: Device) -> None:
        """What the calls below are about."""
        ...

    def baselines(self) -> dict[str, Timing]:
        """The stock options, screen tier."""
        ...

    def evaluate(self, program: Program, tier: Tier) -> Evaluation:
        """Never raises for the Program's faults."""
        ...

    def profile(self, program: Program | None, counters: int = 0) -> Profile:
        """Where time goes; None is the reference. ``counters``: of so many kernels hardware counters are read."""
        ...


class LocalBench:
    """This machine."""

    def __init__(self, cache: Path, settings: EvaluationSettings | None = None) -> None:
        self.cache = cache
        self.settings = settings
        self._stack = ExitStack()
        self._about: tuple[Task, TaskFacts, Device] | None = None
        self._evaluator: Evaluator | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._evaluator = None
        self._stack.close()

    def inspect(self, task: Task) -> TaskFacts:
        """Run the reference once, in a process of its own."""
        from stitchcuda import nursery
        from stitchcuda.task.inspect import inspect_task

        if nursery.forks(task.target.kind):
            nursery.expect()
        return inspect_task(task)

    def ceilings(self, device: Device) -> Device:
        """Measured, or from the cache of an earlier run."""
        from stitchcuda.hardware.ceilings import measure

        if device.ceilings is not None:
            return device
        return device.model_copy(update={"ceilings": measure(device, self.cache)})

    def use(self, task: Task, facts: TaskFacts, device: Device) -> None:
        """Remember what to measure; nothing starts yet."""
        self._about = (task, facts, device)

    def baselines(self) -> dict[str, Timing]:
        """The stock options, from the cache where they were measured before."""
        return self._open().baselines(tier="screen")

    def evaluate(self, program: Program, tier: Tier) -> Evaluation:
        """Build, check and time a Program."""
        return self._open().evaluate(program, tier=tier)

    def profile(self, program: Program | None, counters: int = 0) -> Profile:
        """A profiling pass of its own, never while a clock counts."""
        from stitchcuda.profiling.looking import look

        return look(self._open(), program, cache=self.cache, counters=counters)

    def _known(self) -> tuple[Task, TaskFacts, Device]:
        if self._about is None:
            raise InfrastructureError("The bench was asked to measure before it was told what; this is a bug.")
        return self._about

    def _open(self) -> Evaluator:
        if self._evaluator is None:
            from stitchcuda.evaluation.evaluator import Evaluator
            from stitchcuda.hardware.detect import detect

            task, facts, device = self._known()
            here = detect(device.target.kind)
            if here.name != device.name:
                raise RunError(
                    f"This run measured on '{device.name}', and this machine has '{here.name}': their times do not "
                    "compare. Resume it there, or start a new run here with --from its best program."
                )
            self._evaluator = self._stack.enter_context(
                Evaluator(task, facts, device, cache=self.cache, settings=self.settings)
            )
        return self._evaluator


class ComputeBench:
    """A compute place; several threads may measure at the same time. Whoever opened the place closes it."""

    concurrent = True
    """Says so to the workflow, which otherwise lets one measure at a time."""

    def __init__(self, compute: Compute, settings: EvaluationSettings | None = None) -> None:
        self.compute = compute
        self._settings = settings
        self._about: tuple[Task, TaskFacts, Device] | None = None
        self._run = self._device = ""
        self._asked: Counter[str] = Counter()
        self._naming = threading.Lock()

    def of_run(self, run: str, device: str = "") -> None:
        """Name jobs by the run, what they ask, and how often that was asked: a run that was killed and is resumed finds
        on a spool what was measured meanwhile, instead of having it measured twice. ``device``: the name of the one
        that the run measures on, where its task is to fit too."""
        self._run, self._device = run, device

    def inspect(self, task: Task) -> TaskFacts:
        """Run the reference once, there."""
        facts = self._done("inspect", _wanted(task.target.kind, self._device), task=task).facts
        assert facts is not None
        return facts

    def ceilings(self, device: Device) -> Device:
        """Measured there, or from that machine's cache."""
        if device.ceilings is not None:
            return device
        found = self._done("ceilings", _wanted(device.target.kind, device.name)).device
        assert found is not None
        return device.model_copy(update={"ceilings": found.ceilings})

    def use(self, task: Task, facts: TaskFacts, device: Device) -> None:
        """Remember what to measure."""
        self._about = (task, facts, device)

    def baselines(self) -> dict[str, Timing]:
        """The stock options, from that machine's cache where they were measured before."""
        timings = self._done("baselines", self._wanted(), **self._known()).baselines
        assert timings is not None
        return timings

    def evaluate(self, program: Program, tier: Tier) -> Evaluation:
        """Build, check and time a Program; what fails there is an ``infrastructure_error``."""
        job = self._job("evaluate", self._wanted(), program=program, tier=tier, **self._known())
        return self._wait(job).evaluated(job)

    def profile(self, program: Program | None, counters: int = 0) -> Profile:
        """A profiling pass of its own, never while a clock counts there."""
        profile = self._done("profile", self._wanted(), program=program, counters=counters, **self._known()).profile
        assert profile is not None
        return profile

    def _known(self) -> dict[str, Any]:
        if self._about is None:
            raise InfrastructureError("The bench was asked to measure before it was told what; this is a bug.")
        task, facts, device = self._about
        return {"task": task, "facts": facts, "device": device}

    def _wanted(self) -> Wanted:
        device: Device = self._known()["device"]
        return _wanted(device.target.kind, device.name)

    def _job(self, kind: Kind, wanted: Wanted, **fields: Any) -> Job:
        from stitchcuda.compute.model import Job

        given = {"settings": self._settings} if self._settings is not None else {}
        job = Job(kind=kind, wanted=wanted, **given, **fields)
        if not self._run:
            return job
        with self._naming:
            name = f"{self._run} {job.digest} {self._asked[job.digest]}"
            self._asked[job.digest] += 1
        return job.model_copy(update={"id": hashlib.sha256(name.encode()).hexdigest()[:32]})

    def _wait(self, job: Job) -> Outcome:
        try:
            future = self.compute.submit(job)
        except InfrastructureError as error:
            raise NotMeasured(str(error)) from None
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _done(self, kind: Kind, wanted: Wanted, **fields: Any) -> Outcome:
        outcome = self._wait(self._job(kind, wanted, **fields))
        if outcome.failure is None:
            return outcome
        match outcome.failure.reason:
            case "task":
                raise TaskError(outcome.failure.message)
            case "cancelled":
                raise NotMeasured(outcome.failure.message)
            case "version_mismatch" | "no_device":
                raise ComputeError(outcome.failure.message)
            case _:
                raise InfrastructureError(outcome.failure.message)


def _wanted(kind: Literal["cuda", "cpu"], name: str = "") -> Wanted:
    from stitchcuda.compute.model import Wanted

    return Wanted(kind=kind, name=name)


_shared: dict[str, tuple[Compute, int]] = {}
_sharing = threading.Lock()


@contextlib.contextmanager
def shared_compute(where: str) -> Iterator[Compute]:
    """The compute place of this process under that name: opened by the first that asks, closed after the last. Raises
    as ``open_compute`` does."""
    from stitchcuda.compute import check_where, open_compute

    where = check_where(where)  # however a spool's folder is spelled, it is one place
    with _sharing:
        compute, users = _shared[where] if where in _shared else (open_compute(where), 0)
        _shared[where] = (compute, users + 1)
    try:
        yield compute
    finally:
        with _sharing:
            users = _shared[where][1] - 1
            if users:
                _shared[where] = (compute, users)
            else:
                del _shared[where]
        if not users:
            compute.close()


@contextlib.contextmanager
def open_bench(where: str, cache: Path, kind: Literal["cuda", "cpu"] = "cpu") -> Iterator[Bench]:
    """What ``--compute`` names: this machine's evaluator in this process, a process for each of several GPUs, or the
    place elsewhere. Raises StitchError for other words."""
    from stitchcuda.compute.devices import visible_gpus

    if where == "local" and (kind == "cpu" or len(visible_gpus()) < 2):
        with LocalBench(cache) as bench:
            yield bench
    else:
        with shared_compute(where) as compute:
            yield ComputeBench(compute)


def find_kind(where: str, target: Literal["auto", "cuda", "cpu"]) -> Literal["cuda", "cpu"]:
    """What ``target`` comes to there: ``auto`` is a GPU where one is to be had.

    Raises DeviceError or ComputeError where that cannot be told, or is not on this machine.
    """
    from stitchcuda.hardware.detect import detect

    if where == "local":
        return detect(target).target.kind
    if target != "auto":
        return target
    with shared_compute(where) as compute:
        kinds = compute.capacity().kinds
    if not kinds:
        raise ComputeError(
            f"nobody works at {where} yet, so what the target is cannot be told; say --target cuda or --target cpu, or "
            "start a worker first"
        )
    return kinds[0]


def find_device(where: str, target: Literal["auto", "cuda", "cpu"], name: str = "") -> Device:
    """The device that runs there measure on; waits for a worker on a spool that has none yet.

    ``target`` as in ``find_kind``. ``name``: no other than this one. Raises DeviceError or ComputeError where there is
    none.
    """
    from stitchcuda.hardware.detect import detect

    if where == "local":
        here = detect(target)
        if name and here.name != name:
            raise DeviceError(
                f"everything so far was measured on '{name}', and this machine has '{here.name}': their times do not "
                "compare. Go on where that device is, or start anew here."
            )
        return here
    with shared_compute(where) as compute:
        found = ComputeBench(compute)._done("ceilings", _wanted(find_kind(where, target), name)).device
    assert found is not None
    return found
