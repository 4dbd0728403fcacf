"""A Coder's reply to a Program, or to why there shall be none, with the checks that catch what would otherwise fail
late or silently.

Each error is a ProgramError whose words can be sent back to the model. Parsing itself is ``program.parse``; what is
checked here besides is that Python side, manifest and C prototypes agree: arguments that differ only between
manifest and C would be read as garbage, not refused.
"""

from __future__ import annotations

import ast
import re
from typing import Literal

from stitchcuda.errors import ProgramError
from stitchcuda.program.model import ENTRY, Argument, Launcher, Program
from stitchcuda.program.validate import tree_of

_C_TYPES: dict[str, frozenset[str]] = {
    "float32": frozenset({"float"}),
    "float64": frozenset({"double"}),
    "float16": frozenset({"__half", "half"}),
    "bfloat16": frozenset({"__nv_bfloat16", "nv_bfloat16", "__bf16"}),
    "int8": frozenset({"int8_t", "char", "signed char"}),
    "uint8": frozenset({"uint8_t", "unsigned char"}),
    "int16": frozenset({"int16_t", "short"}),
    "int32": frozenset({"int32_t", "int"}),
    "int64": frozenset({"int64_t", "long long", "long", "long int", "long long int", "ptrdiff_t", "ssize_t"}),
    "bool": frozenset({"bool"}),
}
_KNOWN_TYPES = frozenset().union(*_C_TYPES.values())


LONGEST_WORDS = 600
"""Characters that are kept of what a Coder says about its program, or of why it wrote none."""

_REFUSAL = re.compile(r"\W*NO[ _]GAIN\b[\W_]*(?P<reason>.*)", re.DOTALL)
_FENCED = re.compile(r"^ {0,3}(?P<marks>`{3,}|~{3,}).*?(?:^ {0,3}(?P=marks)[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_EDIT = re.compile(r"^<<<<<<< SEARCH.*?(?:^>>>>>>> REPLACE[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_OUTER = re.compile(
    r"\s*(?P<marks>`{3,}|~{3,})[^\n]*\n(?P<inside>.*?)^ {0,3}(?P=marks)[ \t]*$", re.DOTALL | re.MULTILINE
)
# No class may match what the next one can: a reply of nothing but such lines would cost the square of its length.
_NAMES = re.compile(r"^[^\w\n]*\w[\w./-]*\.(?:py|cuh?|cpp|h|json)[^\w\n]*$|^#+ ", re.MULTILINE)


class Amendable(ValueError):
    """What is wrong with a reply whose files could be read: edits of them will do."""


def read_program(text: str, base: Program | None, target: Literal["cuda", "cpu"]) -> Program:
    """The Program in a reply, whose Python side, manifest and C prototypes agree. Raises ProgramError."""
    program = files_of(text, base)
    check_native_side(program, target)
    return program


def files_of(text: str, base: Program | None) -> Program:
    """The Program in a reply.

    Search/replace blocks edit ``base``, and whole files beside them replace its own. A reply that is a whole program
    by itself replaces ``base``; otherwise its files replace those of the same name. Raises ProgramError.
    """
    from stitchcuda.program.parse import parse_edits, parse_reply

    if not text.strip():
        raise ProgramError("The reply is empty; expected the program's files.")
    if base is not None and "<<<<<<< SEARCH" in text:
        return parse_edits(text, base)
    whole = _whole(text) if base is not None else None
    return whole or parse_reply(text, base=base)


def refusal(text: str) -> str | None:
    """Why a step is refused, where the reply says NO GAIN in place of a program; else None.

    The refusal may stand in a fence, and its reason may quote code. Raises ProgramError for a refusal without a
    reason, or with a program's files.
    """
    from stitchcuda.program.parse import holds_files

    fence = _OUTER.match(text)
    if fence is not None and _REFUSAL.match(fence["inside"]):
        text = fence["inside"] + text[fence.end() :]
    match = _REFUSAL.match(text)
    if match is None:
        return None
    if holds_files(text):
        raise ProgramError("The reply says NO GAIN and holds code; send either the program, or NO GAIN and the reason.")
    reason = _flat(match["reason"])
    if len(reason) < len("too slow"):
        raise ProgramError("NO GAIN needs its reason: the figures that show that this step cannot help.")
    return reason


def explanation(text: str) -> str:
    """What a reply says beside its code: files, edits and their names left out."""
    return _flat(_NAMES.sub(" ", _EDIT.sub(" ", _FENCED.sub(" ", text))))


def _flat(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= LONGEST_WORDS else words[: LONGEST_WORDS - 1] + "…"


def _whole(text: str) -> Program | None:
    """The Program in ``text`` alone, if that is one."""
    from stitchcuda.program.parse import parse_reply

    try:
        program = parse_reply(text)
    except ProgramError:
        return None
    return None if imported_launchers(program) and program.manifest is None else program


def imported_launchers(program: Program) -> list[str]:
    """Names that the Program's Python files import from ``bindings``, in order. Raises ProgramError."""
    names: list[str] = []
    for path, source in program.files.items():
        if not path.endswith(".py"):
            continue
        for node in ast.walk(tree_of(source, path)):
            if isinstance(node, ast.ImportFrom) and node.module == "bindings":
                names += [alias.name for alias in node.names]
    return names


def check_native_side(program: Program, target: Literal["cuda", "cpu"]) -> None:
    """Raise ProgramError where program.py, manifest.json and the C prototypes contradict each other."""
    imported = imported_launchers(program)
    if program.manifest is None:
        if imported:
            raise ProgramError(
                f"{ENTRY} imports {', '.join(imported)} from bindings, but there is no manifest.json; send it too"
            )
        return
    if program.manifest.target != target:
        raise ProgramError(f"manifest.json has target '{program.manifest.target}'; this task's target is '{target}'")
    launchers = {launcher.name: launcher for launcher in program.manifest.launchers}
    for name in imported:
        if name not in launchers and name != "PROFILE":
            have = ", ".join(launchers)
            raise ProgramError(f"{name} is imported from bindings, but manifest.json lists only {have}; list it too")
    for launcher in launchers.values():
        _check_prototype(launcher, program.files[launcher.source])


def _check_prototype(launcher: Launcher, source: str) -> None:
    parameters = _parameters(launcher.name, source)
    if parameters is None:
        return  # Written through a macro; the linker will tell.
    wanted = [*(argument.name for argument in launcher.arguments), "stream"]
    if len(parameters) != len(wanted):
        raise ProgramError(
            f"{launcher.name} in {launcher.source} has {len(parameters)} parameters; manifest.json gives it "
            f"{len(wanted)}: {', '.join(wanted)}. Make them equal, with void* stream last"
        )
    for argument, parameter in zip(launcher.arguments, parameters, strict=False):
        if problem := _mismatch(argument, parameter):
            raise ProgramError(
                f"{launcher.name} in {launcher.source}: parameter '{parameter}' stands where manifest.json has the "
                f"{argument.kind} '{argument.name}' of {argument.dtype}; {problem}"
            )


def _parameters(name: str, source: str) -> list[str] | None:
    """The parameters of the definition or declaration of ``name`` with C linkage; None if there is none to be seen."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    match = re.search(rf"\bint\s+{re.escape(name)}\s*\(([^()]*)\)\s*(?:noexcept\s*)?[{{;]", text)
    if match is None:
        if re.search(rf"\b(?:void|cudaError_t)\s+{re.escape(name)}\s*\(", text):
            raise ProgramError(f'{name} does not return int; write extern "C" int {name}(..., void* stream)')
        return None
    if 'extern "C"' not in text[: match.start()]:
        raise ProgramError(f'{name} has no C linkage; write extern "C" int {name}(..., void* stream)')
    inside = " ".join(match.group(1).split())
    return [part.strip() for part in inside.split(",")] if inside and inside != "void" else []


def _mismatch(argument: Argument, parameter: str) -> str:
    """What contradicts the manifest in a C parameter; empty where nothing certainly does."""
    pointer = "*" in parameter or "[" in parameter
    if pointer != (argument.kind == "tensor"):
        return "a tensor arrives as a pointer" if argument.kind == "tensor" else "a scalar arrives by value"
    words = re.sub(r"\b(?:const|volatile|struct|std::|__restrict__|__restrict|restrict)|[*&]|\[\]", " ", parameter)
    words = words.replace("std::", "")
    kind = " ".join(words.split()[:-1]) or words.strip()
    if kind not in _KNOWN_TYPES or kind in _C_TYPES[argument.dtype]:
        return ""
    return f"in C that is {' or '.join(sorted(_C_TYPES[argument.dtype]))}"
