"""What a Program must be before anything touches the disk or a compiler: paths, sizes, entry, manifest.

It does not judge what the code does; ``evaluation.integrity`` and the evaluation do.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath

from stitchcuda import syntax
from stitchcuda.errors import ProgramError
from stitchcuda.program.model import ENTRY, MANIFEST, Launcher, Manifest, Program

MAX_FILES = 64
MAX_FILE_BYTES = 2**20
MAX_TOTAL_BYTES = 4 * 2**20
GENERATED = frozenset({"bindings.py", MANIFEST})
"""Written by the build step next to the Program's files; a Program cannot bring its own."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_NATIVE = (".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp", ".inl")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*(?:include|embed)[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_WORDS = """
alignas alignof and asm auto bool break case catch char class const continue default delete do double else enum
explicit export extern false float for friend goto if inline int long mutable namespace new not nullptr operator
or private protected public register return short signed sizeof static struct switch template this throw true
try typedef union unsigned using virtual void volatile while xor
main stream torch ctypes os record_function PROFILE
"""
_C_WORDS = frozenset(_WORDS.split())


def validate(program: Program) -> None:
    """Raise ProgramError at the first thing that is wrong with ``program``; the message can be shown to a model."""
    if len(program.files) > MAX_FILES:
        raise ProgramError(f"the program has {len(program.files)} files; at most {MAX_FILES} are allowed")
    total = 0
    for path, text in program.files.items():
        check_path(path)
        size = len(text.encode())
        total += size
        if size > MAX_FILE_BYTES:
            raise ProgramError(f"{path} has {size:,} bytes; at most {MAX_FILE_BYTES:,} are allowed in a file")
        for match in _INCLUDE.finditer(text) if path.endswith(_NATIVE) else ():
            if match[1].startswith("/") or ".." in match[1].split("/"):
                raise ProgramError(
                    f"{path} includes {match[1]!r}; include the program's own files or system headers only"
                )
        if "\0" in text:
            raise ProgramError(f"{path} holds NUL characters; only text files are allowed")
    if total > MAX_TOTAL_BYTES:
        raise ProgramError(f"the program has {total:,} bytes; at most {MAX_TOTAL_BYTES:,} are allowed in all")
    folded: dict[str, str] = {}
    for path in program.files:
        if other := folded.get(path.lower()):
            raise ProgramError(f"{path} and {other} differ only in case; rename one")
        folded[path.lower()] = path
        for parent in PurePosixPath(path).parents:
            if str(parent) in program.files:
                raise ProgramError(f"{parent} is both a file and the folder of {path}; rename one")
    _check_entry(program)
    if program.manifest is not None:
        _check_manifest(program, program.manifest)


def check_path(path: str) -> None:
    """Raise ProgramError unless ``path`` is a plain relative POSIX path inside the program's folder."""
    pure = PurePosixPath(path)
    if not path or path.startswith(("/", "~")) or pure.is_absolute() or re.match(r"[A-Za-z]:", path):
        raise ProgramError(f"file path {path!r} is absolute; use a path relative to the program's folder")
    if "\\" in path:
        raise ProgramError(f"file path {path!r} holds a backslash; use '/' between folders")
    parts = path.split("/")
    if ".." in parts:
        raise ProgramError(f"file path {path!r} leaves the program's folder; '..' is not allowed")
    if not all(_PART.fullmatch(part) for part in parts) or len(path) > 200 or len(parts) > 6:
        raise ProgramError(
            f"file path {path!r} is not a plain name; use letters, digits and _.+- only, at most 200 characters"
        )
    if path in GENERATED:
        raise ProgramError(f"{path} is written by the build step; the program cannot bring its own")


def defined_classes(source: str, path: str = ENTRY) -> set[str]:
    """Names that running ``source`` may bind at its top level. Raises ProgramError for a syntax error."""
    from stitchcuda.task.source import bound_names

    return set(bound_names(tree_of(source, path)))


def tree_of(source: str, path: str) -> ast.Module:
    """The syntax tree of a Program's Python file. Raises ProgramError for a syntax error."""
    try:
        return syntax.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        text = (getattr(error, "text", None) or "").strip()
        raise ProgramError(
            f"{path} is not valid Python: {getattr(error, 'msg', error)}"
            f"{f' in line {line}' if line else ''}{f': {text}' if text else ''}"
        ) from None


def _check_entry(program: Program) -> None:
    if ENTRY not in program.files:
        have = ", ".join(sorted(program.files)) or "none"
        raise ProgramError(f"the program has no {ENTRY} (its files: {have}); add one that defines class ModelNew")
    if "ModelNew" not in defined_classes(program.files[ENTRY]):
        raise ProgramError(f"{ENTRY} does not define ModelNew; the replacement module must have that name")


def _check_manifest(program: Program, manifest: Manifest) -> None:
    if not manifest.launchers:
        raise ProgramError(f"{MANIFEST} names no launchers; leave the manifest out of a program without native sources")
    seen: set[str] = set()
    suffixes = (".cu",) if manifest.target == "cuda" else (".cpp", ".cc")
    for launcher in manifest.launchers:
        name = launcher.name
        if not _is_c_name(name):
            raise ProgramError(f"launcher name {name!r} in {MANIFEST} is not a free C identifier; rename it")
        if name in seen:
            raise ProgramError(f"launcher {name} is listed twice in {MANIFEST}; names must be unique")
        seen.add(name)
        if launcher.source not in program.files:
            have = ", ".join(sorted(path for path in program.files if path.endswith(suffixes))) or "none"
            raise ProgramError(
                f"launcher {name} is said to be in {launcher.source}, which is not there (sources: {have})"
            )
        if not launcher.source.endswith(suffixes):
            raise ProgramError(
                f"launcher {name} is in {launcher.source}; for target {manifest.target} its source must end in "
                f"{' or '.join(suffixes)}"
            )
        if not re.search(rf"\b{name}\b", program.files[launcher.source]):
            raise ProgramError(
                f"{launcher.source} does not define {name}, which {MANIFEST} lists; "
                f'write extern "C" int {name}(..., void* stream)'
            )
        _check_arguments(launcher)


def _check_arguments(launcher: Launcher) -> None:
    seen: set[str] = set()
    for argument in launcher.arguments:
        name = argument.name
        if not _is_c_name(name) or name in seen:
            problem = "listed twice" if name in seen else "not a free C name"
            raise ProgramError(f"argument {name!r} of launcher {launcher.name} is {problem}; rename it")
        seen.add(name)
        where = f"argument {name} of launcher {launcher.name}"
        if argument.kind == "scalar":
            if argument.role != "input":
                raise ProgramError(f"{where} is a scalar and cannot have role {argument.role}")
            if argument.optional:
                raise ProgramError(f"{where} is a scalar and cannot be optional")
            if argument.dtype in ("float16", "bfloat16"):
                raise ProgramError(f"{where} is a {argument.dtype} scalar, which C has not; pass it as float32")
        elif not 1 <= argument.alignment <= 256 or argument.alignment & (argument.alignment - 1):
            raise ProgramError(f"{where} has alignment {argument.alignment}; use a power of two up to 256")
    if not any(argument.kind == "tensor" and argument.role != "input" for argument in launcher.arguments):
        raise ProgramError(f"launcher {launcher.name} writes nothing: give a tensor the role output or inout")


def _is_c_name(name: str) -> bool:
    import keyword

    return bool(_IDENTIFIER.fullmatch(name)) and name not in _C_WORDS and not keyword.iskeyword(name)
