"""Names as the Judge sees them: those of Python, torch, C++ and CUDA as they are, every other one replaced.

Whoever writes a program chooses its names, and a name can plead (``int score_5_please``) or lie about what it stands
for. The known ones are in ``judge_words.txt``; what the reference calls its things is known besides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Literal

from stitchcuda import syntax

Section = Literal["python", "torch", "native", "segments", "ptx", "headers", "strings"]

_TYPED = re.compile(r"(?:[fsube]\d{1,2}|bf16|m\d{1,3}n\d{1,3}k\d{1,3}|x[1248]|v[248]|\d{1,3}B|[a-d])(?:x[24])?")
_EQUATION = re.compile(r"[A-Za-z.]+(?:,[A-Za-z.]+)*(?:->[A-Za-z.]*)?")


@cache
def words(section: Section) -> frozenset[str]:
    """One section of the list of known words."""
    return _sections()[section]


@cache
def _sections() -> dict[str, frozenset[str]]:
    text = resources.files("stitchcuda.reward").joinpath("judge_words.txt").read_text(encoding="utf-8")
    parts = re.split(r"(?m)^\[(\w+)\]$", text)[1:]
    return {name: frozenset(body.split()) for name, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def _identifiers() -> frozenset[str]:
    return words("python") | words("torch") | words("native")


class Names:
    """One name for one name over all files of a program, numbered as they come: equal programs read equally."""

    def __init__(self, known: Iterable[str] = (), *, keep: bool = False) -> None:
        self._known = frozenset(known)
        self._keep = keep
        """Keep all identifiers: for the reference, which nobody who is judged has written."""
        self._given: dict[str, str] = {}
        self._last = 0

    def identifier(self, name: str) -> str:
        """What stands for an identifier of Python or C++."""
        if self._keep or name in self._known or name in _identifiers() or _intrinsic(name):
            return name
        return self._stand_in(name)

    def dotted(self, name: str) -> str:
        """The same for a module's name."""
        return ".".join(self.identifier(part) if part else "" for part in name.split("."))

    def assembly(self, word: str) -> str:
        """The same for a word of inline assembly, such as an opcode or a register."""
        parts = [
            part if part in words("ptx") or _TYPED.fullmatch(part) or not part else self._stand_in(part)
            for part in word.split(".")
        ]
        return ".".join(parts)

    def string(self, text: str) -> str:
        """A string that stands for a known option, a known name or an einsum's equation; else three dots."""
        if text in words("strings") or text in self._known or text in words("torch"):
            return text
        compact = text.replace(" ", "")
        if ("," in text or "->" in text) and len(compact) <= 60 and _EQUATION.fullmatch(compact):
            return _equation(compact)
        return "..."

    def of(self, name: str) -> str | None:
        """What stands for a name that was met; None for one that was not."""
        if name in self._given:
            return self._given[name]
        return name if self._keep or name in self._known or name in _identifiers() else None

    def _stand_in(self, name: str) -> str:
        if name not in self._given:
            self._last += 1
            while f"v{self._last}" in self._known:
                self._last += 1
            self._given[name] = f"v{self._last}"
        return self._given[name]


def identifiers(source: str) -> frozenset[str]:
    """All identifiers and attribute names in Python source; none where it cannot be parsed."""
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            continue
        for _, value in ast.iter_fields(node):
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    found.update(text.split("."))
    return frozenset(found)


def _intrinsic(name: str) -> bool:
    """``__shfl_xor_sync``, ``_mm512_fmadd_ps``: the compiler's own, built of known parts alone."""
    if not name.startswith(("__", "_mm", "cp_", "v")):
        return False
    parts = [part for part in name.split("_") if part]
    return "_" in name and len(parts) <= 6 and all(part in words("segments") for part in parts)


def _equation(text: str) -> str:
    """An einsum's equation with its indices named a, b, c, ... as they come."""
    letters: dict[str, str] = {}
    out = []
    for character in text:
        if character.isalpha():
            if character not in letters:
                number = len(letters)
                letters[character] = chr(ord("a") + number) if number < 26 else chr(ord("A") + number - 26)
            out.append(letters[character])
        else:
            out.append(character)
    return "".join(out)
