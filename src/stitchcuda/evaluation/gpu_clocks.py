"""The GPU's clocks and what holds them down, read from NVML around timed calls and never set. No torch."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from stitchcuda.evaluation.model import Finding

SM, MEMORY = 1, 2
"""NVML's numbers of clock domains."""

HELD_DOWN = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that make a chip slower than it is."""

DRIFT = 0.02
"""Share by which the SM clock may differ over the looks before it is said."""


class GpuClocks:
    """What was seen so far; does nothing where there is no NVML. Not to be shared by threads."""

    def __init__(self, wanted: bool) -> None:
        self.library: Any = _open() if wanted else None
        self.seen: list[tuple[int, int, int]] = []
        """SM clock (MHz), memory clock (MHz), reasons (bits)"""

    def look(self) -> None:
        """Read them once, a few microseconds."""
        if self.library is None:
            return
        device = ctypes.c_void_p()
        if self.library.nvmlDeviceGetHandleByIndex_v2(_index(), ctypes.byref(device)):
            return
        sm, memory, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        self.library.nvmlDeviceGetClockInfo(device, SM, ctypes.byref(sm))
        self.library.nvmlDeviceGetClockInfo(device, MEMORY, ctypes.byref(memory))
        self.library.nvmlDeviceGetCurrentClocksThrottleReasons(device, ctypes.byref(reasons))
        self.seen.append((sm.value, memory.value, reasons.value))

    def facts(self) -> dict[str, str | float | int | bool | None]:
        """For an Evaluation's provenance; empty where nothing was seen."""
        if not self.seen:
            return {}
        sm, memory = [one[0] for one in self.seen], [one[1] for one in self.seen]
        return {
            "sm_clock_mhz": f"{min(sm)} to {max(sm)}",
            "memory_clock_mhz": f"{min(memory)} to {max(memory)}",
            "clocks_held_down": ", ".join(self.reasons()),
        }

    def reasons(self) -> list[str]:
        """What held the clocks down at any look, in words."""
        bits = 0
        for _, _, reasons in self.seen:
            bits |= reasons
        return [words for bit, words in HELD_DOWN.items() if bits & bit]

    def finding(self) -> Finding | None:
        """A flag when the chip was slowed down, or its clock was not steady, while calls were timed."""
        said = self.reasons()
        busy = [one[0] for one in self.seen[1:]]
        if busy and max(busy) > (1 + DRIFT) * min(busy):
            said.append(f"SM clock between {min(busy)} and {max(busy)} MHz")
        if not said:
            return None
        return Finding(rule="unsteady_clocks", severity="flag", evidence="; ".join(said), layer="clocks")


def _open() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _index() -> int:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return int(first) if first.isdigit() else 0
