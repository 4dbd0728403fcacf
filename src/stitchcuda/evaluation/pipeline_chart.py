"""What a pipeline's time went into: a chart of text, and the shares of the device's time. Pure functions over spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stitchcuda.evaluation.device_gate import Span

if TYPE_CHECKING:
    from stitchcuda.evaluation.pipeline import Done

MARKS = {"clock": "C", "start": "s", "work": "w"}
KEY = "b build, . wait, s start of a process, w untimed work on the device, C clock counts, - between these"

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times without overlaps, in order."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def seconds(intervals: Iterable[Interval]) -> float:
    """Length of a union."""
    return sum(end - begin for begin, end in union(intervals))


def overlap(ones: Iterable[Interval], others: Iterable[Interval]) -> float:
    """How long both of two unions last at once, seconds."""
    one, other = union(ones), union(others)
    return seconds(one) + seconds(other) - seconds([*one, *other])


def shares(spans: Sequence[Span], begin: float, end: float) -> dict[str, float]:
    """Shares of the time from ``begin`` to ``end`` in which the device was held for a clock, for a start, for other
    work, and by nobody (``idle``); where holds overlap, the first of these counts."""
    total = max(end - begin, 1e-9)
    taken: list[Interval] = []
    result: dict[str, float] = {}
    for hold in ("clock", "start", "work"):
        before = seconds(taken)
        taken += [(max(s.begin, begin), min(s.end, end)) for s in spans if s.hold == hold and s.end > begin]
        taken = [(a, b) for a, b in taken if b > a]
        result[hold] = (seconds(taken) - before) / total
    return result | {"idle": 1 - seconds(taken) / total}


def chart(done: Sequence[Done], width: int = 100) -> str:
    """One line a Program, in the order of their beginnings, over the time of all; see KEY."""
    if not done:
        return ""
    first = min(each.queued for each in done)
    last = max(each.ended for each in done)
    scale = max(last - first, 1e-9) / width
    names = max(len(each.job.name) for each in done)
    lines = [f"{last - first:.1f} s, {scale:.2f} s a column: {KEY}"]
    for each in sorted(done, key=lambda each: (each.built[0], each.begun)):
        row = [" "] * width

        def fill(begin: float, end: float, mark: str, row: list[str] = row) -> None:
            start = min(int((begin - first) / scale), width - 1)
            for column in range(start, max(start + 1, min(int((end - first) / scale), width))):
                row[column] = mark

        fill(each.queued, each.ended, ".")
        fill(each.begun, each.ended, "-")
        fill(*each.built, "b")
        for hold in ("work", "start", "clock"):
            for span in each.spans:
                if span.hold == hold and span.end > each.begun:
                    fill(span.begin, span.end, MARKS[hold])
        lines.append(f"{each.job.name:{names}} {''.join(row)} {each.evaluation.status}")
    return "\n".join(lines)
