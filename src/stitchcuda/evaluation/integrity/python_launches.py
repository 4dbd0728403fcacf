"""Static rules about the launchers of a native Program: are they called, and is what they write used.

Whether a kernel really ran, and whether its result matters, is measured elsewhere; this reads the Python side alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stitchcuda.evaluation.integrity.python_view import ALLOCATORS, View, called_name, loads_of
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import walk

Outputs = Mapping[str, tuple[int, ...]]
"""For each launcher of the manifest, the positions of its output arguments."""


@dataclass(frozen=True)
class Use:
    """How one file uses launchers: mentions that may lead to a call, calls by name, and calls whose outputs are thrown
    away."""

    mentioned: int
    calls: int
    discarded: int


def launch_hits(view: View, outputs: Outputs) -> Iterator[Hit]:
    """Hits in one file."""
    for call in _discarded(view, outputs):
        yield view.hit("discarded_result", call)
    imported = _imported(view, outputs)
    used = _used(view, imported)
    for name, node in imported.items():
        if name not in used:
            yield view.hit("unlaunched_kernel", node, f"{name} is imported and not called")


def launcher_use(view: View, outputs: Outputs) -> Use:
    """How the file uses launchers. Anything but plain imports from ``bindings`` counts as a mention."""
    imported = _imported(view, outputs)
    calls = [node for node in walk(view.tree) if isinstance(node, ast.Call) and called_name(node) in imported]
    loose = sum(
        1
        for node in walk(view.tree)
        if (isinstance(node, ast.Import) and any(alias.name == "bindings" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "bindings" and any(a.name == "*" for a in node.names))
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and _names_one(node.value, outputs))
        or (isinstance(node, ast.Attribute) and node.attr in outputs)
    )
    mentions = sum(_used(view, imported).values()) + loose
    return Use(mentions, len(calls), len(list(_discarded(view, outputs))))


def _names_one(text: str, outputs: Outputs) -> bool:
    return (len(text) < 200 and any(name in text for name in outputs)) or text == "bindings"


def _imported(view: View, outputs: Outputs) -> dict[str, ast.AST]:
    return {
        alias.asname or alias.name: node
        for node in walk(view.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "bindings"
        for alias in node.names
        if alias.name in outputs
    }


def _used(view: View, imported: Mapping[str, ast.AST]) -> dict[str, int]:
    """Mentions of imported launchers; one that a constructor puts into an attribute counts where that is read."""
    attributes: dict[str, str] = {}
    put_away: set[int] = set()
    for owner in view.classes:
        constructor = view.method(owner, "__init__")
        for node in walk(constructor) if constructor is not None else ():
            if not isinstance(node, ast.Assign) or not all(isinstance(each, ast.Attribute) for each in node.targets):
                continue
            held = [part for part in walk(node.value) if isinstance(part, ast.Name) and part.id in imported]
            put_away |= {id(part) for part in held}
            attributes |= {t.attr: part.id for t in node.targets if isinstance(t, ast.Attribute) for part in held}
    used: dict[str, int] = {}
    for node in walk(view.tree):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in put_away:
            name = node.id if node.id in imported else ""
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = attributes.get(node.attr, "")
        if name:
            used[name] = used.get(name, 0) + 1
    return used


def _discarded(view: View, outputs: Outputs) -> Iterator[ast.Call]:
    """Launches whose outputs are fresh tensors that nothing reads."""
    for function in view.hot:
        loads = loads_of(function)
        fresh = {
            node.targets[0].id
            for node in walk(function)
            if isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
            and called_name(node.value) in ALLOCATORS
        }
        for node in walk(function):
            positions = outputs.get(called_name(node), ())
            if not isinstance(node, ast.Call) or not positions or len(node.args) <= max(positions):
                continue
            given = [node.args[position] for position in positions]
            if all(isinstance(each, ast.Name) and each.id in fresh and loads.get(each.id) == 1 for each in given):
                yield node
