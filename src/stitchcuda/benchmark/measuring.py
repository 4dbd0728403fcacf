"""What measures for the items of a sweep, with a note of what each measurement took, so that a resumed sweep knows too.

Items that run side by side send their measurements to one compute place, which lets one clock count at a time on each
device; a sweep that does one item after the other on this machine measures in its own process.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stitchcuda.benchmark.governor import Governor
from stitchcuda.benchmark.model import SweepConfig
from stitchcuda.compute.folders import data_folder
from stitchcuda.evaluation.model import Evaluation, Tier, Timing
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts
from stitchcuda.workflow.bench import Bench, ComputeBench, LocalBench, find_device, shared_compute

if TYPE_CHECKING:
    from stitchcuda.compute.model import Capacity, Compute, Job, Outcome

HELD = "measured.jsonl"
"""File of a sweep's item with what each of its measurements took."""


class Notes:
    """The file that measurements are noted in; several threads may write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()

    def add(self, kind: str, seconds: float) -> None:
        """One more."""
        with self._guard, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "seconds": round(seconds, 3)}) + "\n")


def measured_seconds(path: Path) -> float:
    """Sum of what an item's measurements took, seconds; 0.0 where none was made."""
    total = 0.0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return 0.0
    for line in lines:
        try:
            total += float(json.loads(line)["seconds"])
        except (ValueError, KeyError, TypeError):
            continue  # the line that a killed process was writing
    return total


class Place:
    """Where a sweep's items measure; a context manager."""

    def __init__(self, config: SweepConfig, governor: Governor) -> None:
        self._config, self._governor = config, governor
        wide = config.stock == "all"
        self._settings = EvaluationSettings(max_autotune=True, channels_last=True) if wide else EvaluationSettings()
        self._stack = ExitStack()
        self._compute: Compute | None = None
        self._device: Device | None = None

    def __enter__(self) -> Self:
        if self._config.compute != "local" or self._config.jobs > 1:
            self._compute = self._stack.enter_context(shared_compute(self._config.compute))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def device(self) -> Device:
        """What all items measure on: the sweep's own where it is known, else found once, waiting as ``find_device``
        does. Raises as that does."""
        if self._device is None:
            config = self._config
            self._device = find_device(config.compute, config.target, config.device or "")
        return self._device

    def abandon(self) -> None:
        """End what is being measured, so that whoever waits for it goes on."""
        if self._compute is not None:
            self._compute.close()

    @contextmanager
    def bench(self, folder: Path) -> Iterator[Bench]:
        """For one item, whose notes lie in ``folder``."""
        notes = Notes(folder / HELD)
        if self._compute is not None:
            yield ComputeBench(NotedCompute(self._compute, self._governor, notes), self._settings)
        else:
            with LocalBench(data_folder(), self._settings) as bench:
                yield NotedBench(bench, self._governor, notes)


class NotedCompute:
    """A ``Compute`` that notes what each job ran for, without its time in the queue."""

    def __init__(self, compute: Compute, governor: Governor, notes: Notes) -> None:
        self._compute, self._governor, self._notes = compute, governor, notes

    def submit(self, job: Job) -> Future[Outcome]:
        """See ``Compute``. Raises Stopped when the sweep is asked to stop."""
        self._governor.check()
        future = self._compute.submit(job)
        future.add_done_callback(lambda done: self._note(job, done))
        return future

    def _note(self, job: Job, done: Future[Outcome]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._notes.add(job.kind, done.result().run_seconds)

    def capacity(self) -> Capacity:
        """See ``Compute``."""
        return self._compute.capacity()

    def close(self) -> None:
        """Whoever opened the place closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class NotedBench:
    """A ``Bench`` that notes what each measurement took."""

    def __init__(self, bench: Bench, governor: Governor, notes: Notes) -> None:
        self._bench, self._governor, self._notes = bench, governor, notes

    @contextmanager
    def _noted(self, kind: str) -> Iterator[None]:
        self._governor.check()
        began = time.monotonic()
        try:
            yield
        finally:
            self._notes.add(kind, time.monotonic() - began)

    def inspect(self, task: Task) -> TaskFacts:
        """See ``Bench``."""
        with self._noted("inspect"):
            return self._bench.inspect(task)

    def ceilings(self, device: Device) -> Device:
        """See ``Bench``."""
        with self._noted("ceilings"):
            return self._bench.ceilings(device)

    def use(self, task: Task, facts: TaskFacts, device: Device) -> None:
        """See ``Bench``."""
        self._bench.use(task, facts, device)

    def baselines(self) -> dict[str, Timing]:
        """See ``Bench``."""
        with self._noted("baselines"):
            return self._bench.baselines()

    def evaluate(self, program: Program, tier: Tier) -> Evaluation:
        """See ``Bench``."""
        with self._noted("evaluate"):
            return self._bench.evaluate(program, tier)

    def profile(self, program: Program | None, counters: int = 0) -> Profile:
        """See ``Bench``."""
        with self._noted("profile"):
            return self._bench.profile(program, counters)
