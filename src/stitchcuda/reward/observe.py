"""Everything that marks rest on, taken for one Program: evaluation, profile beside its reference, machine code.

What cannot be taken is left out and said: marks are then bounded by what was not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.evaluation.bounds import speed_of_light
from stitchcuda.evaluation.build import Build, build
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.model import SpeedOfLight, Tier
from stitchcuda.hardware.model import Device
from stitchcuda.profiling import sass
from stitchcuda.profiling.capture import Subject
from stitchcuda.profiling.measure import measure
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.reward.observed import Observed
from stitchcuda.task.model import Task, TaskFacts


@dataclass
class Observer:
    """Looks at Programs for one Task on one device; ``remark`` gets a sentence for whatever could not be seen."""

    task: Task
    facts: TaskFacts
    device: Device
    evaluator: Evaluator
    cache: Path
    """Where builds are kept."""
    counters: int = 0
    """So many of a Program's longest kernels are also read by Nsight Compute, cuda only."""
    remark: Callable[[str], None] = field(default=lambda text: None)
    _reference: Profile | None = None

    def observe(
        self,
        program: Program,
        tier: Tier = "screen",
        *,
        step: Step | None = None,
        improves: Program | None = None,
        feedback: Feedback | None = None,
    ) -> Observed:
        """Evaluate and profile ``program``, and before it the one that it ``improves``.

        A Program that is not correct is not profiled: nothing that it does counts. Raises TaskError when the task
        cannot be evaluated.
        """
        previous = self.evaluator.evaluate(improves, tier) if improves is not None else None
        before = None
        if improves is not None and previous is not None and previous.passed:
            before = self._profile(improves)
        evaluation = self.evaluator.evaluate(program, tier)
        profile, code = None, list[sass.KernelSass]()
        if evaluation.passed:
            built = self._build(program)
            profile = self._profile(program, built)
            code = self._code(built)
        return Observed(
            evaluation=evaluation,
            reference=self.reference() if evaluation.passed else None,
            profile=profile,
            sass=code,
            program=program,
            step=step,
            feedback=feedback,
            before=before,
            previous=previous,
        )

    def reference(self) -> Profile | None:
        """The Profile of the task's own program, taken once; None where no profiler works."""
        if self._reference is None:
            self._reference = self._measured(Subject(self.task, self.facts, None))
        return self._reference

    def bound(self) -> SpeedOfLight | None:
        """The speed of light of the task, with the fraction that its reference reaches."""
        found = self.reference()
        if found is None:
            return None
        wall = found.timeline.wall_seconds
        return speed_of_light(self.evaluator.plan["work"], self.device, self.task.precision, wall)

    def _build(self, program: Program) -> Build:
        return build(program, self.task.target, cache=self.cache, precision=self.task.precision)

    def _profile(self, program: Program, built: Build | None = None) -> Profile | None:
        built = built or self._build(program)
        if built.folder is None:
            return None
        return self._measured(Subject(self.task, self.facts, built.folder), program, built.kernels)

    def _measured(
        self, subject: Subject, program: Program | None = None, kernels: tuple[str, ...] = ()
    ) -> Profile | None:
        try:
            taken = measure(
                subject,
                self.device,
                program=program,
                kernels=kernels,
                counters=self.counters if program is not None else 0,
                flops=self.evaluator.plan["work"]["flops"] if program is not None else 0.0,
            )
        except (ToolMissing, ProfilerError) as error:
            self.remark(f"not profiled: {error}")
            return None
        return taken.profile

    def _code(self, built: Build) -> list[sass.KernelSass]:
        if self.task.target.kind != "cuda" or built.folder is None:
            return []
        found = []
        for library in sorted(built.folder.glob("*.so")):
            try:
                found += sass.read(library)
            except (ToolMissing, ProfilerError) as error:
                self.remark(f"machine code not read: {error}")
        return found
