"""What the compiler vectorised of a Program's own C++ sources, and why not the rest: GCC's report, read as text.

The sources are compiled once more, with the flags that built them, in the confinement of the runner. Nothing of the
Program runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from stitchcuda.errors import ProfilerError
from stitchcuda.evaluation.build_tools import cpu_toolchain
from stitchcuda.profiling.confinement import run_confined
from stitchcuda.profiling.model import Loop
from stitchcuda.program.flags import is_native, native_sources
from stitchcuda.program.model import Program
from stitchcuda.task.model import Target

REPORT_FLAG = "-fopt-info-vec-optimized-missed"
"""What makes GCC say which loops it vectorised, and why not the others."""
TIMEOUT_S = 60.0
MOST_TEXT = 8 << 20
"""Bytes of a report that are read; templates repeat themselves."""
REASON = 120
"""Characters of a reason; GCC quotes whole statements."""
BODY = 20
"""Lines below a loop's head in which a reason is taken for its own: the compiler names the statement, not the loop."""

_VECTORISED = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: optimized:\s+loop vectorized using (?P<bytes>\d+) byte"
)
_MISSED = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: missed:\s+couldn't vectorize loop")
_REASON = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: missed:\s+not vectorized: (?P<why>.+?)\.?\s*$")
_OUTER = re.compile(r"nested loops|inner loops?\b|outer[- ]loop")
"""Reasons of loops around others, which nobody expects to be vectorised."""


def report(program: Program, target: Target, *, timeout_s: float = TIMEOUT_S) -> list[Loop]:
    """Loops of a Program's C++ sources, by file and line; those of the system's headers are left out.

    Raises ToolMissing without a compiler, ProfilerError when it does not report: a source that does not compile, or
    a compiler that is not GCC.
    """
    sources = native_sources(program.files, target.kind)
    if not sources:
        return []
    toolchain = cpu_toolchain(target.arch)
    outputs = [f"loops.{number}" for number in range(len(sources))]
    commands = [
        [toolchain.compiler, *toolchain.compile_flags, f"{REPORT_FLAG}={output}", "-c", source, "-o", "/dev/null"]
        for source, output in zip(sources, outputs, strict=True)
    ]
    done = run_confined(
        commands,
        {path: text.encode() for path, text in program.files.items() if is_native(path)},
        outputs,
        level="full",
        timeout_s=timeout_s,
        readable=toolchain.roots,
    )
    if not done.ok or any(output not in done.files for output in outputs):
        last = next(
            (line for line in done.printed.splitlines() if "error" in line),
            done.printed.strip()[-200:] or "it wrote nothing",
        )
        if done.codes and done.codes[-1] is None:
            last = f"it took longer than {timeout_s:.0f} s"
        raise ProfilerError(f"{toolchain.compiler} reports no loops ({last}); the report needs GCC: set CXX to a g++")
    text = "\n".join(done.files.get(output, b"")[:MOST_TEXT].decode("utf-8", "replace") for output in outputs)
    return [loop for loop in parse(text) if loop.file in program.files]


def parse(text: str) -> list[Loop]:
    """Loops from what GCC prints, by file and line, each once; loops that it calls outer ones are left out.

    A loop that was vectorised in one of its versions counts as vectorised.
    """
    found: dict[tuple[str, int], int] = {}
    reasons: dict[tuple[str, int], str] = {}
    for line in text.splitlines():
        if match := _VECTORISED.match(line):
            place = (match["file"].removeprefix("./"), int(match["line"]))
            found[place] = max(int(match["bytes"]), found.get(place, 0))
        elif match := _MISSED.match(line):
            found.setdefault((match["file"].removeprefix("./"), int(match["line"])), 0)
        elif match := _REASON.match(line):
            reasons.setdefault((match["file"].removeprefix("./"), int(match["line"])), match["why"])
    loops = []
    for place, width in sorted(found.items()):
        why = "" if width else reasons.get(place) or _in_the_body(place, found, reasons)
        if not _OUTER.search(why):
            loops.append(Loop(file=place[0], line=place[1], vector_bytes=width, reason=why[:REASON]))
    return loops


def _in_the_body(
    place: tuple[str, int], loops: Iterable[tuple[str, int]], reasons: Mapping[tuple[str, int], str]
) -> str:
    """The first reason given for a line below a loop's head and above the next loop's."""
    file, line = place
    end = min([at for name, at in loops if name == file and at > line], default=line + BODY)
    below = [(at, why) for (name, at), why in reasons.items() if name == file and line <= at < min(end, line + BODY)]
    return min(below)[1] if below else ""
