"""Where time goes on a CPU: ``perf stat``'s counters where the kernel allows them, and what the compiler vectorised.

Both are read as text and may be absent: many containers hide the counters, and a report then says so. Operators'
times come from torch.profiler (``profiling.profiler``).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stitchcuda.errors import ProfilerError, ToolMissing

EVENTS = (
    "task-clock",
    "page-faults",
    "context-switches",
    "cycles",
    "instructions",
    "branches",
    "branch-misses",
    "cache-references",
    "cache-misses",
)
"""Events that every kernel names; what the machine lacks is left out of the answer."""
LINE_BYTES = 64
"""What a cache miss fetches."""
MISSES_MATTER = 0.40
"""Share of the measured bandwidth that cache misses account for, from which memory is what binds."""
LOW_IPC = 0.8
"""Instructions a cycle below which a core mostly waits; a core that computes reaches 2 and more."""
MISPREDICTED = 0.05
"""Branches mispredicted from which control flow costs."""
REPORT_FLAGS = ("-fopt-info-vec-all",)
"""What makes GCC say which loops it vectorised, and why not the others."""

_VECTORISED = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: optimized:\s+loop vectorized using (?P<bytes>\d+) byte"
)
_MISSED = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: missed:\s+couldn't vectorize loop")
_REASON = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: missed:\s+not vectorized: (?P<why>.+?)\.?\s*$")


@dataclass(frozen=True)
class Counts:
    """Events of a program, all its processes and threads together. ``missing``: what this machine does not count."""

    events: dict[str, float]
    missing: list[str] = field(default_factory=list)

    def ratio(self, part: str, whole: str) -> float | None:
        """One event for each of another; None where either was not counted."""
        top, bottom = self.events.get(part), self.events.get(whole)
        return top / bottom if top is not None and bottom else None

    @property
    def instructions_per_cycle(self) -> float | None:
        """Below about 0.8 a core mostly waits."""
        return self.ratio("instructions", "cycles")

    @property
    def seconds_of_cores(self) -> float | None:
        """Time summed over the cores that were used."""
        clock = self.events.get("task-clock")
        return clock / 1e3 if clock is not None else None


@dataclass(frozen=True)
class Loop:
    """One loop of a source as the compiler reports it. ``vector_bytes`` is 0 where it stayed scalar."""

    file: str
    line: int
    vector_bytes: int
    reason: str = ""


def find_perf() -> Path:
    """perf on PATH. Raises ToolMissing."""
    if found := shutil.which("perf"):
        return Path(found)
    raise ToolMissing("perf is not on this machine; install linux-perf (Debian) or linux-tools (Ubuntu)")


def count(
    program: Sequence[str],
    *,
    timeout_s: float = 60.0,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    events: Sequence[str] = EVENTS,
) -> Counts:
    """Run ``program`` under ``perf stat``.

    Raises ToolMissing without perf, ProfilerError when the kernel forbids all counting, the program fails or time
    is up.
    """
    perf = find_perf()
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        out = Path(folder) / "stat.csv"
        words = [str(perf), "stat", "-x", ";", "-o", str(out), "-e", ",".join(events), "--", *program]
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            _, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ProfilerError(
                f"the program ran longer than {timeout_s:.0f} s under perf; give it less to do"
            ) from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        text = out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""
    if "perf_event_paranoid" in said or "Access to performance monitoring" in said:
        raise ProfilerError(
            "the kernel forbids counting (perf_event_paranoid); run as root, or set kernel.perf_event_paranoid to 1"
        )
    if process.returncode:
        raise ProfilerError(f"the program failed under perf with exit code {process.returncode}: {said.strip()[-300:]}")
    return parse_counts(text)


def parse_counts(text: str) -> Counts:
    """Events from ``perf stat -x ';'``; what is '<not supported>' or '<not counted>' goes to ``missing``."""
    events: dict[str, float] = {}
    missing = []
    for line in text.splitlines():
        parts = line.split(";")
        if len(parts) < 3 or line.startswith("#"):
            continue
        name = parts[2].split(":", 1)[0]
        try:
            events[name] = float(parts[0].replace(",", "."))
        except ValueError:
            missing.append(name)
    return Counts(events, missing)


def parse_loops(text: str) -> list[Loop]:
    """Loops from what GCC prints with ``-fopt-info-vec-all``, by file and line, each once.

    A loop that was vectorised in one of its versions counts as vectorised.
    """
    found: dict[tuple[str, int], Loop] = {}
    reasons: dict[tuple[str, int], str] = {}
    for line in text.splitlines():
        if match := _VECTORISED.match(line):
            place = (match["file"], int(match["line"]))
            width = max(int(match["bytes"]), found[place].vector_bytes if place in found else 0)
            found[place] = Loop(*place, width)
        elif match := _MISSED.match(line):
            place = (match["file"], int(match["line"]))
            found.setdefault(place, Loop(*place, 0))
        elif match := _REASON.match(line):
            reasons.setdefault((match["file"], int(match["line"])), match["why"])
    loops = []
    for place, loop in sorted(found.items()):
        why = "" if loop.vector_bytes else reasons.get(place, _nearest(place, reasons))
        loops.append(Loop(loop.file, loop.line, loop.vector_bytes, why))
    return loops


def vectorisation(source: Path, compiler: str = "g++", flags: Iterable[str] = ("-O3", "-march=native")) -> list[Loop]:
    """Compile ``source`` and report its own loops; those of headers are left out.

    Raises ToolMissing without the compiler, ProfilerError when the source does not compile.
    """
    words = [compiler, *flags, *REPORT_FLAGS, "-c", "-o", os.devnull, str(source)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    except OSError as error:
        raise ToolMissing(f"{compiler} cannot be started: {error}") from None
    except subprocess.TimeoutExpired:
        raise ProfilerError(f"{compiler} took longer than 120 s over {source}") from None
    if done.returncode:
        raise ProfilerError(f"{source} does not compile: {done.stderr.strip().splitlines()[-1:]}")
    return [loop for loop in parse_loops(done.stderr) if Path(loop.file).name == source.name]


def diagnose(counts: Counts, bytes_per_second: float = 0.0) -> tuple[str, str]:
    """A label and its evidence: 'memory_bound', 'latency_bound', 'compute_bound', or 'unknown' without counters.

    ``bytes_per_second`` is the device's measured copy rate, read plus written.
    """
    ipc, seconds = counts.instructions_per_cycle, counts.seconds_of_cores
    misses = counts.events.get("cache-misses")
    if ipc is None:
        lacking = ", ".join(counts.missing[:3]) or "cycles"
        return "unknown", f"this machine does not count {lacking}"
    told = f"{ipc:.2f} instructions a cycle"
    if misses is not None and seconds and bytes_per_second > 0:
        rate = misses * LINE_BYTES / seconds
        told += f", cache misses move {rate / 1e9:.1f} of {bytes_per_second / 1e9:.1f} GB/s"
        if rate >= MISSES_MATTER * bytes_per_second:
            return "memory_bound", told
    mispredicted = counts.ratio("branch-misses", "branches")
    if mispredicted is not None and mispredicted >= MISPREDICTED:
        return "latency_bound", f"{told}, {mispredicted:.0%} of branches mispredicted"
    return ("latency_bound" if ipc < LOW_IPC else "compute_bound"), told


def _nearest(place: tuple[str, int], reasons: Mapping[tuple[str, int], str]) -> str:
    """The first reason given for a line of the loop's body: the compiler names the statement, not the loop."""
    file, line = place
    below = [(at, why) for (name, at), why in reasons.items() if name == file and line <= at <= line + 20]
    return min(below)[1] if below else ""
