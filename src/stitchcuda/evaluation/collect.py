"""Takes a torch.profiler trace of a few calls inside the runner, in a pass of its own. What it yields is telemetry:
``telemetry`` parses it with suspicion. torch and the standard library only; the runner loads it by path.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

ANNOTATIONS = ("own::", "ProfilerStep", "## ", "Torch-Compiled Region", "CompiledFxGraph")
"""Ranges that profilers show on the device's timeline beside the kernels inside them."""

LONG_ENOUGH_S = 0.02
"""Fewer calls are recorded when they take longer than this together, since reading a long recording takes seconds."""

CALL = "## call ##"
"""The range around each recorded call"""

SKEW_US = 10.0
"""Microseconds by which the device's clock may differ from the one that the ranges are taken with"""

ROWS = 400
"""Rows kept, longest first."""


def collect(call: Callable[[], Any], calls: int, cuda: bool) -> dict[str, Any]:
    """Trace ``calls`` calls; seconds per call. Rows: name, kind, operator, seconds, calls."""
    from torch.profiler import ProfilerActivity, profile, record_function

    sync: Callable[[], None] = torch.cuda.synchronize if cuda else (lambda: None)
    call()
    sync()
    lasted = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        sync()
        lasted.append(time.perf_counter() - began)
    wall = sum(lasted) / calls
    calls = max(1, min(calls, round(LONG_ENOUGH_S / max(min(lasted), 1e-9))))
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=activities) as recording:
        for _ in range(calls):
            with record_function(CALL) if cuda else contextlib.nullcontext():
                call()
                sync()
    table = _device_rows(recording) if cuda else _operator_rows(recording, calls)
    rows: list[dict[str, Any]] = [
        {"name": n[:500], "kind": k, "operator": o[:200], "seconds": s / calls, "calls": c / calls}
        for (n, k, o), (s, c) in table.items()
    ]
    rows.sort(key=lambda row: -float(row["seconds"]))
    busy = sum(float(row["seconds"]) for row in rows)
    launches = sum(float(row["calls"]) for row in rows if row["kind"] == "kernel" or not cuda)
    told = {"rows": rows[:ROWS], "wall_seconds": wall, "busy_seconds": busy, "launches": launches}
    return told | {"active_seconds": active_seconds(recording, calls) if cuda else 0.0}


def active_seconds(recording: Any, calls: int) -> float:
    """Seconds of a call in which anything ran on the device, on whatever stream: the median of the ``calls``, since
    another process may come between what one of them runs; their mean where anything ran outside of them."""
    events = recording.events()
    spans = sorted(_times(event) for event in events if _on_device(event) and _ran(event))
    marks = sorted(_times(event) for event in events if event.name == CALL and not _on_device(event))
    each = [[span for span in spans if begin - SKEW_US <= span[0] and span[1] <= end + SKEW_US] for begin, end in marks]
    if len(marks) != calls or len(set().union(*each)) < len(set(spans)):
        return _covered(spans) / calls * 1e-6
    return statistics.median(map(_covered, each)) * 1e-6


Times = tuple[float, float]


def _times(event: Any) -> Times:
    return event.time_range.start, event.time_range.end


def _covered(spans: list[Times]) -> float:
    """How much time sorted spans cover together."""
    covered, until = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _on_device(event: Any) -> bool:
    return str(event.device_type).endswith("CUDA")


def _ran(event: Any) -> bool:
    """Whether an entry of the device's timeline is work, and not a range around work."""
    return not getattr(event, "is_user_annotation", False) and not event.name.startswith(ANNOTATIONS)


Table = dict[tuple[str, str, str], tuple[float, int]]


def _operator_rows(recording: Any, calls: int) -> Table:
    """Self time of operators over all calls. Those that come as often in every call count with their quickest call:
    what takes a core away from one of them in between is no work of its own."""
    found: dict[str, list[float]] = {}
    for event in sorted(recording.events(), key=lambda event: float(event.time_range.start)):
        if event.self_cpu_time_total > 0 and not event.name.startswith("ProfilerStep"):
            found.setdefault(event.name, []).append(event.self_cpu_time_total * 1e-6)
    table: Table = {}
    for name, spans in found.items():
        kind = "copy" if name in ("aten::copy_", "aten::clone", "aten::contiguous") else "op"
        each, rest = divmod(len(spans), calls)
        seconds = sum(spans)
        if not rest:
            seconds = calls * sum(min(spans[at::each]) for at in range(each))
        table[(name, kind, name)] = (seconds, len(spans))
    return table


def _device_rows(recording: Any) -> Table:
    table: Table = {}
    operators: dict[str, str] = {}
    events = recording.events()
    for event in events:
        if str(event.device_type).endswith("CPU") and event.name != CALL:
            for kernel in event.kernels:
                operators.setdefault(kernel.name, event.name)
    for event in events:
        if not _on_device(event):
            continue
        name = event.name
        if not _ran(event):
            continue
        lower = name.lower()
        kind = "copy" if lower.startswith("memcpy") else "memset" if lower.startswith("memset") else "kernel"
        key = (name, kind, operators.get(name, ""))
        seconds, count = table.get(key, (0.0, 0))
        table[key] = (seconds + event.time_range.elapsed_us() * 1e-6, count + 1)
    return table
