"""A Chrome trace of torch.profiler (Kineto) as a Recording: what there is without Nsight Systems, and on a CPU.

Taking the trace is ``profiling.driver``. The file may come from a process that is not trusted: what does not look like
an event is left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stitchcuda.errors import ProfilerError
from stitchcuda.profiling.recording import CALL, ApiCall, DeviceOp, MemoryEvent, OpKind, Range, Recording, clipped

DEVICE: dict[str, OpKind] = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
API = ("cuda_runtime", "cuda_driver")
RANGES = ("user_annotation", "cpu_op")
PROFILERS_OWN = ("ProfilerStep", "PyTorch Profiler", "Iteration Start")
LATEST = 1 << 62
"""Nanoseconds; no clock shows as much."""
_DIRECTION = re.compile(r"\b([HDPA])to([HDPA])\b")

Event = dict[str, Any]


def read(path: Path, *, version: str = "") -> Recording:
    """The whole trace. Raises ProfilerError for a file that is missing, cut off, or no trace."""
    try:
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        events = document["traceEvents"] if isinstance(document, dict) else document
        if not isinstance(events, list):
            raise TypeError("traceEvents is no list")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProfilerError(f"{path.name} is no readable Chrome trace ({error}); record it again") from None
    found = Recording("kineto", version)
    if isinstance(document, dict):
        devices = document.get("deviceProperties") or []
        found.device = next((str(d.get("name", "")) for d in devices if isinstance(d, dict)), "")
    for event in events:
        if isinstance(event, dict) and event.get("ph") in ("X", "i") and _add(found, event):
            continue
    found.target = "cuda" if found.ops or found.api else "cpu"
    if not found.ops and found.target == "cuda":
        found.remarks.append("the trace holds no kernel and no copy")
    if not (found.ops or found.ranges):
        found.remarks.append("the trace is empty")
    return found.sort()


def _add(found: Recording, event: Event) -> bool:
    """Take one event in; False for what is none of ours."""
    category, name, arguments = event.get("cat"), event.get("name"), event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    if not isinstance(name, str) or not isinstance(category, str):
        return False
    try:
        start = round(float(event["ts"]) * 1000)
        end = start + round(float(event.get("dur", 0)) * 1000)
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
    if not -LATEST < start <= end < LATEST:
        return False
    thread = _number(event.get("tid"))
    if category in DEVICE:
        found.ops.append(_device(DEVICE[category], clipped(name), start, end, arguments))
    elif category in API:
        found.api.append(ApiCall(start, end, clipped(name), thread, _number(arguments.get("correlation"), -1)))
    elif category in RANGES and not name.startswith(PROFILERS_OWN):
        operator = category == "cpu_op" or name.startswith("own::")
        found.ranges.append(Range(start, end, clipped(name), thread, operator and name != CALL))
    elif category == "cpu_instant_event" and name == "[memory]" and arguments.get("Device Type") == 1:
        found.memory.append(MemoryEvent(start, _number(arguments.get("Bytes"))))
    else:
        return False
    return True


def _device(kind: OpKind, name: str, start: int, end: int, arguments: Event) -> DeviceOp:
    direction = _DIRECTION.search(name) if kind == "copy" else None
    grid, block = _three(arguments.get("grid")), _three(arguments.get("block"))
    # A graph's nodes carry its number.
    graph = _number(arguments.get("graph node id")) > 0 or _number(arguments.get("graph id")) > 0
    return DeviceOp(
        start,
        end,
        name,
        kind,
        _number(arguments.get("stream")),
        _number(arguments.get("correlation"), -1),
        _number(arguments.get("bytes")),
        direction[0] if direction else "",
        kind == "copy" and "Pageable" in name,
        graph,
        grid,
        block,
        _number(arguments.get("registers per thread")),
        _number(arguments.get("shared memory")),
    )


def _number(value: Any, otherwise: int = 0) -> int:
    return int(value) if isinstance(value, int | float) and abs(value) < 1 << 62 else otherwise


def _three(value: Any) -> tuple[int, int, int] | None:
    if isinstance(value, list) and len(value) == 3:
        return _number(value[0]), _number(value[1]), _number(value[2])
    return None
