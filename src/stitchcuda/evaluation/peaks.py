"""How much memory processes have held at most, as the system counts it, and how that is told. Standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping


def peak_host_bytes(pids: Iterable[int]) -> int:
    """The largest resident set that any of the processes has had, shared memory included; 0 when none is left."""
    most = 0
    for pid in pids:
        with (
            contextlib.suppress(OSError, ValueError, IndexError),
            open(f"/proc/{pid}/status", encoding="ascii") as file,
        ):
            for line in file:
                if line.startswith("VmHWM:"):
                    most = max(most, int(line.split()[1]) * 1024)
    return most


def free_memory() -> int:
    """Host memory that can still be had, bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62


def amount(size: float) -> str:
    """Bytes for people: ``512 MiB``, ``3.4 GiB``."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def figures(memory: Mapping[str, int], kind: str) -> str:
    """What is known of a Program's memory, in a half sentence; see ``Evaluation.memory`` for the keys."""
    parts = [f"the program held {amount(memory.get('host', 0))} of host memory at most"]
    if kind == "cuda":
        parts.append(f"{amount(memory.get('device', 0))} of the device's")
        if memory.get("device_free"):
            parts.append(f"{amount(memory['device_free'])} of that were free before it")
    elif memory.get("host_free"):
        parts.append(f"{amount(memory['host_free'])} are free now")
    if memory.get("reference_device"):
        parts.append(f"the reference needs {amount(memory['reference_device'])} beside inputs and weights")
    return ", ".join(parts)
