"""Task sources in the rows of any data set: values that are one, and models in a prompt's text, fenced or not.

What cannot be read is counted, so that nothing is called clean on account of it. Comparing is in ``leaks``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stitchcuda import syntax

_HEADER = re.compile(
    r"(?:\b|(?<=\\[nt]))class\s+Model\s*(?:\((?:[^()]|\([^()]{0,99}\)){0,99}\)\s*:|:\s*(?:$|#|\\n))", re.MULTILINE
)
"""A model is written here, in whatever surroundings; a sentence that mentions it goes on behind the colon."""
_MODEL = re.compile(r"([ \t>]*)class\s+Model\b")
_SEPARATES = re.compile(
    r"^[ \t>]*(?:`{3,}|~{3,}).*$|^[ \t>]*</?[A-Za-z][^<>\n]*>|</[A-Za-z][^<>\n]*>[ \t]*$", re.MULTILINE
)
"""Fences, and tags at the ends of a line, where Python has none."""
_BEGINS = re.compile(r"(?:import|from|class|def|async def)\s|@|\w+\s*(?::[^=\n]+)?=[^=]")
_REACH = 1000
"""Lines before and behind a model's that are looked at."""
_TRIES = 200
"""For one text; each parses what is within reach."""


@dataclass(frozen=True)
class Found:
    """What one row holds."""

    sources: tuple[str, ...]
    unread: int = 0
    """Models that are written there and could not be read."""


def found_in(row: object) -> Found:
    """Every task source in a row, each once."""
    sources: dict[str, None] = {}
    unread = 0
    for text in _texts(row):
        found = _in_text(text)
        sources |= dict.fromkeys(found.sources)
        unread += found.unread
    return Found(tuple(sources), unread)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str) and "Model" in value:
        yield value


def _in_text(text: str) -> Found:
    written = len(_HEADER.findall(text))
    if not written:
        return Found(())
    try:
        if _is_task(syntax.parse(text)):
            return Found((text,))
    except (SyntaxError, ValueError, RecursionError):
        pass
    tries = iter(range(_TRIES))
    sources = [source for piece in _SEPARATES.split(text) for source in _in_piece(piece, tries)]
    return Found(tuple(sources), max(0, written - sum(len(_HEADER.findall(source)) for source in sources)))


def _in_piece(piece: str, tries: Iterator[int]) -> Iterator[str]:
    """Sources between two fences or tags: all that can be read around each model."""
    lines = piece.splitlines(keepends=True)
    first = 0
    for place, line in enumerate(lines):
        if place < first or (model := _MODEL.match(line)) is None:
            continue
        begin = max(first, place - _REACH)
        around = [_unquoted(part, model[1]) for part in lines[begin : place + _REACH]]
        if (found := _around(around, place - begin, tries)) is not None:
            source, end = found
            yield source
            first = begin + end


def _unquoted(line: str, prefix: str) -> str:
    """Without what stands before every line of an indented or quoted block."""
    return line.removeprefix(prefix) if line.strip(" \t>\n") else "\n"


def _around(lines: list[str], model: int, tries: Iterator[int]) -> tuple[str, int] | None:
    """The source around the line ``model``, and the line behind it; None where none can be read.

    It begins at the first line that may be its first; where that cannot be read, behind the fault, or ends before it.
    """
    begin, end = _next_begin(lines, 0, model), len(lines)
    for _ in tries:
        try:
            tree = syntax.parse("".join(lines[begin:end]))
        except SyntaxError as error:
            fault = begin + max(1, error.lineno or 1) - 1
            if fault > model:
                end = min(fault, end - 1)
                continue
        except (ValueError, RecursionError):
            return None
        else:
            if _is_task(tree):
                behind = next((line for line in lines[end:] if line.strip()), "")
                if behind[:1].isspace():
                    return None  # cut off in the midst of a definition
                end = begin + max(node.end_lineno or 0 for node in tree.body if _says(node))
                return "".join(lines[begin:end]), end
            fault = begin
        if begin == model:
            return None
        begin = _next_begin(lines, fault + 1, model)
    return None


def _next_begin(lines: list[str], first: int, model: int) -> int:
    return next((place for place in range(first, model) if _BEGINS.match(lines[place])), model)


def _says(node: ast.stmt) -> bool:
    """No word of a sentence that happens to be Python."""
    if isinstance(node, ast.AnnAssign):
        return node.value is not None
    return not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)


def _is_task(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.ClassDef) and node.name == "Model" for node in tree.body) and any(
        isinstance(node, ast.FunctionDef) and node.name == "forward" for node in ast.walk(tree)
    )
