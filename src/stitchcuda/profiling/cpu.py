"""Where a call's time goes inside a CPU: perf's counters of the same subject that ``capture`` records, confined.

Counting starts at the first of a few warm calls, so that neither torch's start nor the weights are in it. Many
machines hide the counters; why is said then. Operators' times come from torch.profiler, what the compiler vectorised
from ``profiling.loops``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.capture import (
    ANSWER,
    CONTROL,
    TIMEOUT_S,
    Subject,
    driver_command,
    failure_of,
    levels,
    readable_for,
)
from stitchcuda.profiling.confinement import WORK, Confined, run_confined
from stitchcuda.profiling.model import Bottleneck, Processor
from stitchcuda.profiling.rules import milliseconds

EVENTS = (
    "task-clock",
    "page-faults",
    "cycles",
    "instructions",
    "branches",
    "branch-misses",
    "cache-references",
    "cache-misses",
    "context-switches",
)
"""Events that every kernel names; what the machine lacks is left out of the answer."""
TABLE = "events.csv"
MOST = 1e18
"""No count of a few calls is as large: the table lies where the subject could write it."""
LINE_BYTES = 64
"""What a cache miss fetches."""
MISSES_MATTER = 0.40
"""Share of the measured bandwidth that cache misses account for, from which memory is what binds."""
LOW_IPC = 0.8
"""Instructions a cycle below which a core mostly waits; a core that computes reaches 2 and more."""
MISPREDICTED = 0.05
"""Branches mispredicted from which control flow costs."""

PERMISSION = (
    "the kernel refuses performance counters to this user; run 'sysctl kernel.perf_event_paranoid=2' as root, or start"
    " the container with --cap-add=PERFMON and a seccomp profile that allows perf_event_open"
)
_REFUSED = re.compile(r"perf_event_paranoid|No permission to enable|Access to performance monitoring|perf_event_open")


def find_perf() -> Path:
    """perf on PATH. Raises ToolMissing."""
    if found := shutil.which("perf"):
        return Path(found)
    raise ToolMissing(
        "perf is not on this machine; install linux-perf (Debian) or linux-tools-common and linux-tools-$(uname -r)"
        " (Ubuntu)"
    )


def count(subject: Subject, device: Device, *, timeout_s: float = TIMEOUT_S) -> Processor:
    """Counters of one call of ``subject``, labelled with the ceilings of ``device`` where they are known.

    Raises ToolMissing without perf, ProfilerError when the kernel refuses or the subject fails.
    """
    perf = find_perf()
    # torch.profiler ran before, and found out which confinement this machine allows.
    done = _run(subject, perf, levels("cpu", "kineto")[0], timeout_s)
    if refused(done.printed) and os.geteuid() == 0:
        done = _run(subject, perf, "full", timeout_s, stays_root=True)
    if refused(done.printed):
        raise ProfilerError(PERMISSION)
    try:
        told = json.loads(done.files["result.json"])
        wall, calls = float(told["wall"]), int(told["calls"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        wall, calls = 0.0, 0
    if not done.ok or not 0 < wall < 1e9 or not 0 < calls < 1e9:
        last = (done.printed.strip().splitlines() or ["it printed nothing"])[-1]
        raise ProfilerError(failure_of(done, f"perf counted nothing: {last[:200]}"))
    events, missing = parse(done.files.get(TABLE, b"").decode("utf-8", "replace"))
    each = {name: value / calls for name, value in events.items()}
    return judged(each, missing, wall_seconds=wall, calls=calls, device=device)


def _run(subject: Subject, perf: Path, level: str, timeout_s: float, *, stays_root: bool = False) -> Confined:
    pipes = [f"{WORK}/{CONTROL}", f"{WORK}/{ANSWER}"]
    stat = [str(perf), "stat", "--delay", "-1", f"--control=fifo:{','.join(pipes)}"]
    stat += ["-x", ";", "-o", f"{WORK}/{TABLE}", "-e", ",".join(EVENTS), "--"]
    return run_confined(
        [["mkfifo", *pipes], [*stat, *driver_command()]],
        subject.files("events", ranges=False),
        [TABLE, "result.json"],
        level=level,
        timeout_s=timeout_s,
        readable=readable_for(subject),
        counters=stays_root,
    )


def refused(printed: str) -> bool:
    """Whether perf says that this user may not count."""
    return _REFUSED.search(printed) is not None


def parse(text: str) -> tuple[dict[str, float], list[str]]:
    """Events from ``perf stat -x ';'``, and the names of those that are '<not supported>' or '<not counted>'.

    Where the kernel's side is hidden (``:u``), so are context switches: perf says 0 of them then.
    """
    events: dict[str, float] = {}
    missing = []
    for line in text.splitlines():
        parts = line.split(";")
        if len(parts) < 3 or line.startswith("#"):
            continue
        name, _, only = parts[2].partition(":")
        if name == "context-switches" and "k" not in (only or "k"):
            missing.append(name)
            continue
        try:
            value = float(parts[0].replace(",", "."))
        except ValueError:
            value = math.nan
        if 0 <= value < MOST:
            events[name] = value
        else:
            missing.append(name)
    return events, missing


def judged(
    events: Mapping[str, float], missing: list[str], *, wall_seconds: float, calls: int, device: Device
) -> Processor:
    """Events of one call (task-clock in milliseconds, as perf has it) with a label.

    'unknown' without cycles, else 'memory_bound' where cache misses take a good part of the measured copy rate (read
    plus written), 'latency_bound' where branches go wrong or a core mostly waits, 'compute_bound'.
    """
    core_seconds = events.get("task-clock", 0.0) * 1e-3
    cores = core_seconds / wall_seconds if wall_seconds > 0 else 0.0
    told = [f"a counted call took {milliseconds(wall_seconds)} on {cores:.1f} cores"]
    ipc = ratio(events, "instructions", "cycles")
    label: Bottleneck = "unknown"
    if ipc is not None:
        told.append(f"{ipc:.2f} instructions a cycle")
        label = "latency_bound" if ipc < LOW_IPC else "compute_bound"
        mispredicted = ratio(events, "branch-misses", "branches")
        if mispredicted is not None and mispredicted >= MISPREDICTED:
            told.append(f"{mispredicted:.0%} of branches mispredicted")
            label = "latency_bound"
        reachable = device.ceilings.copy_bytes_per_second if device.ceilings is not None else 0.0
        misses = events.get("cache-misses")
        if misses is not None and wall_seconds > 0 and reachable > 0:
            rate = misses * LINE_BYTES / wall_seconds
            told.append(f"cache misses move {rate / 1e9:.1f} of {reachable / 1e9:.1f} GB/s")
            label = "memory_bound" if rate >= MISSES_MATTER * reachable else label
    else:
        told.append(f"this machine does not count {', '.join(missing[:3]) or 'cycles'}: a virtual one may hide them")
    return Processor(
        events={name: value for name, value in events.items() if name != "task-clock"},
        missing=missing,
        wall_seconds=wall_seconds,
        core_seconds=core_seconds,
        calls=calls,
        bottleneck=label,
        evidence=", ".join(told),
    )


def ratio(events: Mapping[str, float], part: str, whole: str) -> float | None:
    """One event for each of another; None where either was not counted."""
    top, bottom = events.get(part), events.get(whole)
    return top / bottom if top is not None and bottom else None
