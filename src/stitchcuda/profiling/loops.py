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
from stitchcuda.profiling.model import BY_HAND, Loop
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
_NO_VECTOR = "no vectype for stmt"
"""How GCC's reason begins where it has no vectors of the elements' type, which stands on the next line."""
_TYPE = re.compile(r"^\s+scalar_type: (?:(?:const|volatile) )*(?P<type>.+?)\s*$")
_VECTOR_TYPE = re.compile(
    r"^(__m(64|128|256|512)|__v\d+|vector\(|__vector|(u?int|float|bfloat|poly)\d+x\d+_t$|sv\w+_t$|__SV)"
)
"""Types whose values are vectors already, of x86 and of Arm."""
_PLAIN = {"float", "double", "int", "long", "char", "short"}
"""Words beside a vector type's name in its declaration that are types themselves."""
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
    written = "\n".join(program.files[path] for path in program.files if is_native(path))
    return [loop for loop in parse(text, written) if loop.file in program.files]


def parse(text: str, sources: str = "") -> list[Loop]:
    """Loops from what GCC prints, by file and line, each once; loops that it calls outer ones are left out.

    A loop that was vectorised in one of its versions counts as vectorised. ``sources`` name their own vector types.
    """
    lines = (line for line in sources.splitlines() if "vector_size" in line)
    declared = {word for line in lines for word in re.findall(r"\w+", line)} - _PLAIN
    found: dict[tuple[str, int], int] = {}
    reasons: dict[tuple[str, int], str] = {}
    ahead: tuple[str, int] | None = None
    """The loop of the line before: a reason that follows is its own, though it may name the intrinsics' header."""
    untyped: tuple[str, int] | None = None
    for line in text.splitlines():
        before, ahead = ahead, None
        if untyped is not None and (match := _TYPE.match(line)):
            known = _VECTOR_TYPE.match(match["type"]) or match["type"] in declared
            reasons[untyped] = BY_HAND if known else f"GCC has no vectors of its type {match['type']}"
        untyped = None
        if match := _VECTORISED.match(line):
            place = (match["file"].removeprefix("./"), int(match["line"]))
            found[place] = max(int(match["bytes"]), found.get(place, 0))
        elif match := _MISSED.match(line):
            ahead = (match["file"].removeprefix("./"), int(match["line"]))
            found.setdefault(ahead, 0)
        elif match := _REASON.match(line):
            place = (match["file"].removeprefix("./"), int(match["line"]))
            if match["why"].startswith(_NO_VECTOR) and before is not None:
                place = before
                untyped = place if place not in reasons else None
            reasons.setdefault(place, match["why"])
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
