"""The sense of a Recording on a CPU, where nothing is launched: self time by operator, and what lies between operators.

The counterpart of ``timeline`` for the cpu target. Seconds per call.
"""

from __future__ import annotations

from collections import Counter

from stitchcuda.profiling.model import Timeline
from stitchcuda.profiling.recording import CALL, Range, Recording
from stitchcuda.profiling.timeline import Analysis, KernelSum

COPIES = ("aten::copy_", "aten::clone", "aten::contiguous")


def analyse(recording: Recording) -> Analysis:
    """Self time of operators per call, averaged over the ranges named ``recording.CALL``, on the calls' thread."""
    marks = [span for span in recording.ranges if span.name == CALL]
    windows = [(span.start, span.end, span.thread) for span in marks]
    remarks = list(recording.remarks)
    if not windows:
        threads = Counter(span.thread for span in recording.ranges if span.operator)
        windows = [(*recording.span, threads.most_common(1)[0][0])] if threads else []
        if windows:
            remarks.append("the trace marks no calls: times are of everything that was recorded")
    if not windows:
        blank = Timeline(wall_seconds=0, busy_seconds=0, gap_seconds=0, copy_seconds=0, launches=0)
        return Analysis(blank, [], [], [], 0, remarks or ["the trace is empty"])
    count = len(windows)
    own: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for start, end, thread in windows:
        inside = [s for s in recording.ranges if s.operator and s.thread == thread and start <= s.start < end]
        for span, nanoseconds in self_times(inside):
            own[span.name] += nanoseconds
            calls[span.name] += 1
    wall = sum(end - start for start, end, _ in windows) / count * 1e-9
    busy = sum(own.values()) / count * 1e-9
    kernels = [
        KernelSum(name, "copy" if name in COPIES else "op", name, ns / count * 1e-9, calls[name] / count)
        for name, ns in own.most_common()
    ]
    timeline = Timeline(
        wall_seconds=wall,
        busy_seconds=busy,
        gap_seconds=max(wall - busy, 0.0),
        copy_seconds=sum(kernel.seconds for kernel in kernels if kernel.kind == "copy"),
        launches=round(sum(calls.values()) / count),
    )
    return Analysis(timeline, kernels, [], [], count, remarks)


def self_times(ranges: list[Range]) -> list[tuple[Range, int]]:
    """Each range's nanoseconds less those of the ranges inside it; ``ranges`` of one thread, sorted by start."""
    times = [span.end - span.start for span in ranges]
    stack: list[int] = []
    for number, span in enumerate(ranges):
        while stack and ranges[stack[-1]].end <= span.start:
            stack.pop()
        if stack:
            times[stack[-1]] -= span.end - span.start
        stack.append(number)
    return [(span, max(time, 0)) for span, time in zip(ranges, times, strict=True)]
