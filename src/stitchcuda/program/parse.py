"""From a model's reply to a Program: fenced files, a single KernelBench file, or edits of an earlier Program.

Every error is a sentence that can be sent back to the model as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stitchcuda.errors import ProgramError
from stitchcuda.program.files import parse_manifest
from stitchcuda.program.model import ENTRY, MANIFEST, Program
from stitchcuda.program.validate import validate

_FENCE = re.compile(r"^ {0,3}(?P<marks>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_ENDING = r"\.(?:py|cuh?|cpp|cc|hpp|h|inl|json)"
_NAME = rf"[./~\\\w+-]*\w{_ENDING}"
_INFO_NAME = re.compile(rf"(?:^|[\s=:\"'])(?P<name>[./~\\\w:+-]*\w{_ENDING})(?=$|[\s\"'])")
_HEADING = re.compile(
    rf"^\s*(?:#{{1,6}}\s+)?(?:\d+[.)]\s+)?(?:[Ff]ile(?:name)?:?\s*)?[*_`\"]*(?P<name>{_NAME})[*_`\":]*\s*:?\s*$"
)
_FIRST_LINE = re.compile(
    rf"^\s*(?://|#|/\*|<!--)\s*(?:[Ff]ile(?:name)?|[Pp]ath)\s*:\s*(?P<name>{_NAME})\s*(?:\*/|-->)?\s*$"
)
_ENTRY_CLASS = re.compile(r"^(?:class\s+ModelNew\b|ModelNew\s*=)", re.MULTILINE)
_CODE_WORDS = frozenset(("python", "py", "cuda", "cu", "cpp", "c++", "c", "cxx", "json"))

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"


@dataclass
class _Block:
    """One fenced block: its language word, what names it, and its text."""

    language: str
    name: str | None
    text: str


@dataclass
class _Edit:
    path: str
    search: list[str] = field(default_factory=list)
    replace: list[str] = field(default_factory=list)


def parse_reply(text: str, *, base: Program | None = None) -> Program:
    """The Program in a reply.

    A file is a fenced block named on its fence (```` ```cuda kernels.cu ````), by a heading before it
    (``### kernels.cu``) or by its first line (``// file: kernels.cu``). A single unnamed Python block that
    defines ModelNew is ``program.py``. A block named ``manifest.json`` becomes the manifest. With ``base``, its
    files stay unless the reply has a file of the same name, and a reply of search/replace blocks edits it.

    Raises ProgramError for a reply without code, cut in the middle of a block, or with two different files of
    one name, and for everything that validation refuses.
    """
    if SEARCH in text and base is not None:
        return parse_edits(text, base)
    blocks = _blocks(text)
    files: dict[str, str] = {}
    unnamed: list[_Block] = []
    for block in blocks:
        if block.name is None:
            unnamed.append(block)
            continue
        name = block.name.removeprefix("./")
        if name in files and files[name] != block.text:
            raise ProgramError(f"the reply holds two different files named {name}; send each file once")
        files[name] = block.text
    if ENTRY not in files:
        _adopt_entry(files, unnamed, base)
    if not files:
        raise ProgramError(
            "the reply holds no code; send each file whole in a fenced block with its name, as in ```python program.py"
        )
    return _assemble(files, base)


def holds_files(text: str) -> bool:
    """Whether a reply has an edit, a block that is named, or one that defines ModelNew: others only quote code.

    Raises ProgramError for a reply that is cut in the middle of a block.
    """
    return SEARCH in text or any(block.name or _ENTRY_CLASS.search(block.text) for block in _blocks(text))


def parse_edits(text: str, base: Program) -> Program:
    """``base`` with the reply's search/replace blocks applied, each of which must match exactly once.

    A block is a file's name on a line of its own (or on the fence, or in a heading), then
    ``<<<<<<< SEARCH``, the old lines, ``=======``, the new lines and ``>>>>>>> REPLACE``. An empty search makes a
    new file. Without a name the block goes to the only file in which it matches.

    Raises ProgramError when there is no block, one is cut off, or one matches nowhere or more than once.
    """
    edits = _edits(text)
    if not edits:
        raise ProgramError(f"the reply holds no edit; write {SEARCH}, {DIVIDER} and {REPLACE} on lines of their own")
    manifest_text = base.manifest.model_dump_json(indent=2) + "\n" if base.manifest is not None else None
    files = dict(base.files)
    if manifest_text is not None:
        files[MANIFEST] = manifest_text
    for number, edit in enumerate(edits, 1):
        search, replace = "\n".join(edit.search), "\n".join(edit.replace)
        path = edit.path or _only_match(files, search, number)
        if not search.strip():
            if path in files and files[path].strip():
                raise ProgramError(f"edit {number} has an empty SEARCH but {path} exists; quote the lines to replace")
            files[path] = replace + "\n"
            continue
        if path not in files:
            raise ProgramError(f"edit {number} is for {path}, which is not there (files: {', '.join(sorted(files))})")
        files[path] = _replace_once(files[path], search, replace, path, number)
    manifest = parse_manifest(files.pop(MANIFEST)) if MANIFEST in files else None
    program = Program(files=files, manifest=manifest)
    validate(program)
    return program


def _assemble(files: dict[str, str], base: Program | None) -> Program:
    manifest = base.manifest if base is not None else None
    if MANIFEST in files:
        manifest = parse_manifest(files.pop(MANIFEST))
    merged = {**(base.files if base is not None else {}), **files}
    program = Program(files=merged, manifest=manifest)
    validate(program)
    return program


def _adopt_entry(files: dict[str, str], unnamed: list[_Block], base: Program | None) -> None:
    """Take the unnamed block that defines ModelNew as ``program.py``; several that do are an error."""
    entries = [block for block in unnamed if _ENTRY_CLASS.search(block.text)]
    distinct = {block.text for block in entries}
    if len(distinct) > 1:
        raise ProgramError("the reply holds several unnamed blocks that define ModelNew; send program.py once, whole")
    if entries:
        files[ENTRY] = entries[0].text
        return
    named_entries = [name for name, text in files.items() if name.endswith(".py") and "class ModelNew" in text]
    if len(named_entries) == 1 and base is None:
        files[ENTRY] = files.pop(named_entries[0])
        return
    code = [block for block in unnamed if block.language in _CODE_WORDS]
    if base is None and code and not files:
        raise ProgramError("the reply's code does not define class ModelNew; send program.py with class ModelNew in it")


def _blocks(text: str) -> list[_Block]:
    """The fenced blocks in order. Raises ProgramError when the last one is not closed."""
    blocks: list[_Block] = []
    lines = text.splitlines()
    number = 0
    before = ""
    while number < len(lines):
        match = _FENCE.match(lines[number])
        if match is None:
            before = lines[number] if lines[number].strip() else before
            number += 1
            continue
        marks, info = match["marks"], match["info"].strip()
        body: list[str] = []
        number += 1
        closing = re.compile(rf"^ {{0,3}}{re.escape(marks[0])}{{{len(marks)},}}\s*$")
        while number < len(lines) and not closing.match(lines[number]):
            body.append(lines[number])
            number += 1
        if number == len(lines):
            raise ProgramError(
                "the reply ends in the middle of a code block, so it was probably cut off; send the files again, "
                "shorter, each closed by its fence"
            )
        number += 1
        blocks.append(_named(info, before, body))
        before = ""
    return blocks


def _named(info: str, before: str, body: list[str]) -> _Block:
    words = info.split()
    language = words[0].lower().split(":")[0].strip("{}.") if words else ""
    name: str | None = None
    if match := _INFO_NAME.search(info):
        name = match["name"].lstrip(":")
        if ":" in name and re.match(r"[a-z+]{1,6}:", name):
            name = name.split(":", 1)[1]
    elif body and (match := _FIRST_LINE.match(body[0])):
        name = match["name"]
        body = body[1:] if name == MANIFEST else body
    elif match := _HEADING.match(before):
        name = match["name"]
    text = "\n".join(body)
    return _Block(language, name, text.rstrip("\n") + "\n" if text.strip() else "")


def _edits(text: str) -> list[_Edit]:
    edits: list[_Edit] = []
    current: _Edit | None = None
    side = ""
    path = ""
    for line in text.splitlines():
        stripped = line.rstrip()
        if current is None:
            if stripped == SEARCH or stripped.startswith(f"{SEARCH} "):
                path = stripped.removeprefix(SEARCH).strip(" `") or path
                current, side = _Edit(path), "search"
            elif fence := _FENCE.match(line):
                if match := _INFO_NAME.search(fence["info"].strip()):
                    path = match["name"]
            elif match := (_HEADING.match(line) or _FIRST_LINE.match(line)):
                path = match["name"]
        elif stripped == DIVIDER and side == "search":
            side = "replace"
        elif stripped.startswith(REPLACE) and side == "replace":
            edits.append(current)
            current = None
        elif stripped.startswith((SEARCH, REPLACE)):
            raise ProgramError(
                f"edit {len(edits) + 1} is malformed: {stripped!r} where {DIVIDER} or its end was expected"
            )
        else:
            (current.search if side == "search" else current.replace).append(line)
    if current is not None:
        raise ProgramError(
            f"edit {len(edits) + 1} is not finished, so the reply was probably cut off; send the remaining edits again"
        )
    return edits


def _only_match(files: dict[str, str], search: str, number: int) -> str:
    hits = [path for path, text in files.items() if search.strip() and search in text]
    if len(hits) != 1:
        where = f"matches in {', '.join(hits)}" if hits else "matches no file"
        raise ProgramError(f"edit {number} names no file and {where}; put the file's name on the line before {SEARCH}")
    return hits[0]


def _replace_once(text: str, search: str, replace: str, path: str, number: int) -> str:
    """The only whole-line occurrence of ``search`` replaced; trailing spaces are not compared."""
    lines = text.split("\n")
    wanted = [line.rstrip() for line in search.split("\n")]
    bare = [line.rstrip() for line in lines]
    hits = [at for at in range(len(bare) - len(wanted) + 1) if bare[at : at + len(wanted)] == wanted]
    if len(hits) != 1:
        first = next(line for line in wanted if line.strip()).strip()
        if hits:
            places = ", ".join(str(at + 1) for at in hits[:5])
            raise ProgramError(
                f"edit {number} of {path} matches {len(hits)} places (lines {places}); "
                "quote more lines around it so that it matches once"
            )
        near = [at + 1 for at, line in enumerate(bare) if line.strip() == first]
        hint = (
            f"its first line is at line {near[0]}, but what follows differs" if near else f"there is no line {first!r}"
        )
        raise ProgramError(f"edit {number} matches nothing in {path}: {hint[:200]}; quote the present lines exactly")
    at = hits[0]
    new = replace.split("\n") if replace else []
    return "\n".join([*lines[:at], *new, *lines[at + len(wanted) :]])
