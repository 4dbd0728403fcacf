"""A Program as the reply of a Coder that would be read back as it: whole files, or edits of the program before."""

from __future__ import annotations

import difflib

from stitchcuda.agents.reading import read_program
from stitchcuda.errors import ProgramError
from stitchcuda.program.model import ENTRY, MANIFEST, Program
from stitchcuda.program.parse import DIVIDER, REPLACE, SEARCH

_LANGUAGES = {"py": "python", "cu": "cuda", "cuh": "cuda", "cpp": "cpp", "h": "cpp", "json": "json"}
_CONTEXT = 2
"""Lines around a change that an edit quotes at least."""


def reply_of(program: Program, base: Program | None, target: str) -> str:
    """The reply. Edits where the program is ``base`` with few changes, as the prompts for improving ask for.

    Raises ProgramError when no reply can stand for the program (it is not valid).
    """
    kind = "cuda" if target == "cuda" else "cpu"
    if base is not None and (edits := _edits(program, base)):
        try:
            read = read_program(edits, base, kind)  # type: ignore[arg-type]
        except ProgramError:
            pass
        else:
            if read.digest == program.digest and len(edits) < len(_whole(program)) / 2:
                return edits
    text = _whole(program)
    if read_program(text, None, kind).digest != program.digest:  # type: ignore[arg-type]
        raise ProgramError("the program cannot be written as a reply: a file holds a fence or odd line endings")
    return text


def _whole(program: Program) -> str:
    parts = []
    for path in sorted(program.files, key=lambda name: (name != ENTRY, name)):
        language = _LANGUAGES.get(path.rpartition(".")[2], "")
        parts.append(f"```{language} {path}\n{program.files[path].rstrip()}\n```")
    if program.manifest is not None:
        parts.append(f"```json {MANIFEST}\n{program.manifest.model_dump_json(indent=1)}\n```")
    return "\n\n".join(parts) + "\n"


def _edits(program: Program, base: Program) -> str:
    """Search/replace blocks from ``base`` to ``program``; empty where that cannot be said so."""
    if program.manifest != base.manifest or program.files.keys() != base.files.keys():
        return ""
    parts = []
    for path, text in sorted(program.files.items()):
        old, new = base.files[path].splitlines(), text.splitlines()
        matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
        for group in matcher.get_grouped_opcodes(_CONTEXT):
            first, last = group[0], group[-1]
            before, after = old[first[1] : last[2]], new[first[3] : last[4]]
            at, start = first[1], first[3]
            while "\n".join(old).count("\n".join(before)) > 1 and at > 0:
                at, start = at - 1, start - 1
                before, after = [old[at], *before], [new[start], *after]
            parts.append("\n".join([path, SEARCH, *before, DIVIDER, *after, REPLACE]))
    return "\n\n".join(parts) + "\n" if parts else ""
