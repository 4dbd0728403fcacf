"""A Recording as a file that Perfetto and Chrome's tracing page open (Trace Event Format, JSON)."""

from __future__ import annotations

import json
from typing import Any

from stitchcuda.profiling.recording import CALL, Recording

DEVICE, HOST = 1, 2
"""Process numbers of the two groups of rows."""
MOST_EVENTS = 500_000
"""Events written; of a longer recording, those of the first calls."""


def chrome_trace(recording: Recording, *, title: str = "") -> str:
    """Device operations by stream, API calls and ranges by thread, device memory as a counter; microseconds from 0."""
    zero = recording.span[0]
    events: list[dict[str, Any]] = [
        _meta(DEVICE, f"device {recording.device}".strip()),
        _meta(HOST, "host"),
    ]
    threads = {
        thread: number for number, thread in enumerate(sorted({c.thread for c in recording.api} | _threads(recording)))
    }
    for thread, number in threads.items():
        events.append(_meta(HOST, f"thread {thread & 0xFFFFFF}", 2 * number))
        events.append(_meta(HOST, "CUDA API", 2 * number + 1))
    for stream in sorted({op.stream for op in recording.ops}):
        events.append(_meta(DEVICE, f"stream {stream}", stream))
    for op in recording.ops:
        facts = {
            "operator": op.operator,
            "grid": list(op.grid) if op.grid else None,
            "block": list(op.block) if op.block else None,
            "registers": op.registers,
            "shared bytes": op.shared_bytes,
            "bytes": op.bytes,
            "graph node": op.graph,
            "correlation": op.correlation & 0xFFFFFFFF,
        }
        arguments = {name: value for name, value in facts.items() if value}
        events.append(_span(op.name, op.kind, op.start - zero, op.end - op.start, DEVICE, op.stream, arguments))
    for call in recording.api:
        row = 2 * threads[call.thread] + 1
        events.append(_span(call.name, "api", call.start - zero, call.end - call.start, HOST, row, {"kind": call.kind}))
    for span in recording.ranges:
        kind = "call" if span.name == CALL else "operator" if span.operator else "range"
        row = 2 * threads[span.thread]
        events.append(_span(span.name, kind, span.start - zero, span.end - span.start, HOST, row, {}))
    total = 0
    for event in recording.memory:
        total += event.bytes
        events.append(
            {
                "ph": "C",
                "name": "device memory",
                "pid": DEVICE,
                "ts": (event.time - zero) / 1000,
                "args": {"bytes": total},
            }
        )
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "source": f"{recording.source} {recording.version}".strip()},
        "traceEvents": events[:MOST_EVENTS],
    }
    return json.dumps(document, separators=(",", ":"))


def _threads(recording: Recording) -> set[int]:
    return {span.thread for span in recording.ranges}


def _span(
    name: str, kind: str, start: int, length: int, group: int, row: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "ts": start / 1000,
        "dur": length / 1000,
        "pid": group,
        "tid": row,
        "args": arguments,
    }


def _meta(group: int, name: str, row: int | None = None) -> dict[str, Any]:
    kind = "process_name" if row is None else "thread_name"
    return {"ph": "M", "name": kind, "pid": group, "tid": row or 0, "args": {"name": name}}
