"""What could be changed about one profiled call, each with an Amdahl-style prediction of its gain.

A prediction is the time that the change removes if it works as the named constants assume; the rest of the
call stays. It ranks changes; it promises nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stitchcuda.hardware.model import Device
from stitchcuda.profiling.families import Family, family
from stitchcuda.profiling.model import Cause, KernelTime, Timeline
from stitchcuda.profiling.rules import SYNC_EACH, Work, bounds, milliseconds

GRAPH_NODE_SECONDS = 1e-6
"""What still lies between two kernels inside a CUDA graph."""
FUSION_SAVES = 0.5
"""Fusing a producer with its consumer saves a write and a read of the value between: half of what both move."""
PERSISTENT_SAVES = 0.5
"""A recurrent layer as one persistent kernel against one launch or grid-wide step per time step."""
PINNING_SAVES = 0.5
"""Pinned against pageable host memory: the share of a copy's time that the staging buffer costs."""
REACHABLE_RATE = 0.8
"""Share of the measured matrix rate that a well-chosen algorithm reaches."""
NOTHING = "no change with a predicted gain of 2% or more stands out"
"""What is suggested where nothing is."""
WORTH_NAMING = 1.02
"""Predicted gains below this drown in the noise of measuring."""

FASTER_THAN_CORES = 1.25
"""Products that run so much faster than the measured fp32 rate are on tensor cores already."""
SPLIT = (
    "each fp32 operand split into two fp16 parts, three products summed in fp32 (keeps the fp32 class; plain TF32 does"
    " not)"
)
"""How tensor cores give products as accurate as fp32's own (``hardware.model.Ceilings.rate``)."""

FIRST: dict[Cause, tuple[str, str]] = {
    "dram_bandwidth": (
        "move_fewer_bytes",
        "fuse it with the kernels that write its inputs or read its outputs, or store in a narrower type",
    ),
    "l2_bandwidth": ("reuse_on_chip", "tile so that each value is read once from L2 and reused from shared memory"),
    "l1_bandwidth": (
        "reuse_in_registers",
        "let each thread compute more outputs from values it holds in registers, with 16-byte shared memory accesses",
    ),
    "uncoalesced": (
        "coalesce",
        "let neighbouring threads touch neighbouring addresses: swap the index that threads run over, transpose through"
        " shared memory, or change the layout",
    ),
    "bank_conflicts": (
        "avoid_bank_conflicts",
        "pad the shared array's row by one element, or swizzle the column with the row",
    ),
    "spilling": (
        "avoid_spills",
        "raise the register limit (launch bounds, maxrregcount), split the kernel or keep fewer values at once; index"
        " arrays of a thread with constants only",
    ),
    "atomics": (
        "aggregate_atomics",
        "reduce within the warp and block first, so that one thread a block updates the address",
    ),
    "fma_pipe": ("compute_less", "remove or share arithmetic: hoist what repeats, use packed or narrower types"),
    "no_tensor_cores": (
        "use_tensor_cores",
        f"put the product on tensor cores: {SPLIT}; in fp16 or bf16 where that is the class",
    ),
    "tensor_pipe": (
        "compute_less",
        "use wgmma with operands in shared memory where mma.sync runs, or fewer or narrower products",
    ),
    "fp64_pipe": ("lower_precision", "compute in fp32, with compensated sums where accuracy needs them"),
    "sfu_pipe": (
        "cheaper_functions",
        "evaluate part of the special functions by polynomials on the multiply-add pipe, or once for many outputs",
    ),
    "integer_pipe": (
        "fewer_integer_operations",
        "take index arithmetic out of the loop: strength-reduce, use 32-bit offsets, divide by constants",
    ),
    "divergence": (
        "straighten_branches",
        "give the threads of a warp the same path: sort or compact the work, or let whole warps take one case",
    ),
    "occupancy_registers": (
        "fewer_registers",
        "need fewer registers a thread: launch bounds, smaller tiles a thread, or recompute what is rarely used",
    ),
    "occupancy_shared_memory": (
        "less_shared_memory",
        "take less shared memory a block: smaller tiles, fewer stages, narrower types, or registers",
    ),
    "occupancy_block_size": ("resize_block", "use blocks of 128 to 256 threads, so that more warps are resident"),
    "global_latency": (
        "more_loads_in_flight",
        "have more loads in flight: unroll with independent loads, prefetch the next tile (cp.async), wider loads",
    ),
    "shared_latency": (
        "more_independent_work",
        "give each thread several independent outputs, and load the next operands before the current are used",
    ),
    "dependency": (
        "more_independent_work",
        "break the chain: several independent accumulators a thread, or more threads a block",
    ),
    "barrier": (
        "fewer_barriers",
        "synchronise less: smaller blocks, warp shuffles in place of shared memory, double buffering",
    ),
    "few_blocks": ("more_blocks", "split the work into more blocks: smaller tiles, or split the reduced dimension"),
    "tail": (
        "resize_grid",
        "choose the tile so that blocks fill whole waves, or walk the tiles with one resident wave of blocks",
    ),
    "imbalance": (
        "balance_blocks",
        "give blocks equal work: hand out small pieces from a counter, longest first, or split the long ones",
    ),
    "launch_overhead": ("cuda_graph", "capture the whole forward pass in one CUDA graph, and fuse the short kernels"),
    "host_sync": (
        "remove_sync",
        "keep values on the device: no item(), nonzero() or synchronise between the launches",
    ),
    "pageable_copies": ("pin_memory", "copy from and to pinned host memory, asynchronously"),
    "host_copies": ("overlap_copies", "overlap the copies with compute, in chunks on a second stream"),
    "allocation": ("reuse_allocations", "allocate once before the call and reuse, or use the stream-ordered pool"),
    "host_work": ("move_to_device", "do on the device, or before the call, what the host computes in between"),
    "none": ("none", NOTHING),
}
"""What to try first about a cause: a key for programs, and a sentence."""


@dataclass(frozen=True)
class Remedy:
    """One change and the seconds per call it may save."""

    change: str
    saved_seconds: float

    def gain(self, wall_seconds: float) -> float:
        """Predicted speedup of the whole call: wall / (wall - saved), at least 1 and at most 100."""
        if wall_seconds <= 0:
            return 1.0
        return 1.0 / (1.0 - min(max(self.saved_seconds, 0.0) / wall_seconds, 0.99))


def remedies(
    timeline: Timeline, kernels: Sequence[KernelTime], device: Device | None, work: Work | None
) -> list[Remedy]:
    """Every change that applies, largest predicted saving first."""
    on_cpu = device is not None and device.target.kind == "cpu"
    # Where kernels overlap, a second of kernel time is less than a second of the call.
    wall_per_busy = min(1.0, timeline.wall_seconds / timeline.busy_seconds) if timeline.busy_seconds > 0 else 1.0
    seconds: dict[Family, float] = {}
    calls: dict[Family, int] = {}
    for kernel in kernels:
        kind = family(kernel.name, kernel.operator)
        seconds[kind] = seconds.get(kind, 0.0) + kernel.seconds * wall_per_busy
        calls[kind] = calls.get(kind, 0) + kernel.calls
    found = [
        *_host(timeline, on_cpu, "synchronise" in seconds),
        *_fusion(timeline, seconds, calls, on_cpu),
        *_matrix(seconds, device, work),
    ]
    if not on_cpu and timeline.pageable_seconds > 0:
        # A pinned copy runs at the link's rate; through the driver's staging buffer at about half of it or less.
        saved = PINNING_SAVES * timeline.pageable_seconds + timeline.idle_seconds.get("copy", 0.0)
        found.append(Remedy(FIRST["pageable_copies"][1], min(saved, timeline.wall_seconds)))
    if not on_cpu and timeline.copy_seconds > 0:
        hidden = min(timeline.copy_seconds, max(timeline.wall_seconds - timeline.copy_seconds, 0.0))
        found.append(Remedy("pin host memory and overlap the copies with compute, in chunks", hidden))
    if seconds.get("recurrent", 0.0) > 0:
        change = "run each recurrent layer as one persistent kernel that keeps its weights on chip"
        if on_cpu:
            change = "run each recurrent layer as one native loop over time with its weights in cache"
        found.append(Remedy(change, PERSISTENT_SAVES * seconds["recurrent"]))
    return sorted((r for r in found if r.saved_seconds > 0), key=lambda r: -r.saved_seconds)


def suggestion(timeline: Timeline, kernels: Sequence[KernelTime], device: Device | None, work: Work | None) -> str:
    """The change with the largest predicted gain in one sentence, or that none is worth naming."""
    wall = timeline.wall_seconds
    best = next(iter(remedies(timeline, kernels, device, work)), None)
    if best is None or best.gain(wall) < WORTH_NAMING:
        return NOTHING
    saved = min(best.saved_seconds, wall)
    return f"{best.change} (predicted {best.gain(wall):.2f}x: saves {milliseconds(saved)} of {milliseconds(wall)})"


def _host(timeline: Timeline, on_cpu: bool, synchronises: bool) -> list[Remedy]:
    """Changes that close gaps."""
    gap, launches = timeline.gap_seconds, timeline.launches
    if gap <= 0:
        return []
    allocating = timeline.idle_seconds.get("allocation", 0.0)
    if not on_cpu and allocating >= gap / 2:
        return [Remedy(FIRST["allocation"][1], allocating)]
    if synchronises or timeline.synchronisations >= max(SYNC_EACH * launches, 3):
        return [Remedy("keep values on the device: take item(), nonzero() and the like out of forward", gap)]
    if on_cpu:
        return [Remedy("make the sequence of operators one native call, which leaves no dispatch in between", gap)]
    return [
        Remedy("capture the whole forward pass in one CUDA graph", gap - GRAPH_NODE_SECONDS * launches),
    ]


def _fusion(timeline: Timeline, seconds: dict[Family, float], calls: dict[Family, int], on_cpu: bool) -> list[Remedy]:
    """Fusing the byte-moving kernels with one another."""
    moving = seconds.get("pointwise", 0.0) + seconds.get("reduction", 0.0)
    count = calls.get("pointwise", 0) + calls.get("reduction", 0)
    if count < 2 or moving <= 0:
        return []
    removed = count // 2
    gap_each = timeline.gap_seconds / max(timeline.launches, 1)
    saved = FUSION_SAVES * moving + removed * gap_each
    unit = "operators" if on_cpu else "kernels"
    return [Remedy(f"fuse the {count} pointwise and reduction {unit} with their neighbours", saved)]


def _matrix(seconds: dict[Family, float], device: Device | None, work: Work | None) -> list[Remedy]:
    """Bringing matrix products and convolutions to the measured rate."""
    spent, least = seconds.get("matrix", 0.0), bounds(device, work).compute
    if spent <= 0 or least is None or least <= 0:
        return []
    change = (
        "bring matrix products and convolutions nearer the measured rate:"
        " another layout or library algorithm, or several small products batched into one"
    )
    if _off_tensor_cores(spent, device, work):
        change = f"put matrix products and convolutions on tensor cores: {SPLIT}"
    return [Remedy(change, spent - least / REACHABLE_RATE)]


def _off_tensor_cores(spent: float, device: Device | None, work: Work | None) -> bool:
    """Whether fp32 products took about as long as they do without tensor cores, or longer, and need not."""
    if device is None or device.ceilings is None or device.target.kind == "cpu":
        return False
    if work is None or work.precision != "fp32":
        return False
    own = device.ceilings.flops_per_second.get("fp32", 0.0)
    return own > 0 and device.ceilings.rate("fp32") > own and spent * FASTER_THAN_CORES >= work.flops / own
