"""Timelines of whole calls: the driver under Nsight Systems, or with torch.profiler inside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from driver import RANGE

from stitchcuda.profiling import nsys as tool
from stitchcuda.profiling import nsys_db
from stitchcuda.profiling.model import Timeline
from stitchcuda.profiling.ncu import clean_environment
from stitchcuda.profiling.recording import CALL, ApiCall, DeviceOp, Range, Recording
from stitchcuda.profiling.timeline import analyse

DRIVER = Path(__file__).with_name("driver.py")
TIMEOUT_S = 150


def by_nsys(libraries: Sequence[Path], out: Path) -> tuple[dict[str, Timeline], str]:
    """Timelines by case, and what went wrong ('' when nothing). Raises ToolMissing without Nsight Systems."""
    found = tool.find_nsys()
    out.mkdir(parents=True, exist_ok=True)
    report, database = str(out / "report"), out / "report.sqlite"
    words = [sys.executable, str(DRIVER), "nsys", str(out), *map(str, libraries)]
    environment = clean_environment(out, found.environment)
    said = _run(tool.profile_command(found, words, report, ranged=False), environment)
    said += _run(tool.export_command(found, report, str(database)), environment)
    if not database.is_file():
        return {}, tool.explain(said)
    recording = nsys_db.read(database)
    return {stem: line for stem in _stems(libraries) if (line := timeline(recording, stem)) is not None}, ""


def by_kineto(libraries: Sequence[Path], out: Path) -> tuple[dict[str, Timeline], str]:
    """The same by torch.profiler; a case that fails ends its process, and what comes after it has no Timeline."""
    out.mkdir(parents=True, exist_ok=True)
    said = _run([sys.executable, str(DRIVER), "kineto", str(out), *map(str, libraries)], clean_environment(out))
    lines = {}
    for stem in _stems(libraries):
        path = out / f"{stem}.trace.json"
        if path.is_file() and (line := timeline(read_chrome(path), stem)) is not None:
            lines[stem] = line
    return lines, "" if lines else (said.strip().splitlines() or ["nothing was traced"])[-1]


def timeline(recording: Recording, stem: str) -> Timeline | None:
    """One case's Timeline, averaged over its calls; None where the recording has none of them."""
    windows = recording.windows(RANGE + stem)
    if not windows:
        return None
    part = recording.within(windows[0][0], windows[-1][1])
    calls = [Range(start, end, CALL, 0) for start, end in windows]
    return analyse(replace(part, ranges=calls)).timeline


def read_chrome(path: Path) -> Recording:
    """A Chrome trace of torch.profiler as a Recording."""
    events = json.loads(path.read_text())["traceEvents"]
    found = Recording("kineto")
    for event in events:
        if event.get("ph") != "X" or "dur" not in event:
            continue
        kind, name, arguments = event.get("cat", ""), str(event.get("name", "")), event.get("args", {})
        start = round(float(event["ts"]) * 1e3)
        end = start + round(float(event["dur"]) * 1e3)
        number = int(arguments.get("correlation", -1))
        if kind in _DEVICE:
            op = DeviceOp(start, end, name, cast(Any, _DEVICE[kind]), int(arguments.get("stream", 0)), number)
            if op.kind == "copy":
                op.direction = next((way for way in ("HtoD", "DtoH", "DtoD") if way in name), "")
                op.pageable = "Pageable" in name
            found.ops.append(op)
        elif kind in ("cuda_runtime", "cuda_driver"):
            found.api.append(ApiCall(start, end, name, _thread(event), number))
        elif kind == "user_annotation":
            found.ranges.append(Range(start, end, name, _thread(event)))
    return found.sort()


_DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}


def _thread(event: Mapping[str, Any]) -> int:
    tid = event.get("tid", 0)
    return tid if isinstance(tid, int) else 0


def _stems(libraries: Iterable[Path]) -> list[str]:
    return [library.stem for library in libraries]


def _run(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """What a command printed; it is killed with all that it started when its time is up."""
    process = subprocess.Popen(
        words,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
        return said
    except subprocess.TimeoutExpired:
        return f"took longer than {TIMEOUT_S} s\n"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
