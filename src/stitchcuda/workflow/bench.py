"""What the workflow measures with, behind one interface: the local machine's evaluator and profiler.

The evaluator's processes start when the first live measurement needs them, so that replaying a journal costs nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from stitchcuda.errors import InfrastructureError, RunError
from stitchcuda.evaluation.model import Evaluation, Tier, Timing
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator


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

    def profile(self, program: Program | None) -> Profile:
        """Where time goes; None is the reference."""
        ...


class LocalBench:
    """This machine."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
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

        if task.target.kind == "cpu":
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

    def profile(self, program: Program | None) -> Profile:
        """A profiling pass of its own, never while a clock counts."""
        from stitchcuda.profiling.profiler import profile

        evaluator = self._open()
        task, facts, device = self._known()
        return profile(
            evaluator.trace(program),
            subject="reference" if program is None else "program",
            device=device,
            facts=facts,
            precision=task.precision,
            flops=evaluator.plan["work"]["flops"],
        )

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
            self._evaluator = self._stack.enter_context(Evaluator(task, facts, device, cache=self.cache))
        return self._evaluator
