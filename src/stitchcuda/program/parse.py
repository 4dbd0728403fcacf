"""From a model's reply to a Program: fenced files, a single KernelBench file, or edits of an earlier Program.

Every error is a sentence that can be sent back to the model as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from stitchcuda.errors import ProgramError
from stitchcuda.program.files import parse_manifest
from stitchcuda.program.model import ENTRY, MANIFEST, Manifest, Program
from stitchcuda.program.validate import validate

_FENCE = re.compile(r"^ {0,3}(?P<marks>`{3,}|~{3,})(?P<info>[^`\n]{0,500})$")
_ENDING = r"\.(?:py|cuh?|cpp|cc|hpp|h|inl|json)"
_NAME = rf"[./~\\\w+-]*\w{_ENDING}"
_INFO_NAME = re.compile(rf"(?:^|[\s=:\"'])(?P<name>[./~\\\w:+-]*\w{_ENDING})(?=$|[\s\"'])")
# Possessive (*+) where what follows can match the same, and fences bounded: long lines would cost their square.
_FILE = rf"[*_`\"]*+(?:[Ff]ile(?:name)?(?:\s+\d+)?[:\s][*_`\"\s]*+)?(?P<name>{_NAME})[*_`\":]*+"
_HEADING = re.compile(rf"^\s*(?:#{{1,6}}\s+)?(?:\d+[.)]\s+)?{_FILE}\s*+:?\s*$")
_REMARKED = re.compile(
    rf"^\s*(?:#{{1,6}}\s+(?:\d+[.)]\s+)?(?:[A-Za-z]+\s+)?|(?=[*`])){_FILE}"
    r"(?:\s*[(\[][^()\[\]]*[)\]])?[*_`:]*(?:\s+[-–—]\s.*|(?<=:)\s.*)?\s*$"
)
"""Says more than the name, as ``### Updated kernels.cpp (faster)`` or ``**kernels.cpp** - a new reduction``."""
_FIRST_LINE = re.compile(
    rf"^\s*(?://|#|/\*|<!--)\s*(?:[Ff]ile(?:name)?|[Pp]ath)\s*:\s*(?P<name>{_NAME})\s*(?:\*/|-->)?\s*$"
)
_ENTRY_CLASS = re.compile(r"^(?:class\s+ModelNew\b|ModelNew\s*=)", re.MULTILINE)
_CODE_WORDS = frozenset(("python", "py", "cuda", "cu", "cpp", "c++", "c", "cxx", "json"))

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
_OPENED_INSIDE = re.compile(rf"^ {{0,3}}(?:`{{3,}}|~{{3,}})[^`\n]+\n(?!{SEARCH})", re.MULTILINE)
_CUT_OFF = (
    "the reply ends in the middle of a code block, so it was probably cut off; send the files again, shorter, each "
    "closed by its fence"
)


@dataclass
class _Block:
    """One fenced block: its language word, what names it, and its text. Not ``sure`` is the name in a heading that says
    more: it may as well stand over a few lines of the file."""

    language: str
    name: str | None
    text: str
    sure: bool = True
    closed: bool = True


@dataclass
class _Edit:
    path: str
    sure: bool = True
    search: list[str] = field(default_factory=list)
    replace: list[str] = field(default_factory=list)


def parse_reply(text: str, *, base: Program | None = None) -> Program:
    """The Program in a reply.

    A file is a fenced block named on its fence (```` ```cuda kernels.cu ````), by a heading before it
    (``### kernels.cu``) or by its first line (``// file: kernels.cu``). A single unnamed Python block that
    defines ModelNew is ``program.py``. A block named ``manifest.json`` becomes the manifest. With ``base``, its
    files stay unless the reply has a file of the same name, and a reply of search/replace blocks edits it.

    Raises ProgramError for a reply without code, cut in the middle of a block, with two different files of one
    name, or with a file that has no name, and for everything that validation refuses.
    """
    if SEARCH in text and base is not None:
        return parse_edits(text, base)
    blocks = _blocks(text)
    files, unnamed = _sorted_out(blocks, base)
    if ENTRY not in files:
        _adopt_entry(files, unnamed, base)
    if not files:
        raise ProgramError(
            "the reply holds no code; send each file whole in a fenced block with its name, as in ```python program.py"
        )
    return _assemble(files, unnamed, base)


def holds_files(text: str) -> bool:
    """Whether a reply has an edit, a block that is named, or one that defines ModelNew: others only quote code.

    Raises ProgramError for a reply that is cut in the middle of a block.
    """
    if SEARCH in text:
        return True
    return any((block.name and block.sure) or _ENTRY_CLASS.search(block.text) for block in _blocks(text))


def parse_edits(text: str, base: Program) -> Program:
    """``base`` with the reply's search/replace blocks applied, each of which must match exactly once, and with the
    whole files that are named besides.

    A block is a file's name on a line of its own (or on the fence, or in a heading), then
    ``<<<<<<< SEARCH``, the old lines, ``=======``, the new lines and ``>>>>>>> REPLACE``. An empty search makes a
    new file. Without a name the block goes to the only file in which it matches.

    Raises ProgramError when there is no block, one is cut off, one matches nowhere or more than once, or a file is
    both edited and sent otherwise, and as ``parse_reply`` does.
    """
    edits, rest = _edits(text)
    if not edits:
        raise ProgramError(f"the reply holds no edit; write {SEARCH}, {DIVIDER} and {REPLACE} on lines of their own")
    manifest_text = base.manifest.model_dump_json(indent=2) + "\n" if base.manifest is not None else None
    files = dict(base.files)
    if manifest_text is not None:
        files[MANIFEST] = manifest_text
    edited: set[str] = set()
    for number, edit in enumerate(edits, 1):
        search, replace = "\n".join(edit.search), "\n".join(edit.replace)
        astray = not edit.sure and search not in files.get(edit.path, search)
        path = _only_match(files, search, number) if astray or not edit.path else edit.path
        edited.add(path)
        if not search.strip():
            if path in files and files[path].strip():
                raise ProgramError(f"edit {number} has an empty SEARCH but {path} exists; quote the lines to replace")
            files[path] = replace + "\n"
            continue
        if path not in files:
            raise ProgramError(f"edit {number} is for {path}, which is not there (files: {', '.join(sorted(files))})")
        files[path] = _replace_once(files[path], search, replace, path, number)
    whole, unnamed = _sorted_out(_blocks_beside_edits(rest), base, edited)
    sent = {path: files[path] for path in edited}
    for path, content in whole.items():
        if sent.setdefault(path, content) != content:
            raise ProgramError(f"the reply edits {path} and holds another {path} besides; send one of the two")
    return _assemble(sent, unnamed, base)


def _sorted_out(
    blocks: list[_Block], base: Program | None, edited: Collection[str] = ()
) -> tuple[dict[str, str], list[_Block]]:
    """The files, and the blocks that have no name. A name that is not sure counts for a file that the program uses and
    the reply has nowhere else, where the block may be the whole of it, unless it quotes ``base``."""
    named = [(block.name.removeprefix("./"), block) for block in blocks if block.name is not None]
    known = {name for name, block in named if block.sure} | set(edited)
    files: dict[str, str] = {}
    unnamed = [block for block in blocks if block.name is None]
    for name, block in named:
        if not block.sure and (name in known or _quotes(block, base) or not _may_be(name, block, named, base)):
            unnamed.append(block)
        elif files.setdefault(name, block.text) != block.text:
            raise ProgramError(f"the reply holds two different files named {name}; send each file once")
    return files, unnamed


def _assemble(files: dict[str, str], unnamed: list[_Block], base: Program | None) -> Program:
    """``base`` with ``files`` in it. Raises ProgramError for an unnamed block that is a file which they lack."""
    sent = frozenset(files)
    manifest = base.manifest if base is not None else None
    if MANIFEST in files:
        manifest = parse_manifest(files.pop(MANIFEST))
    for block in unnamed:
        path = _looks_like(block, manifest)
        if path is not None and path not in sent and not _quotes(block, base):
            raise ProgramError(
                f"a block without a name looks like {path}, which the reply does not send otherwise; "
                f"write ### {path} on the line before its fence, or leave the block out if nothing changes"
            )
    program = Program(files={**(base.files if base is not None else {}), **files}, manifest=manifest)
    validate(program)
    return program


def _may_be(name: str, block: _Block, named: list[tuple[str, _Block]], base: Program | None) -> bool:
    """Whether a block may be the whole of the file ``name``, which the program has already or another of its files
    speaks of, rather than a few lines of it."""
    before = base.files.get(name) if base is not None else None
    if name in (ENTRY, MANIFEST) or before is not None:
        looks = _looks_like(block, base.manifest if base is not None else None) == name
        return looks or (before is not None and 2 * len(block.text) >= len(before))
    word = name.rpartition("/")[2].removesuffix(".py")
    return any(word in other_block.text for other, other_block in named if other != name)


def _quotes(block: _Block, base: Program | None) -> bool:
    """Whether it stands in a file of ``base``, but for blanks, or is its manifest."""
    if base is None:
        return False
    if base.manifest is not None and block.text.lstrip().startswith("{"):
        try:
            return parse_manifest(block.text) == base.manifest
        except ProgramError:
            return False
    if any(block.text.strip() in text for text in base.files.values()):
        return True
    quoted = "".join(block.text.split())
    wholes = ["".join(text.split()) for text in base.files.values()]
    return any(quoted in whole and quoted != whole for whole in wholes)


def _looks_like(block: _Block, manifest: Manifest | None) -> str | None:
    """The file that an unnamed block must be, if it is no mere illustration."""
    if _ENTRY_CLASS.search(block.text):
        return ENTRY
    if block.text.lstrip().startswith("{") and '"launchers"' in block.text:
        return MANIFEST
    for launcher in manifest.launchers if manifest is not None else ():
        if re.search(rf"\bint\s+{re.escape(launcher.name)}\s*\([^;{{}}]*\{{", block.text):
            return launcher.source
    return None


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
    blocks = _fenced(text)
    if blocks and not blocks[-1].closed:
        raise ProgramError(_CUT_OFF)
    return blocks


def _blocks_beside_edits(rest: str) -> list[_Block]:
    """The blocks that are no edits. An edit needs no fence, so that of its fence only what it hides matters."""
    blocks: list[_Block] = []
    for block in _fenced(rest):
        if SEARCH not in block.text:
            if block.name is not None and not block.closed:
                raise ProgramError(_CUT_OFF)
            blocks.append(block)
        elif _OPENED_INSIDE.search(block.text):
            raise ProgramError("the fence around an edit is not closed before the next block; close each block")
    return blocks


def _fenced(text: str) -> list[_Block]:
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
        blocks.append(_named(info, before, body))
        blocks[-1].closed = number < len(lines)
        number += 1
        before = ""
    return blocks


def _named(info: str, before: str, body: list[str]) -> _Block:
    words = info.split()
    language = words[0].lower().split(":")[0].strip("{}.") if words else ""
    name: str | None = None
    sure = True
    if match := _INFO_NAME.search(info):
        name = match["name"].lstrip(":")
        if ":" in name and re.match(r"[a-z+]{1,6}:", name):
            name = name.split(":", 1)[1]
    elif body and (match := _FIRST_LINE.match(body[0])):
        name = match["name"]
        body = body[1:] if name == MANIFEST else body
    elif match := _HEADING.match(before):
        name = match["name"]
    elif (match := _REMARKED.match(before)) and _fits(language, match["name"]):
        name, sure = match["name"], False
    text = "\n".join(body)
    return _Block(language, name, text.rstrip("\n") + "\n" if text.strip() else "", sure)


def _fits(language: str, name: str) -> bool:
    """Whether a fence's language word may stand over a file of that name."""
    if language not in _CODE_WORDS:
        return True
    return (language in ("python", "py"), language == "json") == (name.endswith(".py"), name.endswith(".json"))


def _edits(text: str) -> tuple[list[_Edit], str]:
    """The edits, and the text around them, in which each is its first line."""
    edits: list[_Edit] = []
    rest: list[str] = []
    current: _Edit | None = None
    side = ""
    path, sure = "", True
    for line in text.splitlines():
        stripped = line.rstrip()
        if current is None:
            rest.append(line)
            if stripped == SEARCH or stripped.startswith(f"{SEARCH} "):
                if named := stripped.removeprefix(SEARCH).strip(" `"):
                    path, sure = named, True
                current, side = _Edit(path, sure), "search"
            elif fence := _FENCE.match(line):
                if match := _INFO_NAME.search(fence["info"].strip()):
                    path, sure = match["name"], True
            elif match := (_HEADING.match(line) or _FIRST_LINE.match(line)):
                path, sure = match["name"], True
            elif line.startswith(("#", "**")) and (match := _REMARKED.match(line)):
                path, sure = match["name"], False
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
    return edits, "\n".join(rest)


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
