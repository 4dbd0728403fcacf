"""Python text to its syntax tree, from any thread: the one place of this package that builds trees.

Needs the standard library alone. What trees are read for is the callers' business.
"""

from __future__ import annotations

import ast
import threading

_BUILDING = threading.RLock()
"""CPython before 3.11.8 and 3.12.2 counts the depth of all threads' trees in one variable (its issue 106905), so that
two that are built at a time end in a SystemError, or in a RecursionError that is none. A tree takes milliseconds."""


def parse(source: str) -> ast.Module:
    """What ``ast.parse(source)`` gives, and raises."""
    with _BUILDING:
        return ast.parse(source)


def parse_expression(source: str) -> ast.Expression:
    """What ``ast.parse(source, mode="eval")`` gives, and raises."""
    with _BUILDING:
        return ast.parse(source, mode="eval")
