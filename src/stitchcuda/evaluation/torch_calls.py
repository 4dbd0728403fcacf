"""The calls of ``load_inline`` in a Program, as far as their arguments can be known without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stitchcuda.evaluation import torch_inline
from stitchcuda.evaluation.integrity.fold import Folder
from stitchcuda.evaluation.integrity.trees import parse, walk
from stitchcuda.program.model import Program

_FUNCTIONS = ("load_inline", "load")
MODULE = "cpp_extension"


@dataclass(frozen=True)
class InlineCall:
    """One call. ``request`` is None where ``problem`` says why it is not known. ``guarded``: its failure may be
    caught."""

    path: str
    line: int
    name: str
    request: dict[str, Any] | None
    problem: str = ""
    guarded: bool = False


def inline_calls(program: Program) -> list[InlineCall]:
    """All calls of load_inline and load, in the order of files and lines."""
    found: list[InlineCall] = []
    for path, text in sorted(program.files.items()):
        if not path.endswith(".py") or ("load_inline" not in text and "cpp_extension" not in text):
            continue
        tree = parse(text)
        if tree is None:
            continue
        folder, names = Folder(tree), _imported(tree)
        calls = [call for call in _calls(tree) if _called(call, names)]
        if not calls:
            continue
        guarded = _guarded(tree)
        found += [_read(path, call, folder, id(call) in guarded, _called(call, names)) for call in calls]
    return found


def _guarded(tree: ast.Module) -> set[int]:
    """Calls whose failure may be caught: inside ``try``, or inside a function of a file that catches anything."""
    catches = [node for node in walk(tree) if isinstance(node, ast.Try)]
    suppressed = any(isinstance(node, ast.Attribute) and node.attr == "suppress" for node in walk(tree))
    inside = [node for each in catches for part in each.body for node in walk(part)]
    if catches or suppressed:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        inside += [node for each in walk(tree) if isinstance(each, functions) for node in walk(each)]
        inside += [node for each in walk(tree) if suppressed and isinstance(each, ast.With) for node in walk(each)]
    return {id(node) for node in inside if isinstance(node, ast.Call)}


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    calls = [node for node in walk(tree) if isinstance(node, ast.Call)]
    yield from sorted(calls, key=lambda node: (node.lineno, node.col_offset))


def _imported(tree: ast.Module) -> dict[str, str]:
    """Names in this file that stand for load_inline or load, or for their module."""
    names: dict[str, str] = {"cpp_extension": MODULE}
    for node in walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: MODULE for alias in node.names if alias.asname and alias.name.endswith(MODULE)}
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("cpp_extension"):
            names |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in _FUNCTIONS}
    return names


def _called(call: ast.Call, names: dict[str, str]) -> str:
    if isinstance(call.func, ast.Name):
        return names.get(call.func.id, "")
    if isinstance(call.func, ast.Attribute):
        holder = ast.unparse(call.func.value).rpartition(".")[2]
        if call.func.attr == "load_inline" or (call.func.attr == "load" and names.get(holder) == MODULE):
            return call.func.attr
    return ""


def _read(path: str, call: ast.Call, folder: Folder, guarded: bool, function: str) -> InlineCall:
    def unknown(problem: str) -> InlineCall:
        return InlineCall(path, call.lineno, name, None, problem, guarded)

    name = ""
    if function == "load":
        return unknown("load() compiles files")
    if any(isinstance(argument, ast.Starred) for argument in call.args) or len(call.args) > len(
        torch_inline.POSITIONAL
    ):
        return unknown("its arguments are given by position")
    nodes = dict(zip(torch_inline.POSITIONAL, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None:
            return unknown("its arguments come from a dictionary")
        nodes[keyword.arg] = keyword.value
    arguments: dict[str, Any] = {}
    for key, node in nodes.items():
        if key in torch_inline.WITHOUT_EFFECT and key != "name":
            continue
        known, value = _value(node, folder)
        if not known and key != "name":
            return unknown(f"{key} is put together at run time")
        arguments[key] = value
    name = str(arguments.pop("name", "") or "")
    request = torch_inline.request(arguments)
    return (
        unknown("it has arguments of unknown meaning")
        if request is None
        else InlineCall(path, call.lineno, name, request, "", guarded)
    )


def _value(node: ast.expr, folder: Folder) -> tuple[bool, Any]:
    """Whether an argument is known, and what it is: None, or a string, number, list of these or dictionary of names."""
    if isinstance(node, ast.Constant) and node.value is None:
        return True, None
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        keys = [folder.text(key) for key in node.keys if key is not None]
        values = [folder.text(value) for value in node.values]
        return None not in (*keys, *values), dict(zip(keys, values, strict=True))
    folded = folder.fold(node)
    if folded is None or folded.partial:
        return False, None
    return True, list(folded.value) if isinstance(folded.value, tuple) else folded.value
