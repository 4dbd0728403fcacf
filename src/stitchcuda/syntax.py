"""Python text to its syntax tree, from any thread: the one place of this package that builds trees.

Needs the standard library alone. What trees are read for is the callers' business.
"""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import Iterator

DEEPEST = 150
"""Levels of a tree. Written code has about twenty, and torch's longest chain of elifs 94. What walks a tree by
recursion takes up to six calls a level (``ast.unparse``), of the thousand that Python allows."""

_TOO_DEEP = "too deeply nested, as a long chain of elif or of operators is; split it"
_BUILDING = threading.RLock()
"""CPython before 3.11.8 and 3.12.2 counts the depth of all threads' trees in one variable (its issue 106905), so that
two that are built at a time end in a SystemError, or in a RecursionError that is none. A tree takes milliseconds."""


def parse(source: str, *, deepest: int | None = DEEPEST) -> ast.Module:
    """What ``ast.parse(source)`` gives, and raises; SyntaxError too for a tree of more than ``deepest`` levels, and for
    what Python itself cannot build for its depth."""
    with _building():
        tree = ast.parse(source)
    if deepest is not None:
        _check_depth(tree, deepest)
    return tree


def parse_expression(source: str) -> ast.Expression:
    """What ``ast.parse(source, mode="eval")`` gives, and raises; of depth as ``parse``."""
    with _building():
        tree = ast.parse(source, mode="eval")
    _check_depth(tree, DEEPEST)
    return tree


@contextlib.contextmanager
def _building() -> Iterator[None]:
    with _BUILDING:
        try:
            yield
        except (RecursionError, MemoryError, SystemError):  # which of them depends on what is nested
            raise SyntaxError(_TOO_DEEP) from None


def _check_depth(tree: ast.AST, deepest: int) -> None:
    level = [tree]
    for _ in range(deepest):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise SyntaxError(_TOO_DEEP)
