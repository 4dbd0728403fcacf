"""How near one kernel is to what the device can do, and what it could gain before the next limit binds.

Ceilings are measured on the device (``hardware.ceilings``) where they are known; the rest are Nsight Compute's own
percentages of a unit's peak. Labels are ``profiling.kernel_rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stitchcuda.hardware.model import Ceilings
from stitchcuda.profiling.metrics import SECTOR_BYTES, SMALLEST, Facts
from stitchcuda.task.model import Precision

Unit = Literal["dram", "l2", "l1", "fma", "alu", "xu", "fp64", "tensor", "issue"]

MEMORY: tuple[Unit, ...] = ("dram", "l2", "l1")
PIPES: tuple[Unit, ...] = ("fma", "alu", "xu", "fp64", "tensor")
LARGEST_GAIN = 100.0
"""No more is predicted of a kernel: what is left then is its launch."""


@dataclass(frozen=True)
class Use:
    """Share of the kernel's time that each unit alone would need for the same work, 0 to 1."""

    shares: Mapping[Unit, float]

    def __getitem__(self, unit: Unit) -> float:
        return self.shares.get(unit, 0.0)

    @property
    def busiest(self) -> tuple[Unit, float]:
        """The unit nearest its limit; instruction issue only where it stands out."""
        best = max((*MEMORY, *PIPES), key=lambda unit: self[unit])
        return best, self[best]

    @property
    def memory(self) -> float:
        """The most used of device memory, L2 and L1."""
        return max(self[unit] for unit in MEMORY)

    def scaled(self, factors: Mapping[Unit, float]) -> Use:
        """Use after a change that multiplies some units' work."""
        return Use({unit: share * factors.get(unit, 1.0) for unit, share in self.shares.items()})

    def gain(self) -> float:
        """Speedup until some unit is fully used: the roofline's word, 1 to ``LARGEST_GAIN``."""
        top = max(self.shares.values(), default=0.0)
        return min(max(1.0 / max(top, 1.0 / LARGEST_GAIN), 1.0), LARGEST_GAIN)


@dataclass(frozen=True)
class Point:
    """A kernel on the roofline chart. FLOP: fp32 on CUDA cores and all on tensor cores; bytes: device memory's."""

    flops_per_byte: float
    flops_per_second: float
    bytes_per_second: float
    seconds: float
    least_seconds: float


def use(facts: Facts, ceilings: Ceilings | None = None) -> Use:
    """How much of the kernel's time each unit accounts for.

    Pipes and issue are counted while multiprocessors are active; over the whole kernel they are less where some idle.
    """
    busy = facts.sm_busy
    active = 1.0 if busy is None else busy
    dram = facts.share("dram")
    if ceilings is not None and ceilings.copy_bytes_per_second > 0 and facts.seconds > 0 and facts.dram_bytes > 0:
        dram = min(facts.dram_bytes / facts.seconds / ceilings.copy_bytes_per_second, 1.0)
    l2 = facts.share("l2")
    if ceilings is not None and ceilings.l2_bytes_per_second > 0 and facts.seconds > 0:
        moved = facts.number("l2_sectors") * SECTOR_BYTES
        l2 = max(l2, min(moved / facts.seconds / ceilings.l2_bytes_per_second, 1.0))
    tensor = facts.pipe("pipe_tensor") * active
    if ceilings is not None and facts.seconds > 0:
        rates = ceilings.flops_per_second
        needed = sum(flop / rates[kind] for kind, flop in facts.tensor_flops.items() if rates.get(kind, 0.0) > 0)
        tensor = max(tensor, min(needed / facts.seconds, 1.0))
    return Use(
        {
            "dram": dram,
            "l2": l2,
            "l1": max(facts.share("l1"), facts.share("l1_data")),
            "fma": facts.pipe("pipe_fma") * active,
            "alu": facts.pipe("pipe_alu") * active,
            "xu": facts.pipe("pipe_xu") * active,
            "fp64": facts.pipe("pipe_fp64") * active,
            "tensor": tensor,
            "issue": facts.share("issue") * active,
        }
    )


def point(facts: Facts, ceilings: Ceilings | None = None, precision: Precision = "fp32") -> Point | None:
    """Where the kernel lies on the chart; None where time or bytes were not measured."""
    if facts.seconds < SMALLEST or facts.dram_bytes <= 0:
        return None
    least, flops = 0.0, facts.flops + sum(facts.tensor_flops.values())
    if ceilings is not None:
        rate = max(ceilings.flops_per_second.get(precision, 0.0), ceilings.flops_per_second.get("fp32", 0.0))
        least = facts.dram_bytes / ceilings.copy_bytes_per_second if ceilings.copy_bytes_per_second > 0 else 0.0
        least = max(least, flops / rate if rate > 0 else 0.0)
    return Point(
        flops_per_byte=flops / facts.dram_bytes,
        flops_per_second=flops / facts.seconds,
        bytes_per_second=facts.dram_bytes / facts.seconds,
        seconds=facts.seconds,
        least_seconds=min(least, facts.seconds),
    )


def amdahl(share: float, gain: float) -> float:
    """Speedup of a whole whose part of ``share`` (0 to 1) becomes ``gain`` times faster."""
    share = min(max(share, 0.0), 1.0)
    return 1.0 / (1.0 - share + share / max(gain, SMALLEST))
