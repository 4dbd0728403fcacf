"""Static rules about threads that a Program's Python starts: one that runs without end and waits for nothing works, or
watches, while somebody else's clock counts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stitchcuda.evaluation.integrity.python_view import Function, View, called_name
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import walk
from stitchcuda.evaluation.integrity.words import words

_STARTERS = frozenset({"threading.Thread", "_thread.start_new_thread", "threading.Timer"})
_WAITS = words("acquire accept get join read readline recv result select wait wait_for synchronize")
"""Calls that wait for somebody: a queue's ``get``, an event's ``wait``."""


def thread_hits(view: View) -> Iterator[Hit]:
    """Hits in one file."""
    for node in walk(view.tree):
        if isinstance(node, ast.Call) and view.names.resolve(node.func) & _STARTERS:
            for target in _targets(node):
                function = _function(view, target)
                if function is not None and _endless(function):
                    yield view.hit("endless_thread", node, f"{function.name} loops for ever")


def _targets(node: ast.Call) -> list[ast.expr]:
    return [*node.args[:2], *(keyword.value for keyword in node.keywords if keyword.arg in ("target", "function"))]


def _function(view: View, target: ast.expr) -> Function | None:
    """The function of the file that a name or ``self.method`` stands for."""
    if isinstance(target, ast.Name):
        return view.functions.get(target.id)
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        found = (view.method(name, target.attr) for name in view.classes)
        return next((each for each in found if each is not None), None)
    return None


def _endless(function: Function) -> bool:
    """Whether a function has a loop without condition, without a way out, and without a call that waits."""
    for node in walk(function):
        if isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value:
            parts = [part for each in node.body for part in walk(each)]
            leaves = any(isinstance(part, (ast.Return, ast.Break, ast.Raise)) for part in parts)
            if not leaves and not any(called_name(part) in _WAITS for part in parts):
                return True
    return False
