"""From a Chrome trace of torch.profiler to a Timeline of the call inside it: busy time, gaps and what the host did."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stitchcuda.profiling.model import Idle, Timeline

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
API = ("cuda_runtime", "cuda_driver")
SHORT_GAP = 20.0
"""Microseconds. The host's time between two calls of the runtime up to this is part of launching, not other work."""
KINDS: tuple[tuple[Idle, re.Pattern[str]], ...] = (
    ("launch", re.compile(r"Launch", re.I)),
    ("synchronise", re.compile(r"Synchronize|EventQuery|StreamQuery|WaitEvent", re.I)),
    ("copy", re.compile(r"Memcpy|Memset", re.I)),
    ("allocation", re.compile(r"Malloc|Free|MemAlloc|MemCreate|MemMap|HostAlloc|HostRegister", re.I)),
)

Span = tuple[float, float]


def timeline(path: Path, window: str = "truth_run") -> Timeline:
    """The Timeline of the annotation ``window`` in a trace file. Raises ValueError where the trace has none."""
    events = json.loads(path.read_text())["traceEvents"]
    spans = [e for e in events if e.get("ph") == "X" and "dur" in e]
    marks = [e for e in spans if e.get("name") == window and e.get("cat") in ("user_annotation", "cpu_op")]
    if not marks:
        raise ValueError(f"{path.name} has no annotation {window}")
    start, end = float(marks[0]["ts"]), float(marks[0]["ts"]) + float(marks[0]["dur"])
    device = [e for e in spans if e.get("cat") in DEVICE and start <= float(e["ts"]) < end]
    api = [e for e in spans if e.get("cat") in API and start <= float(e["ts"]) < end]
    copies = [e for e in device if e["cat"] == "gpu_memcpy" and "DtoD" not in e["name"]]
    busy = _union((_span(e) for e in device), start, end)
    idle = _complement(busy, start, end)
    waits = [e for e in api if KINDS[1][1].search(e["name"])]
    return Timeline(
        wall_seconds=(end - start) * 1e-6,
        busy_seconds=sum(b - a for a, b in busy) * 1e-6,
        gap_seconds=sum(b - a for a, b in idle) * 1e-6,
        copy_seconds=sum(float(e["dur"]) for e in copies) * 1e-6,
        launches=sum(1 for e in device if e["cat"] == "kernel"),
        idle_seconds={kind: us * 1e-6 for kind, us in _idle(idle, api).items()},
        pageable_seconds=sum(float(e["dur"]) for e in copies if "Pageable" in e["name"]) * 1e-6,
        synchronisations=max(len(waits) - 1, 0),
        allocations=sum(1 for e in api if KINDS[3][1].search(e["name"])),
    )


def _span(event: dict[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _union(spans: Iterable[Span], start: float, end: float) -> list[Span]:
    """Spans merged where they touch, cut to the window."""
    merged: list[Span] = []
    for a, b in sorted(spans):
        a, b = max(a, start), min(b, end)
        if b <= a:
            continue
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], b))
        else:
            merged.append((a, b))
    return merged


def _complement(busy: Sequence[Span], start: float, end: float) -> list[Span]:
    edges = [start, *(edge for span in busy for edge in span), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def _idle(idle: Sequence[Span], api: Sequence[dict[str, Any]]) -> dict[Idle, float]:
    """Idle microseconds by what the host was in: a call of the runtime, or nothing of it."""
    found: dict[Idle, float] = dict.fromkeys(("launch", "synchronise", "copy", "allocation", "host"), 0.0)
    calls = sorted((*_span(e), _kind(e["name"])) for e in api)
    at = 0
    for a, b in idle:
        while at < len(calls) and calls[at][1] <= a:
            at += 1
        cursor, place = a, at
        while place < len(calls) and calls[place][0] < b:
            begin, finish, kind = calls[place]
            begin, finish = max(begin, cursor), min(finish, b)
            if begin > cursor:
                found["launch" if begin - cursor <= SHORT_GAP else "host"] += begin - cursor
            if finish > begin:
                found[kind] += finish - begin
                cursor = finish
            cursor = max(cursor, begin)
            place += 1
        if b > cursor:
            found["launch" if b - cursor <= SHORT_GAP else "host"] += b - cursor
    return {kind: us for kind, us in found.items() if us > 0}


def _kind(name: str) -> Idle:
    for kind, pattern in KINDS:
        if pattern.search(name):
            return kind
    return "host"
