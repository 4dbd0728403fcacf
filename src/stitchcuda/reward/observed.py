"""All that was seen of one Program, for marks to be given on. Giving them is in ``reward.evidence``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.profiling.sass import KernelSass
from stitchcuda.program.model import Program
from stitchcuda.reward.coverage import Coverage, cover

SHOW = 0.01
"""Own kernels that take, or take over, less of the device time are for show."""
PART = 0.10
"""Own kernels that take over less of the reference's device time do a trivial part of the work."""
MOST = 0.50
"""Own kernels that take over less leave most of the work to stock kernels."""
PLAIN = frozenset(
    {
        "fails_others",
        "fast_math",
        "library_compute",
        "native_loader",
        "no_own_kernel",
        "precision_switch",
        "reduced_precision",
        "slows_others",
    }
)
"""Flags that say how a program works and nothing about its honesty: what it slows, or makes fail,
is timed again without it."""


@dataclass(frozen=True)
class Observed:
    """All that was seen of one Program; what is None was not looked at, and no mark is given for it."""

    evaluation: Evaluation
    reference: Profile | None = None
    profile: Profile | None = None
    """Of the Program, by the same tool as the reference's."""
    sass: Sequence[KernelSass] = ()
    """Of the built Program's library; empty on cpu and without cuobjdump."""
    program: Program | None = None
    step: Step | None = None
    """What the Coder was asked for, where it was one step of a Plan."""
    feedback: Feedback | None = None
    before: Profile | None = None
    """Of the program that the Feedback spoke of."""
    previous: Evaluation | None = None
    """Of the same program."""
    hidden: bool = False
    """The Program could not be profiled where its reference could, at the same time."""

    @cached_property
    def coverage(self) -> Coverage | None:
        """What own kernels took over; None without both Profiles."""
        return cover(self.reference, self.profile) if self.reference and self.profile else None

    @property
    def own(self) -> float | None:
        """Share of the device time in own kernels; None where what ran was not seen."""
        return self.evaluation.census.own if self.evaluation.census else None

    @property
    def done(self) -> float | None:
        """Share of the reference's work that own kernels do, 0 to 1: by both Profiles, else what they take of the time.

        Time alone says little: a kernel whose result nobody needs takes some too, and a good one takes hardly any.
        """
        found = self.coverage
        return found.share if found is not None and found.operators else self.own

    @property
    def host_work(self) -> str:
        """What the host's side of the Program saves, in words; '' where nothing was seen."""
        if self.profile is not None and self.profile.timeline.graph_launches > 0:
            return f"{self.profile.timeline.graph_launches} CUDA graph launches a call"
        found = self.coverage
        if found is not None and 0 < 2 * found.launches_after <= found.launches_before:
            return f"{found.launches_after} launches where the reference has {found.launches_before}"
        return ""

    def flags(self) -> list[str]:
        """The rules of all flags."""
        return sorted({finding.rule for finding in self.evaluation.findings if finding.severity == "flag"})
