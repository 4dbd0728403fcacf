"""Counters of imagined kernels, by the short keys of ``profiling.metrics``: all unremarkable but what a test states."""

from __future__ import annotations

from stitchcuda.profiling.metrics import NAMES, STALLS
from stitchcuda.profiling.model import KernelCounters

PLAIN: dict[str, float] = {
    "seconds": 1e-3,
    "sm_elapsed": 1e6,
    "sm_active": 0.98e6,
    "sm_active_max": 1e6,
    "sm_count": 132,
    "dram": 10,
    "l2": 10,
    "l1": 10,
    "l1_data": 10,
    "issue": 15,
    "instructions": 1e6,
    "ffma": 0,
    "fadd": 0,
    "fmul": 0,
    "lanes": 32,
    "occupancy": 90,
    "occupancy_limit": 100,
    "limit_registers": 8,
    "limit_shared": 8,
    "limit_warps": 8,
    "limit_blocks": 32,
    "registers": 32,
    "waves": 10,
    "stall_selected": 1,
    "stall_not_selected": 1,
}


def counters(grid: int = 10_560, block: int = 256, name: str = "kernel", **changed: float) -> KernelCounters:
    """A kernel that does little of anything, but for what is ``changed``."""
    numbers = PLAIN | changed
    assert set(numbers) <= set(NAMES)
    assert {key.removeprefix("stall_") for key in numbers if key.startswith("stall_")} <= set(STALLS)
    return KernelCounters(
        name=name,
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        metrics={NAMES[key][0]: float(value) for key, value in numbers.items()},
    )
