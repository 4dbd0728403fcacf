"""The bottleneck label: a small decision tree over one profiled call, with the numbers behind its answer.

Pure functions of data. What to do about a bottleneck is in ``profiling.remedies``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stitchcuda.hardware.model import Device
from stitchcuda.profiling.families import Family, family
from stitchcuda.profiling.model import Bottleneck, KernelTime, Timeline
from stitchcuda.task.model import Precision

COPY_SHARE = 0.30
"""Host-device copies take this share of the wall time: copies are what to work on."""
GAP_SHARE = 0.30
"""The device (or the operators) idle this share of the wall time: the host side is what to work on."""
LAUNCH_GAP = 30e-6
"""Seconds of gap per launch up to which the gap is launch and dispatch overhead; above, other host work."""
SHORT_KERNEL = 6e-6
"""Seconds; kernels shorter than this on average are latency, not work."""
MANY_LAUNCHES = 10
"""Fewer launches than this do not make a program launch or latency bound."""
FAMILY_SHARE = 0.50
"""A family of kernels with this share of the busy time decides the label."""
NEAR_BOUND = 0.50
"""A hardware bound that explains this share of the busy time decides the label."""


@dataclass(frozen=True)
class Work:
    """What one call must do at least, whatever the program."""

    bytes: float
    """Inputs, outputs and parameters, each moved once."""
    flops: float = 0.0
    """Floating-point operations of matrix products and convolutions; 0 where they were not counted."""
    precision: Precision = "fp32"
    """Which matrix rate of the device's ceilings applies."""


@dataclass(frozen=True)
class Bounds:
    """Least seconds for a Work on a device; None where a ceiling or the work is unknown."""

    memory: float | None = None
    compute: float | None = None

    @property
    def largest(self) -> float:
        """The bound that binds, 0.0 when none is known."""
        return max(self.memory or 0.0, self.compute or 0.0)


@dataclass(frozen=True)
class Verdict:
    """A label and the one sentence of numbers it rests on."""

    bottleneck: Bottleneck
    evidence: str


def bounds(device: Device | None, work: Work | None) -> Bounds:
    """Roofline bounds of ``work``: bytes over copy bandwidth, FLOP over the fastest rate that meets its class."""
    if device is None or device.ceilings is None or work is None:
        return Bounds()
    ceilings = device.ceilings
    bandwidth, rate = ceilings.copy_bytes_per_second, ceilings.rate(work.precision)
    return Bounds(
        memory=work.bytes / bandwidth if bandwidth > 0 else None,
        compute=work.flops / rate if rate > 0 and work.flops > 0 else None,
    )


def shares(kernels: Sequence[KernelTime]) -> dict[Family, float]:
    """Share of the busy time by family of work, over the kernels given."""
    total: dict[Family, float] = {}
    for kernel in kernels:
        kind = family(kernel.name, kernel.operator)
        total[kind] = total.get(kind, 0.0) + kernel.share
    return total


def milliseconds(seconds: float) -> str:
    """Three significant digits, in ms or, below 0.1 ms, in us."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.3g} us"


def judge(timeline: Timeline, kernels: Sequence[KernelTime], device: Device | None, work: Work | None) -> Verdict:
    """Walk the tree: nothing seen, copies, gaps, short or serial kernels, hardware bounds, families of kernels."""
    on_cpu = device is not None and device.target.kind == "cpu"
    unit = "operators" if on_cpu else "kernels"
    wall, busy = timeline.wall_seconds, timeline.busy_seconds
    if wall <= 0 or (busy <= 0 and timeline.launches == 0):
        return Verdict("unknown", f"the trace shows no {unit} in {milliseconds(max(wall, 0.0))} of wall time")
    family_shares = shares(kernels)

    if not on_cpu and timeline.copy_seconds >= COPY_SHARE * wall:
        return Verdict(
            "copy_bound",
            f"copies take {milliseconds(timeline.copy_seconds)} of {milliseconds(wall)}"
            f" ({timeline.copy_seconds / wall:.0%} of the call)",
        )
    if timeline.gap_seconds >= GAP_SHARE * wall:
        return _gaps(timeline, family_shares, unit)

    mean = busy / max(timeline.launches, 1)
    if timeline.launches >= MANY_LAUNCHES and mean <= SHORT_KERNEL:
        return Verdict(
            "latency_bound",
            f"{timeline.launches} {unit} of {milliseconds(mean)} on average: too short to fill the device",
        )
    recurrent = family_shares.get("recurrent", 0.0)
    if recurrent >= FAMILY_SHARE:
        return Verdict(
            "latency_bound", f"recurrent {unit} take {recurrent:.0%} of the busy time, one time step after the other"
        )
    return _by_work(busy, family_shares, bounds(device, work), unit)


def _gaps(timeline: Timeline, family_shares: dict[Family, float], unit: str) -> Verdict:
    """Which kind of host work leaves the device idle."""
    gap, launches = timeline.gap_seconds, timeline.launches
    seen = f"idle {milliseconds(gap)} of {milliseconds(timeline.wall_seconds)} ({gap / timeline.wall_seconds:.0%})"
    if "synchronise" in family_shares:
        return Verdict("sync_bound", f"{seen}, with synchronising operators in the forward pass")
    each = gap / max(launches, 1)
    if launches >= MANY_LAUNCHES and each <= LAUNCH_GAP:
        return Verdict("launch_bound", f"{seen} over {launches} {unit}: {milliseconds(each)} of gap for each")
    return Verdict("host_bound", f"{seen} with only {launches} {unit}: the host does other work in between")


def _by_work(busy: float, family_shares: dict[Family, float], limit: Bounds, unit: str) -> Verdict:
    """Busy device: memory or compute, by the roofline where it explains the time, else by what runs."""
    memory, compute = limit.memory or 0.0, limit.compute or 0.0
    parts = [f"{milliseconds(least)} for {what}" for least, what in ((memory, "bytes"), (compute, "FLOP")) if least > 0]
    roofline = "least time " + ", ".join(parts)
    binds: Bottleneck = "memory_bound" if memory >= compute else "compute_bound"
    if limit.largest >= NEAR_BOUND * busy > 0:
        return Verdict(binds, f"{roofline}, of {milliseconds(busy)} busy: {limit.largest / busy:.0%} is explained")

    matrix = family_shares.get("matrix", 0.0)
    moving = sum(family_shares.get(kind, 0.0) for kind in ("pointwise", "reduction", "copy"))
    known = f"; {roofline}" if limit.largest > 0 else ""
    if matrix >= FAMILY_SHARE:
        # Products of few rows move their weights more than they compute; that shows once FLOP are counted.
        skinny = limit.compute is not None and memory > compute
        return Verdict(
            "memory_bound" if skinny else "compute_bound",
            f"matrix products and convolutions take {matrix:.0%} of {milliseconds(busy)} busy{known}",
        )
    if moving >= FAMILY_SHARE:
        return Verdict(
            "memory_bound",
            f"pointwise, reduction and copy {unit}, which move bytes more than they compute, take {moving:.0%}"
            f" of {milliseconds(busy)} busy{known}",
        )
    if matrix or moving:
        return Verdict(
            "compute_bound" if matrix >= moving else "memory_bound",
            f"matrix {unit} take {matrix:.0%} and byte-moving {unit} {moving:.0%} of {milliseconds(busy)} busy{known}",
        )
    if limit.largest > 0:
        return Verdict(binds, f"{roofline}, of {milliseconds(busy)} busy")
    return Verdict("unknown", f"{milliseconds(busy)} busy in {unit} whose names tell nothing and no measured ceilings")
