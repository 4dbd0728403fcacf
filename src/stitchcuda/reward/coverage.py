"""Which of the reference's device time a Program's own kernels took over: from two Profiles, weighted by time.

Names cannot buy anything here: what a library does under another name is the library's, and own kernels that hardly run
cover hardly anything.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from stitchcuda.profiling.diagnosis import short
from stitchcuda.profiling.families import Family, family
from stitchcuda.profiling.model import KernelTime, Profile
from stitchcuda.profiling.profiler import SHOWN

LIBRARY_GAIN = 4.0
"""A library's other kernel for the same work is taken to be at most so many times faster than the one it replaces."""
OWN_GAIN = 20.0
"""Own kernels are taken to do at most so many times their own time of the reference's work."""
DOMINANT = 0.8
"""The dominant operators are the longest ones that together take this share of the reference's device time."""


@dataclass(frozen=True)
class Operator:
    """One operator of the reference: its share of the device time, and how much of that own kernels took over."""

    name: str
    family: Family
    seconds: float
    share: float
    covered: float
    """0 to 1."""


@dataclass(frozen=True)
class Coverage:
    """All operators of the reference by falling time, and the share of its device time that is covered, 0 to 1."""

    share: float
    operators: list[Operator]
    launches_before: int
    launches_after: int

    @property
    def dominant(self) -> list[Operator]:
        """The longest operators that together take ``DOMINANT`` of the time."""
        return dominant(self.operators)


def operators(reference: Profile) -> list[Operator]:
    """The reference's operators by falling time, none of them covered; copies apart."""
    return _operators(_work(reference), {})


def dominant(found: list[Operator]) -> list[Operator]:
    """The first of ``found`` that together take ``DOMINANT`` of the time."""
    chosen, taken = [], 0.0
    for operator in found:
        if taken >= DOMINANT:
            break
        chosen.append(operator)
        taken += operator.share
    return chosen


def cover(reference: Profile, program: Profile) -> Coverage:
    """Match kernels by name; what is gone counts as covered as far as no library or framework kernel came for it.

    A kernel that still runs covers the share of its calls that are gone; one that is too short for a full list of the
    Program's kernels is taken to still run. Newcomers of a library or the framework are charged against what is gone of
    the same family of work, ``LIBRARY_GAIN`` times over, and against all that is gone where nothing of their family is.
    In the end own kernels cover at most ``OWN_GAIN`` times their own time.
    """
    before, after = _work(reference), _work(program)
    unseen = min(kernel.seconds for kernel in program.kernels) if len(program.kernels) >= SHOWN else 0.0
    known = {short(kernel.name) for kernel in before}
    calls: defaultdict[str, float] = defaultdict(float)
    newcomers: defaultdict[Family, float] = defaultdict(float)
    own = 0.0
    for kernel in after:
        if kernel.origin == "own":
            own += kernel.seconds
        elif short(kernel.name) in known:
            calls[short(kernel.name)] += kernel.calls
        else:
            newcomers[family(kernel.name, kernel.operator)] += kernel.seconds
    once: defaultdict[str, float] = defaultdict(float)
    for kernel in before:
        once[short(kernel.name)] += kernel.calls
    gone: dict[int, float] = {}
    by_family: defaultdict[Family, float] = defaultdict(float)
    for at, kernel in enumerate(before):
        name = short(kernel.name)
        kept = min(calls.get(name, 0.0) / once[name], 1.0) if once[name] > 0 else float(name in calls)
        if name not in calls and kernel.seconds <= unseen:
            kept = 1.0
        gone[at] = kernel.seconds * (1 - kept)
        by_family[family(kernel.name, kernel.operator)] += gone[at]
    rest = sum(seconds for kind, seconds in newcomers.items() if by_family.get(kind, 0.0) == 0)
    left: dict[int, float] = {}
    for at, kernel in enumerate(before):
        kind = family(kernel.name, kernel.operator)
        charged = min(LIBRARY_GAIN * newcomers.get(kind, 0.0), by_family[kind])
        left[at] = gone[at] * (1 - charged / by_family[kind]) if by_family[kind] > 0 else 0.0
    total = sum(left.values())
    possible = min(max(total - rest, 0.0), OWN_GAIN * own)
    scale = possible / total if total > 0 else 0.0
    covered = {at: seconds * scale for at, seconds in left.items()}
    busy = sum(kernel.seconds for kernel in before)
    return Coverage(
        share=sum(covered.values()) / busy if busy > 0 else 0.0,
        operators=_operators(before, covered),
        launches_before=reference.timeline.launches,
        launches_after=program.timeline.launches,
    )


def label(kernel: KernelTime) -> str:
    """What people call the kernel's work: the operator that launched it where it is known."""
    return kernel.operator or short(kernel.name)[:80]


def _work(profile: Profile) -> list[KernelTime]:
    return [kernel for kernel in profile.kernels if kernel.origin != "copy" and kernel.seconds > 0]


def _operators(kernels: list[KernelTime], covered: dict[int, float]) -> list[Operator]:
    seconds: defaultdict[str, float] = defaultdict(float)
    done: defaultdict[str, float] = defaultdict(float)
    kinds: dict[str, Family] = {}
    for at, kernel in enumerate(kernels):
        name = label(kernel)
        seconds[name] += kernel.seconds
        done[name] += covered.get(at, 0.0)
        kinds.setdefault(name, family(kernel.name, kernel.operator))
    busy = sum(seconds.values())
    found = [Operator(name, kinds[name], s, s / busy, min(done[name] / s, 1.0)) for name, s in seconds.items()]
    return sorted(found, key=lambda operator: -operator.seconds)
