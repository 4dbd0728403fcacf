"""What a tracing profiler saw of one process, whichever profiler it was: device operations, calls of the CUDA API,
ranges, device memory. Read from Nsight Systems by ``nsys_db`` and from torch.profiler by ``kineto``; ``timeline`` makes
sense of it.

Times are nanoseconds on one clock of the recording's own. Plain slotted classes: a recording may hold 100,000 of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeVar

from stitchcuda.profiling.model import Idle

OpKind = Literal["kernel", "copy", "memset", "graph"]
"""'graph' is a whole CUDA graph, from a profiler that was not asked for its nodes."""

CALL = "stitchcuda:call"
"""The range around each profiled call of the subject."""
OPERATORS = "stitchcuda:operators"
"""The range around the call whose ATen operators are ranges too, which makes the host slower and the device not."""

LONGEST_NAME = 2000
"""Characters of a name that are kept: templates make names of tens of thousands."""

_VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")
_KINDS: tuple[tuple[Idle, re.Pattern[str]], ...] = (
    ("launch", re.compile(r"Launch", re.I)),
    ("synchronise", re.compile(r"Synchronize|EventQuery|StreamQuery|WaitEvent|WaitValue", re.I)),
    ("copy", re.compile(r"Memcpy|Memset", re.I)),
    ("allocation", re.compile(r"Malloc|cudaFree|MemFree|MemAlloc|MemCreate|MemMap|HostAlloc|HostRegister|Pool", re.I)),
)


@dataclass(slots=True)
class DeviceOp:
    """Something the device did."""

    start: int
    end: int
    name: str
    kind: OpKind
    stream: int = 0
    correlation: int = -1
    """Number of the API call that launched it; -1 where it is unknown."""
    bytes: int = 0
    """Moved or set; 0 for kernels."""
    direction: str = ""
    """'HtoD', 'DtoH', 'DtoD', ... of a copy."""
    pageable: bool = False
    """A copy from or to pageable host memory."""
    graph: bool = False
    """Launched as a node of a CUDA graph."""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int = 0
    """Per thread."""
    shared_bytes: int = 0
    """Static and dynamic shared memory of a block."""
    local_bytes: int = 0
    """Local memory of a thread: spills and arrays."""
    operator: str = ""
    """The ATen operator that launched it, where the source knows it by itself."""

    @property
    def host_copy(self) -> bool:
        """A copy between host and device."""
        return self.kind == "copy" and "H" in self.direction


@dataclass(slots=True)
class ApiCall:
    """One call of the CUDA runtime or driver by the host."""

    start: int
    end: int
    name: str
    thread: int
    correlation: int = -1

    @property
    def kind(self) -> Idle:
        """What the host does in it."""
        return api_kind(self.name)


@dataclass(slots=True)
class Range:
    """A named span of host time: NVTX, an annotation, or an operator on the host."""

    start: int
    end: int
    name: str
    thread: int
    operator: bool = False
    """An ATen operator, or what a Program names so, rather than a range somebody set."""


@dataclass(slots=True)
class MemoryEvent:
    """Device memory allocated (positive bytes) or freed (negative) by the driver."""

    time: int
    bytes: int


Timed = TypeVar("Timed", DeviceOp, ApiCall)


@dataclass
class Recording:
    """One profiled process. Lists are sorted by start."""

    source: Literal["nsys", "kineto"]
    version: str = ""
    target: Literal["cuda", "cpu"] = "cuda"
    ops: list[DeviceOp] = field(default_factory=list)
    api: list[ApiCall] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    memory: list[MemoryEvent] = field(default_factory=list)
    device: str = ""
    remarks: list[str] = field(default_factory=list)
    """What is missing or damaged, one sentence each."""

    def sort(self) -> Recording:
        """Bring all lists into order; returns itself."""
        self.ops.sort(key=lambda op: op.start)
        self.api.sort(key=lambda call: call.start)
        self.ranges.sort(key=lambda span: (span.start, -span.end))
        self.memory.sort(key=lambda event: event.time)
        return self

    def windows(self, name: str) -> list[tuple[int, int]]:
        """Spans of the ranges of that name, in order."""
        return [(span.start, span.end) for span in self.ranges if span.name == name]

    @property
    def span(self) -> tuple[int, int]:
        """From the first to the last thing recorded; (0, 0) for an empty recording."""
        starts = [items[0].start for items in (self.ops, self.api, self.ranges) if items]
        ends = [max(item.end for item in items) for items in (self.ops, self.api, self.ranges) if items]
        return (min(starts), max(ends)) if starts else (0, 0)

    def within(self, start: int, end: int) -> Recording:
        """What starts inside a window; ops and calls only, ranges that touch it. ``end`` excluded."""
        ops = _between(self.ops, start, end)
        return Recording(
            self.source,
            self.version,
            self.target,
            ops,
            _between(self.api, start, end),
            [span for span in self.ranges if span.start < end and span.end > start],
            [event for event in self.memory if start <= event.time < end],
            self.device,
            self.remarks,
        )


def _between(items: Sequence[Timed], start: int, end: int) -> list[Timed]:
    low = bisect_left(items, start, key=lambda item: item.start)
    high = bisect_left(items, end, key=lambda item: item.start)
    return list(items[low:high])


@lru_cache(maxsize=4096)
def api_kind(name: str) -> Idle:
    """What the host does in an API call of this name: launch, synchronise, copy, allocate, or work of its own."""
    for kind, pattern in _KINDS:
        if pattern.search(name):
            return kind
    return "host"


def api_name(name: str) -> str:
    """The function's name without the version that the tracer appends ('cudaMalloc_v3020')."""
    return _VERSION.sub("", name)


def clipped(name: str) -> str:
    """A name of bearable length."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def union(spans: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Spans merged where they touch, cut to the window."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        low, high = max(low, start), min(high, end)
        if high <= low:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def complement(spans: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """What lies between merged spans inside the window."""
    edges = [start, *(edge for span in spans for edge in span), end]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]


class Innermost:
    """Finds the innermost of nested ranges of a thread around a moment."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._threads: dict[int, tuple[list[int], list[Range], list[int]]] = {}
        by_thread: dict[int, list[Range]] = {}
        for span in ranges:
            by_thread.setdefault(span.thread, []).append(span)
        for thread, spans in by_thread.items():
            spans.sort(key=lambda span: (span.start, -span.end))
            parents, stack = [], list[int]()
            for number, span in enumerate(spans):
                while stack and spans[stack[-1]].end <= span.start:
                    stack.pop()
                parents.append(stack[-1] if stack else -1)
                stack.append(number)
            self._threads[thread] = ([span.start for span in spans], spans, parents)

    def at(self, thread: int, time: int) -> list[Range]:
        """The ranges around a moment, innermost first."""
        if thread not in self._threads:
            return []
        starts, spans, parents = self._threads[thread]
        place, found = bisect_right(starts, time) - 1, []
        while place >= 0:
            if spans[place].end >= time:
                found.append(spans[place])
            place = parents[place]
        return found
