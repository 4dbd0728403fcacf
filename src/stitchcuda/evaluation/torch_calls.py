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
        guarded, known = _guarded(tree), _Known(tree, folder)
        found += [_read(path, call, known, id(call) in guarded, _called(call, names)) for call in calls]
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


def _read(path: str, call: ast.Call, values: _Known, guarded: bool, function: str) -> InlineCall:
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
        known, value = values.value(node, call)
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


class _Known:
    """What arguments are, as far as the file says it."""

    def __init__(self, tree: ast.Module, folder: Folder) -> None:
        self.tree, self.folder = tree, folder
        self.functions = [node for node in walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    def value(self, node: ast.expr, call: ast.Call) -> tuple[bool, Any]:
        """Whether an argument of a call is known, and what it is: None, or a string, number, list of these or
        dictionary of names."""
        if isinstance(node, ast.Constant) and node.value is None:
            return True, None
        if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
            keys = [self.folder.text(key) for key in node.keys if key is not None]
            values = [self.folder.text(value) for value in node.values]
            return None not in (*keys, *values), dict(zip(keys, values, strict=True))
        folded = self.folder.fold(node)
        if folded is None or folded.partial:
            if isinstance(node, ast.List | ast.Tuple):
                items = [self.value(item, call) for item in node.elts]
                return all(known for known, _ in items), [item for _, item in items]
            source = self.assigned(node, call)
            return self.value(source, call) if source is not None else (False, None)
        return True, list(folded.value) if isinstance(folded.value, tuple) else folded.value

    def assigned(self, node: ast.expr, call: ast.Call) -> ast.expr | None:
        """The one value that a name has around a call although other functions use the name too, or that an attribute
        such as ``self.source`` has. A wrong guess does no harm: the runner compares what the call is really given."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        text = ast.unparse(node)
        around = [each for each in self.functions if each.lineno <= call.lineno <= (each.end_lineno or 0)]
        scopes: list[ast.AST] = [*sorted(around, key=lambda each: -each.lineno), self.tree]
        for scope in scopes if isinstance(node, ast.Name) else [self.tree]:
            inner = {id(part) for each in self.functions if scope is self.tree for part in walk(each)}
            found = [
                each.value
                for each in walk(scope)
                if isinstance(each, ast.Assign)
                and [ast.unparse(target) for target in each.targets] == [text]
                and (isinstance(node, ast.Attribute) or id(each) not in inner)
            ]
            if len(found) == 1 and found[0] is not node:
                return found[0]
            if found:
                return None
        return None
