"""Python sources as syntax trees, parsed once and walked once: the static rules look at the same trees many times."""

from __future__ import annotations

import ast
import functools
import warnings

from stitchcuda import syntax

_WALK = "_walked"


@functools.lru_cache(maxsize=64)
def parse(source: str) -> ast.Module | None:
    """The tree of a source; None for one that Python cannot parse. Shared: do not change it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in somebody's strings
            return syntax.parse(source, deepest=None)  # a depth that Python runs must not hide a file from the rules
    except (SyntaxError, ValueError):
        return None


def walk(node: ast.AST) -> list[ast.AST]:
    """All nodes under ``node``, itself first, as ast.walk gives them; remembered on the node."""
    known: list[ast.AST] | None = getattr(node, _WALK, None)
    if known is None:
        known = list(ast.walk(node))
        setattr(node, _WALK, known)
    return known


def docstrings(tree: ast.Module) -> set[int]:
    """Ids of the constants that stand alone as statements, such as docstrings."""
    return {
        id(node.value) for node in walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def under_main_guard(tree: ast.Module) -> set[int]:
    """Ids of the nodes under ``if __name__ == "__main__":``, which an evaluation never runs."""
    found: set[int] = set()
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in (
            "__name__ == '__main__'",
            "'__main__' == __name__",
        ):
            found.update(id(part) for each in node.body for part in walk(each))
    return found
