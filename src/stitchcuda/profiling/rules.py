"""The bottleneck label: a small decision tree over one profiled call, with the numbers behind its answer.

Pure functions of data. What to do about a bottleneck is in ``profiling.remedies``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stitchcuda.hardware.model import Device
from stitchcuda.profiling.families import Family, family
from stitchcuda.profiling.model import Bottleneck, Cause, Idle, KernelTime, Timeline
from stitchcuda.task.model import Precision

BOTTLENECK_OF: dict[Cause, Bottleneck] = {
    "dram_bandwidth": "memory_bound",
    "l2_bandwidth": "memory_bound",
    "l1_bandwidth": "memory_bound",
    "uncoalesced": "memory_bound",
    "bank_conflicts": "memory_bound",
    "spilling": "memory_bound",
    "atomics": "memory_bound",
    "fma_pipe": "compute_bound",
    "no_tensor_cores": "compute_bound",
    "tensor_pipe": "compute_bound",
    "fp64_pipe": "compute_bound",
    "sfu_pipe": "compute_bound",
    "integer_pipe": "compute_bound",
    "divergence": "compute_bound",
    "occupancy_registers": "latency_bound",
    "occupancy_shared_memory": "latency_bound",
    "occupancy_block_size": "latency_bound",
    "global_latency": "latency_bound",
    "shared_latency": "latency_bound",
    "dependency": "latency_bound",
    "barrier": "latency_bound",
    "few_blocks": "latency_bound",
    "tail": "latency_bound",
    "imbalance": "latency_bound",
    "launch_overhead": "launch_bound",
    "host_sync": "sync_bound",
    "pageable_copies": "copy_bound",
    "host_copies": "copy_bound",
    "allocation": "host_bound",
    "host_work": "host_bound",
    "none": "unknown",
}
"""The coarse word for each cause."""

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

SYNC_EACH = 0.30
"""Calls that wait for the device, per launch, from which waiting is why the host is late with launches."""
PAGEABLE = 0.50
"""Pageable memory's part of the copies from which it is what makes them slow."""


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
    """Three significant digits, in ms or, below 0.1 ms, in us, or, from 1 s on, in s."""
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
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


def call_cause(timeline: Timeline, device: Device | None = None) -> tuple[Cause, str]:
    """Why the call's device time is not all there is: copies, gaps and what the host did meanwhile, tiny kernels.

    Finer than ``judge`` where the timeline tells what the host did; 'none' where the device is busy with long
    kernels, whose own causes are ``profiling.diagnosis``'s. On cpu always 'none': nothing is launched there.
    """
    wall, busy, launches = timeline.wall_seconds, timeline.busy_seconds, timeline.launches
    if wall <= 0 or (device is not None and device.target.kind == "cpu"):
        return "none", "no device timeline"
    idle = timeline.idle_seconds
    copying = min(timeline.copy_seconds + idle.get("copy", 0.0), wall)
    if copying >= COPY_SHARE * wall:
        pageable = timeline.pageable_seconds >= PAGEABLE * timeline.copy_seconds > 0
        seen = f"copies from or to the host take {milliseconds(copying)} of {milliseconds(wall)} ({copying / wall:.0%})"
        if pageable:
            return "pageable_copies", f"{seen}, {timeline.pageable_seconds / timeline.copy_seconds:.0%} of it pageable"
        return "host_copies", seen
    gap = timeline.gap_seconds
    seen = f"the device idles {milliseconds(gap)} of {milliseconds(wall)} ({gap / wall:.0%})"
    if gap >= GAP_SHARE * wall:
        return _idle_cause(timeline, seen)
    mean = busy / max(launches, 1)
    if launches >= MANY_LAUNCHES and mean <= SHORT_KERNEL:
        return "launch_overhead", f"{launches} kernels of {milliseconds(mean)} on average, {seen}"
    return "none", f"{seen}; {launches} kernels of {milliseconds(mean)} on average"


_IDLE_CAUSES: dict[Idle, Cause] = {
    "launch": "launch_overhead",
    "synchronise": "host_sync",
    "copy": "pageable_copies",
    "allocation": "allocation",
    "host": "host_work",
}


def _idle_cause(timeline: Timeline, seen: str) -> tuple[Cause, str]:
    """What the host did in most of the idle time."""
    launches = max(timeline.launches, 1)
    idle = timeline.idle_seconds
    if not idle:
        each = timeline.gap_seconds / launches
        if timeline.synchronisations >= SYNC_EACH * launches and timeline.synchronisations > 2:
            return "host_sync", f"{seen}, with {timeline.synchronisations} waits for the device"
        if launches >= MANY_LAUNCHES and each <= LAUNCH_GAP:
            return "launch_overhead", f"{seen} over {launches} launches"
        return "host_work", f"{seen} with {launches} launches"
    most = max(idle, key=lambda kind: idle[kind])
    cause = _IDLE_CAUSES[most]
    told = f"{seen}; the host spends {milliseconds(idle[most])} of it in {_IDLE_TOLD[most]}"
    if most == "copy":
        # Copies of small pieces: what costs is the call, whichever memory it reads.
        pageable = timeline.pageable_seconds >= PAGEABLE * timeline.copy_seconds > 0
        return ("pageable_copies" if pageable else "host_copies"), told
    if timeline.allocations >= SYNC_EACH * launches and timeline.allocations > 2 and most in ("synchronise", "launch"):
        # Freeing memory waits for the device, so that an allocating loop shows as waiting.
        return "allocation", f"{told}; {timeline.allocations} allocations and frees"
    if most == "launch" and timeline.synchronisations >= SYNC_EACH * launches and timeline.synchronisations > 2:
        # After each wait the queue is empty: the next launch is late because of the wait.
        return "host_sync", f"{told}; {timeline.synchronisations} waits for the device come before"
    return cause, told


_IDLE_TOLD: dict[Idle, str] = {
    "launch": "launching kernels",
    "synchronise": "waiting for the device",
    "copy": "copying",
    "allocation": "allocating and freeing device memory",
    "host": "work of its own",
}
