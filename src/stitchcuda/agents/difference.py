"""Two Programs line by line, for whoever judges what a change did."""

from __future__ import annotations

import difflib

from stitchcuda.program.model import MANIFEST, Program

CONTEXT = 1
"""Lines around a change: the whole program is shown beside it."""
REWRITTEN = 0.6
"""Share of lines that differ from which a difference says less than the program alone."""


def difference(before: Program, after: Program, limit: int) -> str:
    """A unified diff of all files, at most ``limit`` characters; a sentence where most of the program is new, and
    where nothing is."""
    parts: list[str] = []
    changed = total = 0
    old, new = _texts(before), _texts(after)
    for path in sorted({*old, *new}):
        was, now = old.get(path, []), new.get(path, [])
        lines = list(difflib.unified_diff(was, now, path, path, n=CONTEXT, lineterm=""))
        changed += sum(line[:1] in "+-" for line in lines[2:])
        total += len(was) + len(now)
        parts += [f"--- {path}" if path in new else f"--- {path} (left out)", *lines[2:]] if lines else []
    if not parts:
        return "nothing: the files are the same"
    text = "\n".join(parts)
    if changed > REWRITTEN * total or len(text) > 2 * limit:
        return f"most of it: {changed} lines differ, of {total} in both programs"
    return text if len(text) <= limit else text[:limit].rpartition("\n")[0] + "\n[...]"


def _texts(program: Program) -> dict[str, list[str]]:
    files = dict(program.files)
    if program.manifest is not None:
        files[MANIFEST] = program.manifest.model_dump_json(exclude_defaults=True, indent=1)
    return {path: text.splitlines() for path, text in files.items()}
