"""Timelines of whole calls: the driver under Nsight Systems, or with torch.profiler inside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from driver import RANGE
from kernels import clean_environment
from tools import printed

from stitchcuda.profiling import kineto, nsys_db
from stitchcuda.profiling import nsys as tool
from stitchcuda.profiling.model import Timeline
from stitchcuda.profiling.recording import CALL, Range, Recording
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
        if path.is_file() and (line := timeline(kineto.read(path), stem)) is not None:
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


def _stems(libraries: Iterable[Path]) -> list[str]:
    return [library.stem for library in libraries]


def _run(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """What a command printed, or that its time was up."""
    try:
        return printed(words, environment, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"took longer than {TIMEOUT_S} s\n"
