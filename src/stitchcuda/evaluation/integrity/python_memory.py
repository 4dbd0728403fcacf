"""What a Program's Python keeps from call to call: counts of calls, and tables that it makes itself."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from stitchcuda.evaluation.integrity.python_view import Function, called_name, place
from stitchcuda.evaluation.integrity.trees import walk

_MAKERS = frozenset({"dict", "list", "OrderedDict", "defaultdict"})


def counters(function: Function, outlives: Callable[[str | None], bool]) -> frozenset[str]:
    """Places that outlive a call and that the function counts up by a constant: ``self.n += 1``, ``n = n + 1``."""
    found: set[str | None] = set()
    for node in walk(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Constant):
            found.add(place(node.target))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            sides = (node.value.left, node.value.right)
            if any(isinstance(side, ast.Constant) for side in sides):
                found |= {place(target) for target in node.targets} & set(map(place, sides))
    return frozenset(name for name in found if name is not None and outlives(name))


def containers(tree: ast.Module) -> frozenset[str]:
    """Places that hold a plain dict or list which the file makes itself."""
    found: set[str] = set()
    for target, value in _assigned(tree):
        plain = isinstance(value, (ast.Dict, ast.List, ast.DictComp, ast.ListComp)) or called_name(value) in _MAKERS
        if plain and (name := place(target)) is not None:
            found.add(name)
    return frozenset(found)


def _assigned(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets with their values; ``a, b = c, d`` is two."""
    for node in walk(tree):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield target, node.value
