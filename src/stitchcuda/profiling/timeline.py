"""The sense of a Recording: busy time, gaps and what the host did in them, time by kernel and by operator, and the
critical path. Pure functions of data; seconds per call. Labels are ``profiling.rules``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stitchcuda.profiling.model import Idle, OperatorTime, PathPart, Timeline
from stitchcuda.profiling.recording import (
    CALL,
    OPERATORS,
    ApiCall,
    DeviceOp,
    Innermost,
    Recording,
    complement,
    union,
)

Where = Literal["device", "host"]

SHORT_GAP_NS = 20_000
"""The host's time between two calls of the runtime up to this is part of launching, not other work."""
QUEUED_NS = 4_000
"""Between two kernels of a queue lies no more than this; more means that the second one was launched late."""
SHOWN_OPERATORS, SHOWN_PARTS = 20, 12
IDLE_TOLD: dict[Idle, str] = {
    "launch": "launching",
    "synchronise": "waiting for the device",
    "copy": "calls that copy",
    "allocation": "allocating device memory",
    "host": "other work of the host",
}


@dataclass
class KernelSum:
    """One kernel or copy under one operator, per call."""

    name: str
    kind: str
    operator: str
    seconds: float
    calls: float


@dataclass
class Analysis:
    """What a Recording says about one call. ``timeline.wall_seconds`` is the call's span under the profiler."""

    timeline: Timeline
    kernels: list[KernelSum]
    operators: list[OperatorTime]
    path: list[PathPart]
    calls: int
    remarks: list[str] = field(default_factory=list)


def analyse(recording: Recording) -> Analysis:
    """Per call, averaged over the ranges named ``recording.CALL``; over all that was recorded where there are none.

    An empty recording gives zeros and a remark.
    """
    remarks = list(recording.remarks)
    windows = recording.windows(CALL)
    if not windows:
        windows = [recording.span]
        if recording.ops:
            remarks.append("the trace marks no calls: times are of everything that was recorded")
    parts = [_Window(recording, start, end) for start, end in windows if end > start]
    if not parts:
        blank = Timeline(wall_seconds=0, busy_seconds=0, gap_seconds=0, copy_seconds=0, launches=0)
        return Analysis(blank, [], [], [], 0, remarks or ["the trace is empty"])
    names = _Operators(recording)
    count = len(parts)
    idle: Counter[Idle] = Counter()
    for part in parts:
        idle.update(part.idle())
    wall = sum(part.end - part.start for part in parts) / count * 1e-9
    busy = sum(part.busy_ns for part in parts) / count * 1e-9
    ops = [op for part in parts for op in part.ops]
    api = [call for part in parts for call in part.api]
    copies = [op for op in ops if op.host_copy]
    # The last wait of a call is the profiler driver's own.
    waits = sum(max(sum(call.kind == "synchronise" for call in part.api) - 1, 0) for part in parts)
    timeline = Timeline(
        wall_seconds=wall,
        busy_seconds=busy,
        gap_seconds=max(wall - busy, 0.0),
        copy_seconds=_seconds(copies, count),
        launches=round(sum(op.kind in ("kernel", "graph") for op in ops) / count),
        idle_seconds={kind: ns / count * 1e-9 for kind, ns in idle.items() if ns > 0},
        pageable_seconds=_seconds((op for op in copies if op.pageable), count),
        synchronisations=round(waits / count),
        allocations=round(sum(call.kind == "allocation" for call in api) / count),
        device_seconds=_seconds(ops, count),
        graph_launches=round(sum("GraphLaunch" in call.name for call in api) / count),
        streams=len({op.stream for op in ops}),
        peak_bytes=_peak(recording),
    )
    labels = names.label(parts)
    return Analysis(
        timeline,
        _kernels(ops, labels, count),
        _operators(ops, labels, names, count),
        _critical(parts, recording),
        count,
        remarks,
    )


def _seconds(ops: Iterable[DeviceOp], count: int) -> float:
    return sum(op.end - op.start for op in ops) / count * 1e-9


def _peak(recording: Recording) -> int:
    """Largest sum of the allocations that the trace saw."""
    total = best = 0
    for event in recording.memory:
        total += event.bytes
        best = max(best, total)
    return best


class _Window:
    """One call."""

    def __init__(self, recording: Recording, start: int, end: int) -> None:
        inside = recording.within(start, end)
        self.start, self.end = start, end
        self.ops, self.api = inside.ops, inside.api
        self.busy = union(((op.start, op.end) for op in self.ops), start, end)
        self.busy_ns = sum(high - low for low, high in self.busy)

    def idle(self) -> Counter[Idle]:
        """Idle nanoseconds by what the host was in: a call of the runtime, or nothing of it.

        What lies after the last device operation, up to the return of the wait for it, is nobody's gap.
        """
        found: Counter[Idle] = Counter()
        if not self.api:
            return found
        end = max((high for _, high in self.busy), default=self.end)
        end = end if self.end - end <= SHORT_GAP_NS else self.end
        starts = [call.start for call in self.api]
        for low, high in complement(self.busy, self.start, end) if self.busy else [(self.start, end)]:
            cursor = low
            place = max(bisect_right(starts, low) - 1, 0)
            while place < len(self.api) and self.api[place].start < high:
                call = self.api[place]
                place += 1
                begin, finish = max(call.start, cursor), min(call.end, high)
                if finish <= begin:
                    continue
                if begin > cursor:
                    found[_between(begin - cursor)] += begin - cursor
                found[call.kind] += finish - begin
                cursor = finish
            if high > cursor:
                found[_between(high - cursor)] += high - cursor
        return found


def _between(length: int) -> Idle:
    return "launch" if length <= SHORT_GAP_NS else "host"


class _Operators:
    """Which ATen operator launched what: by ranges around the launch, or by the order in the call that had ranges."""

    def __init__(self, recording: Recording) -> None:
        ranges = [span for span in recording.ranges if span.operator]
        self.inner = Innermost(ranges)
        self.launches = {call.correlation: call for call in recording.api if call.correlation >= 0} if ranges else {}
        self.window = next(iter(recording.windows(OPERATORS)), None)
        self.recording = recording
        self.outer: dict[str, str] = {}
        """Outermost operator by innermost one, where several operators nest; the most frequent."""

    def around(self, op: DeviceOp) -> tuple[str, str]:
        """Innermost and outermost operator around the launch of a device operation; empty where unknown."""
        call = self.launches.get(op.correlation)
        spans = self.inner.at(call.thread, call.start) if call is not None else []
        if not spans:
            return op.operator, op.operator
        return spans[0].name, spans[-1].name

    def label(self, parts: Sequence[_Window]) -> dict[int, tuple[str, str]]:
        """Innermost and outermost operator by ``id`` of the device operation."""
        told = {id(op): self.around(op) for part in parts for op in part.ops}
        if self.window is None or any(inner for inner, _ in told.values()):
            return told
        pattern = self.recording.within(*self.window).ops
        known = [(op.name, *self.around(op)) for op in pattern]
        frequent: dict[str, Counter[tuple[str, str]]] = {}
        for name, inner, outer in known:
            frequent.setdefault(name, Counter())[inner, outer] += 1
        for part in parts:
            same = len(known) == len(part.ops) and all(k[0] == op.name for k, op in zip(known, part.ops, strict=True))
            for place, op in enumerate(part.ops):
                if same:
                    told[id(op)] = known[place][1:]
                elif op.name in frequent:
                    told[id(op)] = frequent[op.name].most_common(1)[0][0]
        return told


def _kernels(ops: Sequence[DeviceOp], labels: dict[int, tuple[str, str]], count: int) -> list[KernelSum]:
    sums: dict[tuple[str, str, str], list[int]] = {}
    for op in ops:
        entry = sums.setdefault((op.name, op.kind, labels[id(op)][0]), [0, 0])
        entry[0] += op.end - op.start
        entry[1] += 1
    rows = [KernelSum(*key, ns / count * 1e-9, calls / count) for key, (ns, calls) in sums.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _operators(
    ops: Sequence[DeviceOp], labels: dict[int, tuple[str, str]], names: _Operators, count: int
) -> list[OperatorTime]:
    sums: dict[str, list[int]] = {}
    for op in ops:
        entry = sums.setdefault(labels[id(op)][1] or "(no operator)", [0, 0])
        entry[0] += op.end - op.start
        entry[1] += 1
    total = sum(ns for ns, _ in sums.values()) or 1
    if set(sums) <= {"(no operator)"}:
        return []
    rows = [
        OperatorTime(name=name, seconds=ns / count * 1e-9, share=ns / total, kernels=max(round(number / count), 1))
        for name, (ns, number) in sums.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)[:SHOWN_OPERATORS]


def _critical(parts: Sequence[_Window], recording: Recording) -> list[PathPart]:
    """The critical path of the call of median length, its parts summed by what they are."""
    part = sorted(parts, key=lambda part: part.end - part.start)[len(parts) // 2]
    if not part.ops or not part.api:
        return []
    sums: dict[tuple[Where, str], list[int]] = {}
    for where, what, ns in _Path(part).walk():
        entry = sums.setdefault((where, what), [0, 0])
        entry[0] += ns
        entry[1] += 1
    total = part.end - part.start
    rows = [
        PathPart(where=where, what=what, seconds=ns * 1e-9, share=ns / total, count=n)
        for (where, what), (ns, n) in sums.items()
        if ns > 0
    ]
    return sorted(rows, key=lambda row: -row.seconds)[:SHOWN_PARTS]


class _Path:
    """Backwards from the end of a call: what each thing waited for last.

    A device operation waited for the one before it on the device, where it was launched before that ended; else for its
    launch. The host waited for the device where a call of its own blocked until an operation ended, else it worked.
    """

    def __init__(self, part: _Window) -> None:
        self.part = part
        main = Counter(call.thread for call in part.api if call.kind == "launch").most_common(1)
        threads = {main[0][0]} if main else {call.thread for call in part.api}
        self.api = [call for call in part.api if call.thread in threads]
        self.starts = [call.start for call in self.api]
        self.launch = {call.correlation: place for place, call in enumerate(self.api) if call.correlation >= 0}
        self.ops = sorted(part.ops, key=lambda op: op.end)
        self.ends = [op.end for op in self.ops]

    def walk(self) -> Iterator[tuple[Where, str, int]]:
        """Parts as ('device' or 'host', what, nanoseconds), last first."""
        time, place = self.part.end, len(self.api) - 1
        while time > self.part.start:
            if place < 0:
                yield "host", IDLE_TOLD[_between(time - self.part.start)], time - self.part.start
                return
            call = self.api[place]
            if time > call.end:
                yield "host", IDLE_TOLD[_between(time - call.end)], time - call.end
                time = call.end
            op = self._awaited(call, time)
            if op is None:
                yield "host", _told(call), time - call.start
                time, place = call.start, place - 1
                continue
            yield "host", IDLE_TOLD["synchronise"], time - op.end
            time = op.end
            while True:
                start = max(op.start, self.part.start)
                yield "device", op.name, time - start
                time = start
                before = self._queued_behind(op)
                if before is None:
                    break
                if time > before.end:
                    yield "device", "between queued kernels", time - before.end
                op, time = before, min(before.end, time)
            launched = self.launch.get(op.correlation)
            if launched is None or self.api[launched].start >= time:
                place = bisect_left(self.starts, time) - 1
                continue
            end = min(self.api[launched].end, time)
            if time > end:
                yield "host", "launch latency", time - end
            time, place = end, launched

    def _awaited(self, call: ApiCall, time: int) -> DeviceOp | None:
        """The device operation whose end a blocking call returned at, if there was one."""
        if call.kind not in ("synchronise", "copy", "allocation"):
            return None
        place = bisect_right(self.ends, time) - 1
        while place >= 0 and self.ops[place].start >= time:
            place -= 1
        return self.ops[place] if place >= 0 and self.ends[place] > call.start else None

    def _queued_behind(self, op: DeviceOp) -> DeviceOp | None:
        place = bisect_right(self.ends, op.start + QUEUED_NS // 4) - 1
        while place >= 0 and self.ops[place] is op:
            place -= 1
        if place < 0:
            return None
        before = self.ops[place]
        launched = self.launch.get(op.correlation)
        late = launched is not None and self.api[launched].start > before.end
        return None if late or op.start - before.end > QUEUED_NS or before.start >= op.start else before


def _told(call: ApiCall) -> str:
    return f"{call.name} ({IDLE_TOLD[call.kind]})"
