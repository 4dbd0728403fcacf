"""Why one kernel takes its time: a decision tree over its counters.

The tree asks first for faults that saturate a unit with wasted work (idle multiprocessors, spills, conflicts, unused
sectors), then for a unit at its limit, then for what warps wait for. The first that holds is the label; each also has
the gain that remains until the next unit binds. What to do is ``profiling.remedies``; calls are ``profiling.rules``.

The thresholds and where they come from are ``profiling.thresholds``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from stitchcuda.hardware.model import Ceilings
from stitchcuda.profiling.families import family
from stitchcuda.profiling.metrics import SECTOR_BYTES, WARP, Facts
from stitchcuda.profiling.model import Cause
from stitchcuda.profiling.roofline import LARGEST_GAIN, MEMORY, Unit, Use, use
from stitchcuda.profiling.thresholds import (
    ABSORBED,
    ATOMIC_SHARE,
    CONFLICT_SHARE,
    EVEN_WAVES,
    FEW_BLOCKS,
    FEW_FP32,
    FEW_LANES,
    FUSION_SAVES,
    IDLE_DEVICE,
    ISSUE_BUSY,
    L2_BUSY,
    LESS_WORK,
    LOCAL_SHARE,
    LOW_OCCUPANCY,
    MATRIX_BUSY,
    MATRIX_DENSITY,
    MATRIX_FFMA,
    MEMORY_USED,
    NEARLY,
    SECTOR_USE,
    SHARED_SHARE,
    SHORT,
    TAIL_SLACK,
    TENSOR_BUSY,
    TENSOR_GAIN,
    UNEVEN_OCCUPANCY,
    UNIT_BUSY,
    WAIT_SHARE,
    WORKING,
)


@dataclass(frozen=True)
class Candidate:
    """A cause that holds. ``gain`` is the kernel's speedup until the next limit, ``numbers`` those that decided."""

    cause: Cause
    evidence: str
    gain: float
    numbers: dict[str, float] = field(default_factory=dict)


def causes(facts: Facts, *, ceilings: Ceilings | None = None, operator: str = "") -> list[Candidate]:
    """Every cause that holds, the label first. ``operator`` is what launched the kernel, where known.

    An empty list means that nothing stands out, or that nothing was measured.
    """
    used = use(facts, ceilings)
    found: list[Candidate] = []
    for walk in (
        _idle_device(facts, used),
        _wasted_traffic(facts, used),
        _busy_units(facts, used, ceilings, operator),
        _waits(facts, used),
    ):
        found += walk
    unique: dict[Cause, Candidate] = {}
    for candidate in found:
        unique.setdefault(candidate.cause, candidate)
    return list(unique.values())


def _idle_device(facts: Facts, used: Use) -> Iterator[Candidate]:
    """Multiprocessors without work: few blocks, a last wave, uneven blocks."""
    processors = facts.number("sm_count")
    busy = facts.sm_busy
    if processors < 1 or busy is None:
        return
    numbers = {"blocks": float(facts.blocks), "multiprocessors": processors, "busy share": busy}
    limit = min(1.0 / max(busy, 1.0 / LARGEST_GAIN), LARGEST_GAIN)
    if facts.blocks <= FEW_BLOCKS * processors:
        gain = min(processors / facts.blocks, used.gain(), LARGEST_GAIN)
        yield Candidate(
            "few_blocks",
            f"{facts.blocks} blocks on {processors:.0f} multiprocessors: {1 - facts.blocks / processors:.0%} of the"
            " device has no work",
            gain,
            numbers,
        )
        return
    if busy > IDLE_DEVICE or facts.seconds < SHORT:
        return
    filled = _wave_fill(facts, processors)
    numbers["waves filled"] = filled
    seen = f"a multiprocessor has work {busy:.0%} of the time on average"
    if filled <= EVEN_WAVES and busy >= filled - TAIL_SLACK:
        waves = facts.waves
        yield Candidate(
            "tail", f"{seen}; {facts.blocks} blocks make {waves:.2f} waves, filled {filled:.0%}", limit, numbers
        )
    else:
        yield Candidate(
            "imbalance", f"{seen}, though {facts.blocks} equal blocks would keep it busy {filled:.0%}", limit, numbers
        )


def _wave_fill(facts: Facts, processors: float) -> float:
    """How full the waves of equal blocks are on average, 0 to 1: of resident places, or of processors in one wave."""
    waves = facts.waves
    if waves >= 1:
        return waves / math.ceil(waves)
    each = facts.blocks / processors
    return each / math.ceil(each)


def _wasted_traffic(facts: Facts, used: Use) -> Iterator[Candidate]:
    """Traffic that another layout or fewer registers would not have: spills, atomics, conflicts, unused sectors."""
    waits = facts.stalls
    memory_waits = sum(waits.get(name, 0.0) for name in ("long_scoreboard", "lg_throttle", "drain"))
    shared_waits = sum(waits.get(name, 0.0) for name in ("short_scoreboard", "mio_throttle"))
    matters = used.memory >= MEMORY_USED or memory_waits >= WAIT_SHARE

    local = facts.local_share
    if local >= LOCAL_SHARE and matters:
        yield Candidate(
            "spilling",
            f"local memory is {local:.0%} of the sectors that loads and stores touch,"
            f" with {facts.number('registers'):.0f} registers a thread",
            used.scaled(dict.fromkeys(MEMORY, 1 - local)).gain(),
            {"local share": local, "registers": facts.number("registers")},
        )
    atomic = facts.atomic_share
    computing = max(used["fma"], used["tensor"], used["xu"], used["fp64"])
    if atomic >= ATOMIC_SHARE and computing < UNIT_BUSY and used["dram"] < UNIT_BUSY:
        yield Candidate(
            "atomics",
            f"{atomic:.0%} of the requests to global memory are atomics; device memory is used {used['dram']:.0%}",
            used.scaled(dict.fromkeys(("l1", "l2"), 1 - atomic)).gain(),
            {"atomic share": atomic, "dram": used["dram"]},
        )
    conflicts, shared = facts.conflict_share, facts.shared_share
    felt = used["l1"] >= WAIT_SHARE or shared_waits >= WAIT_SHARE
    if conflicts >= CONFLICT_SHARE and facts.conflicts_cost and shared >= SHARED_SHARE and felt:
        yield Candidate(
            "bank_conflicts",
            f"{conflicts:.0%} of the shared memory wavefronts come from bank conflicts; L1 is used {used['l1']:.0%}",
            used.scaled({"l1": 1 - conflicts * shared}).gain(),
            {"conflict share": conflicts, "l1": used["l1"], "shared share": shared},
        )
    sectors = facts.sector_efficiency
    strained = _strained(facts, used)
    if sectors is not None and sectors <= SECTOR_USE and strained >= max(MEMORY_USED, NEARLY * used.memory):
        yield Candidate(
            "uncoalesced",
            f"loads and stores use {sectors * 32:.1f} of the 32 bytes of a sector;"
            f" device memory is used {used['dram']:.0%}, L2 {used['l2']:.0%}, L1 {used['l1']:.0%}",
            used.scaled(dict.fromkeys(MEMORY, sectors)).gain(),
            {"bytes per sector": sectors * 32, "dram": used["dram"], "l2": used["l2"], "l1": used["l1"]},
        )
    lanes = facts.get("lanes")
    working = max(used["issue"], used["fma"], used["alu"], used["xu"], used["fp64"])
    if lanes is not None and 0 < lanes < FEW_LANES and working >= WORKING:
        yield Candidate(
            "divergence",
            f"{lanes:.1f} of 32 threads are on in the average instruction, and schedulers issue {used['issue']:.0%}"
            " of the time",
            min(WARP / lanes, LARGEST_GAIN),
            {"threads on": lanes, "issue": used["issue"]},
        )


def _strained(facts: Facts, used: Use) -> float:
    """Use of the busiest memory unit that unused sectors reach: L1 always, the others unless caches absorb them."""
    strained = [used["l1"]]
    if facts.wasted(facts.number("l2_sectors") * SECTOR_BYTES, ABSORBED):
        strained.append(used["l2"])
    if facts.wasted(facts.dram_bytes, ABSORBED):
        strained.append(used["dram"])
    return max(strained)


def _busy_units(facts: Facts, used: Use, ceilings: Ceilings | None, operator: str) -> Iterator[Candidate]:
    """A unit at its limit, the nearest to it first."""
    thresholds: dict[Unit, float] = {"tensor": TENSOR_BUSY, "l2": L2_BUSY}
    if is_matrix(facts, operator):
        thresholds["fma"] = MATRIX_BUSY
    units: list[Unit] = ["dram", "l2", "l1", "fma", "alu", "xu", "fp64", "tensor"]
    busy = [unit for unit in units if used[unit] >= thresholds.get(unit, UNIT_BUSY)]
    if used["dram"] >= UNIT_BUSY:
        # What streams through device memory also passes the caches: they are busy on its account.
        busy = [unit for unit in busy if unit not in ("l2", "l1") or used[unit] >= 0.97]
    if not busy and used["issue"] >= ISSUE_BUSY:
        busy = [max(("fma", "alu", "xu", "fp64"), key=lambda unit: used[unit])]
    for unit in sorted(busy, key=lambda unit: -used[unit] / thresholds.get(unit, UNIT_BUSY)):
        yield _busy(unit, facts, used, ceilings, operator)


def _busy(unit: Unit, facts: Facts, used: Use, ceilings: Ceilings | None, operator: str) -> Candidate:
    share = used[unit]
    rest = used.scaled({unit: 0.0, "issue": 0.0}).gain()
    numbers: dict[str, float] = {unit: share, "issue": used["issue"]}
    if unit == "dram":
        moved = facts.dram_bytes / facts.seconds if facts.seconds > 0 else 0.0
        rate = f" ({moved / 1e12:.2f} TB/s)" if moved > 0 else ""
        gain = max(1.0 / share, 1.0 / (1.0 - FUSION_SAVES))
        return Candidate(
            "dram_bandwidth", f"device memory is used {share:.0%}{rate}", min(gain, rest), numbers | {"bytes/s": moved}
        )
    if unit == "l2":
        return Candidate(
            "l2_bandwidth",
            f"the L2 is used {share:.0%} and device memory {used['dram']:.0%}; L2 hits {facts.share('l2_hit'):.0%}",
            min(rest, 1.0 / (1.0 - FUSION_SAVES)),
            numbers | {"dram": used["dram"], "l2 hits": facts.share("l2_hit")},
        )
    if unit == "l1":
        return Candidate(
            "l1_bandwidth",
            f"the L1 and shared memory path is used {share:.0%}, {facts.shared_share:.0%} of it by shared memory,"
            f" {facts.conflict_share:.0%} of that for conflicts",
            min(rest, 1.0 / (1.0 - FUSION_SAVES)),
            numbers | {"shared share": facts.shared_share},
        )
    if unit == "tensor":
        kinds = ", ".join(facts.tensor_flops) or "of unknown precision"
        return Candidate("tensor_pipe", f"tensor cores are used {share:.0%} ({kinds})", 1.0 / share, numbers)
    if unit == "fma":
        fp32 = facts.fp32_instruction_share
        packed = facts.pipe("pipe_fma_fp16") >= facts.pipe("pipe_fma") / 2
        if fp32 is not None and fp32 < FEW_FP32 and not packed:
            return Candidate(
                "integer_pipe",
                f"the multiply-add pipe is used {share:.0%}, but {fp32:.0%} of the instructions are fp32: the rest are"
                " integer products",
                min(rest, LESS_WORK),
                numbers | {"fp32 instructions": fp32},
            )
        if is_matrix(facts, operator):
            return Candidate(
                "no_tensor_cores",
                f"the fp32 pipe is used {share:.0%} by what looks like a matrix product; tensor cores"
                f" {used['tensor']:.0%}",
                min(_tensor_gain(ceilings), rest),
                numbers | {"tensor": used["tensor"]},
            )
        return Candidate(
            "fma_pipe",
            f"the multiply-add pipe is used {share:.0%}, memory at most {used.memory:.0%}",
            min(rest, LESS_WORK),
            numbers,
        )
    names: dict[Unit, tuple[Cause, str]] = {
        "alu": ("integer_pipe", "integer and logic"),
        "xu": ("sfu_pipe", "special function"),
        "fp64": ("fp64_pipe", "fp64"),
    }
    cause, what = names[unit]
    told = f"the {what} pipe is used {share:.0%}, memory at most {used.memory:.0%}"
    return Candidate(cause, told, min(rest, LESS_WORK), numbers)


def is_matrix(facts: Facts, operator: str = "") -> bool:
    """Whether a kernel that keeps the fp32 pipe busy multiplies matrices: by name, or by what it executes.

    A tiled product reads its operands from shared memory and does hardly anything but multiply-adds.
    """
    if facts.pipe("pipe_tensor") >= 0.05:
        return False
    if family(facts.counters.name, operator) == "matrix":
        return True
    arithmetic = facts.number("ffma") + facts.number("fadd") + facts.number("fmul")
    executed = facts.number("instructions") * WARP
    if arithmetic <= 0 or executed <= 0 or facts.number("ffma") < MATRIX_FFMA * arithmetic:
        return False
    loads = facts.number("shared_load_wavefronts", facts.number("shared_wavefronts"))
    return facts.number("ffma") >= MATRIX_DENSITY * executed and loads >= 0.01 * facts.number("instructions")


def _tensor_gain(ceilings: Ceilings | None) -> float:
    if ceilings is None:
        return TENSOR_GAIN
    plain = ceilings.flops_per_second.get("fp32", 0.0)
    return max(ceilings.rate("fp32") / plain, 1.0) if plain > 0 else TENSOR_GAIN


def _waits(facts: Facts, used: Use) -> Iterator[Candidate]:
    """What warps wait for where no unit is at its limit."""
    waits = {k: v for k, v in facts.stalls.items() if k not in ("selected", "not_selected")}
    if not waits or used["issue"] >= ISSUE_BUSY or max(used.busiest[1], used["tensor"] * 1.5) >= UNIT_BUSY:
        return
    gain = used.gain()
    name, share = max(waits.items(), key=lambda item: item[1])
    numbers = {f"{name} share": share, "issue": used["issue"], "occupancy": facts.share("occupancy")}
    told = (
        f"warps spend {share:.0%} of their time waiting for {WAITS.get(name, name)};"
        f" schedulers issue {used['issue']:.0%} of the time at {facts.share('occupancy'):.0%} occupancy"
    )
    barrier = waits.get("barrier", 0.0)
    if barrier >= WAIT_SHARE:
        yield Candidate(
            "barrier", f"warps spend {barrier:.0%} of their time at barriers", gain, {"barrier share": barrier}
        )
    if limiter := _occupancy_limit(facts):
        fits = facts.theoretical_occupancy
        yield Candidate(
            limiter,
            f"{told}; {_OCCUPANCY_TOLD[limiter].format(**_launch(facts))} limit it to {fits:.0%}",
            min(gain, 1.0 / max(fits, 1.0 / LARGEST_GAIN)),
            numbers | {"occupancy limit": fits},
        )
    limit, reached = facts.theoretical_occupancy, facts.share("occupancy")
    if limit > 0 and facts.waves >= 1 and reached < UNEVEN_OCCUPANCY * limit:
        yield Candidate(
            "imbalance",
            f"{reached:.0%} of the warps are resident over time where {limit:.0%} fit: blocks end at different times",
            min(gain, limit / max(reached, 1.0 / LARGEST_GAIN)),
            numbers | {"occupancy limit": limit},
        )
    if cause := _wait_cause(name, facts):
        yield Candidate(cause, told, gain, numbers)


WAITS = {
    "long_scoreboard": "global, local or texture memory",
    "short_scoreboard": "shared memory or special functions",
    "mio_throttle": "the shared memory and special function queue",
    "lg_throttle": "the queue of global memory instructions",
    "wait": "the fixed latency of the instruction before",
    "barrier": "a barrier",
    "math_pipe_throttle": "an arithmetic pipe",
    "branch_resolving": "a branch",
    "no_instruction": "instructions to be fetched",
    "imc_miss": "constants to be fetched",
    "membar": "a memory fence",
    "drain": "stores to be written",
    "sleeping": "a sleep to end",
    "gmma": "tensor cores",
    "dispatch_stall": "dispatch",
}
"""What a warp that is stalled for a reason waits for."""
_OCCUPANCY_TOLD: dict[Cause, str] = {
    "occupancy_registers": "{registers:.0f} registers a thread",
    "occupancy_shared_memory": "{shared:.0f} bytes of shared memory a block",
    "occupancy_block_size": "blocks of {block} threads",
}


def _launch(facts: Facts) -> dict[str, float]:
    shared = facts.number("shared_static") + facts.number("shared_dynamic")
    return {"registers": facts.number("registers"), "shared": shared, "block": facts.threads_per_block}


def _occupancy_limit(facts: Facts) -> Cause | None:
    """What keeps more warps from being resident, where few fit and there are blocks enough to fill the places."""
    limit = facts.theoretical_occupancy
    processors = facts.number("sm_count")
    resident = facts.resident_blocks
    if not 0 < limit <= LOW_OCCUPANCY or resident is None or processors < 1:
        return None
    if facts.blocks < 0.9 * resident * processors:
        return None
    limits: dict[Cause, float] = {
        "occupancy_registers": facts.number("limit_registers", math.inf),
        # The system keeps some shared memory for every block; what a kernel does not ask for, it cannot save.
        "occupancy_shared_memory": facts.number("limit_shared", math.inf) if _launch(facts)["shared"] else math.inf,
        "occupancy_block_size": min(facts.number("limit_blocks", math.inf), facts.number("limit_warps", math.inf)),
    }
    return min(limits, key=lambda cause: limits[cause])


def _wait_cause(name: str, facts: Facts) -> Cause | None:
    """The cause for the longest wait."""
    if name in ("long_scoreboard", "lg_throttle", "tex_throttle", "drain", "membar"):
        return "global_latency"
    if name in ("short_scoreboard", "mio_throttle"):
        # Special functions, divisions and fp64 answer through the same scoreboard as shared memory.
        busy_shared = facts.number("shared_wavefronts") >= 0.05 * max(facts.number("instructions"), 1.0)
        return "shared_latency" if busy_shared else "dependency"
    if name == "barrier":
        return "barrier"
    if name in ("wait", "math_pipe_throttle", "dispatch_stall", "gmma"):
        return "dependency"
    if name == "branch_resolving":
        return "divergence"
    return None
