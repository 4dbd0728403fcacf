"""Python source as the Judge sees it: what is computed, without a word that its author chose.

The text is written anew from the syntax tree, so neither comments nor spelling nor layout survive. Docstrings and other
statements that only state a constant are left out, strings become three dots but for known options, names are replaced.
"""

from __future__ import annotations

import ast
import re
from typing import TypeVar, cast

from stitchcuda import syntax
from stitchcuda.reward.judge_names import Names

_NATIVE = re.compile(
    r"__global__|#\s*include|extern\s*\"C\"|(?:torch|at)::Tensor|\b(?:void|float|int)\s+\w+\s*\([^()]*\)\s*\{"
)
"""What source code of C++ or CUDA in a string is told by."""

Node = TypeVar("Node", bound=ast.AST)


class CannotBeShown(Exception):
    """A program's text cannot be given to the Judge without its author's words; the message says why."""


def python_text(source: str, names: Names) -> tuple[str, list[str]]:
    """The neutral text, and the native sources that were found in strings, in order. Raises CannotBeShown."""
    try:
        tree = syntax.parse(source)
        plain = _Neutral(names)
        text = ast.unparse(ast.fix_missing_locations(plain.visit(tree)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotBeShown(f"a Python file cannot be parsed ({type(error).__name__})") from None
    return text, plain.sources


class _Neutral(ast.NodeTransformer):
    """Replaces names and strings; keeps the structure."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.sources: list[str] = []

    def generic_visit(self, node: Node) -> Node:
        for field, value in ast.iter_fields(node):
            if isinstance(value, str):
                setattr(node, field, self._name(value))
            elif isinstance(value, list) and value and isinstance(value[0], str):
                setattr(node, field, [self._name(text) for text in value])
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.Module):
            cast("ast.FunctionDef", node).body = body or [ast.Pass()]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) or (isinstance(node.value, ast.JoinedStr) and not _parts(node.value)):
            self._value(node.value)
            return None
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self._value(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return self._value(node)

    def _name(self, text: str) -> str:
        return self.names.dotted(text)

    def _value(self, node: ast.expr) -> ast.expr:
        """A string's stand-in; with the values that are put into it, as a call: ``str(a, b)``."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bytes):
                return ast.Constant(b"...")
            if not isinstance(node.value, str):
                return ast.Constant(node.value)
            return self._string(node.value)
        assert isinstance(node, ast.JoinedStr)
        text = "".join(
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else " 0 "
            for part in node.values
        )
        values = [self.visit(part) for part in _parts(node)]
        if not values:
            return self._string(text)
        if _NATIVE.search(text):
            values.insert(0, self._string(text))
        return ast.Call(func=ast.Name("str", ast.Load()), args=values, keywords=[])

    def _string(self, text: str) -> ast.expr:
        if _NATIVE.search(text):
            self.sources.append(text)
            return ast.Name(f"NATIVE_SOURCE_{len(self.sources)}", ast.Load())
        return ast.Constant(self.names.string(text))


def _parts(node: ast.JoinedStr) -> list[ast.expr]:
    """The expressions that a formatted string holds, those of its formats among them."""
    found: list[ast.expr] = []
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            found.append(value.value)
            if isinstance(value.format_spec, ast.JoinedStr):
                found += _parts(value.format_spec)
    return found
