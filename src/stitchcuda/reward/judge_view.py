"""A Program as the Judge sees it: all of its files in neutral text, in an order that their names do not decide.

What its author says is nowhere in it: not in comments, strings, names of things or files, nor in the notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stitchcuda.program.model import ENTRY, MANIFEST, Manifest, Program
from stitchcuda.reward.judge_names import Names, identifiers
from stitchcuda.reward.judge_native import native_text
from stitchcuda.reward.judge_python import CannotBeShown, python_text

LIMIT = 60_000
"""Characters of neutral text; a program with more is not shown in part, for the part that is left out could matter."""
_CUDA = ("cu", "cuh")
_INCLUDED = re.compile(r'#[ \t]*include[ \t]*"(?:[^"\n]*/)?([^"/\n]+)"')
"""The last part of an own file's name that another one includes: such a file is code, whatever it is called."""
_NATIVE = (*_CUDA, "c", "cc", "cpp", "cxx", "h", "hh", "hpp", "hxx", "inl")


@dataclass(frozen=True)
class Shown:
    """One file."""

    title: str
    language: str
    text: str


@dataclass(frozen=True)
class View:
    """All files, and the names that stand for the program's own."""

    files: list[Shown]
    names: Names


def view(program: Program, reference: str) -> View:
    """The neutral text of a Program for a task with this source. Raises CannotBeShown."""
    known = identifiers(reference)
    names = Names(known)
    files: list[Shown] = []
    python = [path for path in program.files if path.endswith(".py")]
    taken_in = {name for text in program.files.values() for name in _INCLUDED.findall(text)}
    native = [
        path
        for path in program.files
        if _suffix(path) in _NATIVE or (path not in python and path.rpartition("/")[2] in taken_in)
    ]
    others = [path for path in program.files if path not in python and path not in native and path != MANIFEST]
    for path in [ENTRY, *sorted((p for p in python if p != ENTRY), key=lambda p: _python_key(program.files[p], known))]:
        if path not in program.files:
            raise CannotBeShown(f"there is no {ENTRY}")
        text, sources = python_text(program.files[path], names)
        files.append(Shown("Python, the entry" if path == ENTRY else "Python", "python", text))
        for number, source in enumerate(sources, start=1):
            files.append(Shown(f"NATIVE_SOURCE_{number} of the Python file above", "cuda", native_text(source, names)))
    for path in sorted(native, key=lambda p: (_suffix(p), native_text(program.files[p], Names(known)))):
        language = "cuda" if _suffix(path) in _CUDA else "cpp"
        files.append(Shown("CUDA" if language == "cuda" else "C++", language, native_text(program.files[path], names)))
    if program.manifest is not None:
        files.append(Shown("what the native sources offer to Python", "", _offered(program.manifest, names)))
    if others:
        files.append(Shown("other files", "", f"{len(others)} that hold neither Python nor C++, not shown"))
    if (size := sum(len(file.text) for file in files)) > LIMIT:
        raise CannotBeShown(f"it has {size:,} characters without comments; at most {LIMIT:,} are shown")
    return View(files, names)


def reference_text(source: str) -> str:
    """The task's own program, names kept. Raises CannotBeShown."""
    return python_text(source, Names(keep=True))[0]


def _python_key(source: str, known: frozenset[str]) -> str:
    return python_text(source, Names(known))[0]


def _suffix(path: str) -> str:
    return path.rpartition(".")[2].lower()


def _offered(manifest: Manifest, names: Names) -> str:
    lines = [f"target {manifest.target}"]
    lines += [f"links {library}" for library in sorted(manifest.libraries)]
    for launcher in manifest.launchers:
        arguments = ", ".join(
            f"{argument.role} {argument.kind} {names.identifier(argument.name)}: {argument.dtype}"
            + (f" {argument.layout}" if argument.kind == "tensor" else "")
            + (" or none" if argument.optional else "")
            for argument in launcher.arguments
        )
        lines.append(f"{names.identifier(launcher.name)}({arguments})")
    return "\n".join(lines)
