"""A Python file of a Program as the flow rules see it: its classes, what a call of ``ModelNew`` may reach, and what
expressions depend on. Rules are in ``python_caches`` and ``python_outputs``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stitchcuda.evaluation.integrity.fold import Folder
from stitchcuda.evaluation.integrity.names import Names
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import walk
from stitchcuda.evaluation.integrity.words import words

Function = ast.FunctionDef | ast.AsyncFunctionDef

UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
ALLOCATORS = UNWRITTEN | words("zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full")
FACTS = words(
    """
    shape size dtype device numel stride dim ndim is_contiguous layout element_size requires_grad is_cuda get_device
    type
    """
)
"""What of a tensor is not its data."""

_ENTRIES = frozenset({"forward", "__call__"})


class View:
    """One file. ``hot`` are the functions that a call may reach, in the order of the file."""

    def __init__(self, path: str, tree: ast.Module, folder: Folder, names: Names) -> None:
        self.path, self.tree, self.folder, self.names = path, tree, folder, names
        self.classes = {node.name: node for node in walk(tree) if isinstance(node, ast.ClassDef)}
        self.functions = {node.name: node for node in tree.body if isinstance(node, Function)}
        self.hot = self._reachable()
        self.attributes = {node.attr for node in walk(tree) if isinstance(node, ast.Attribute)}
        self.graphs = bool(self.attributes & {"replay", "make_graphed_callables"}) or "make_graphed_callables" in names
        """Whether CUDA graphs are replayed: their static tensors are kept and refilled by design."""

    def hit(self, rule: str, node: ast.AST, what: str | None = None) -> Hit:
        """A hit at a node; what it says is the node's own text unless given."""
        text = ast.unparse(node) if what is None else what
        return Hit(rule, self.path, getattr(node, "lineno", 0), text[:80])

    def all(self, hits: Iterator[Hit]) -> list[Hit]:
        """What a rule finds, up to where expressions are nested too deeply for it: that blinds one rule, not all."""
        found: list[Hit] = []
        try:
            for hit in hits:
                found.append(hit)
        except RecursionError:
            found.append(Hit("dynamic_code", self.path, 0, "expressions are nested too deeply to be read"))
        return found

    def forwards(self, name: str = "ModelNew") -> list[Function]:
        """``forward`` and ``__call__`` of a class."""
        node = self.classes.get(name)
        return [part for part in node.body if isinstance(part, Function) and part.name in _ENTRIES] if node else []

    def method(self, owner: str, name: str) -> Function | None:
        """A method of a class by name."""
        node = self.classes.get(owner)
        found = (part for part in node.body if isinstance(part, Function) and part.name == name) if node else iter(())
        return next(found, None)

    def _reachable(self) -> list[Function]:
        """Functions that a call of ModelNew may run, by the names that are mentioned."""
        if "ModelNew" not in self.classes:
            return []
        methods = {
            part.name: part for node in self.classes.values() for part in node.body if isinstance(part, Function)
        }
        found: dict[int, Function] = {}
        seen = {"ModelNew"}
        front = [*self.forwards(), *self._forwards_of(_names(self.classes["ModelNew"]), seen)]
        while front:
            function = front.pop()
            if id(function) in found:
                continue
            found[id(function)] = function
            mentioned = _names(function)
            called = {part.attr for part in walk(function) if isinstance(part, ast.Attribute)}
            front += [self.functions[name] for name in mentioned if name in self.functions]
            front += [methods[name] for name in called if name in methods and name != "__init__"]
            front += self._forwards_of(mentioned, seen)
        return sorted(found.values(), key=lambda function: function.lineno)

    def _forwards_of(self, names: set[str], seen: set[str]) -> list[Function]:
        new = names & self.classes.keys() - seen
        seen |= new
        return [forward for name in sorted(new) for forward in self.forwards(name)]


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def is_name(node: ast.AST, name: str) -> bool:
    """Whether ``node`` is the plain name ``name``."""
    return isinstance(node, ast.Name) and node.id == name


def called_name(node: ast.AST) -> str:
    """``f`` for ``f(...)`` and ``x.f(...)``; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def arguments(node: ast.Call) -> list[ast.expr]:
    """All arguments of a call, by position and by name."""
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def parameters(function: Function) -> set[str]:
    """Names of a function's parameters, ``self`` left out."""
    given = function.args
    names = [each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
    names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
    return set(names) - {"self", "cls"} - ({"ctx"} if names[:1] == ["ctx"] else set())


def tainted(function: Function) -> set[str]:
    """Names in a function that hold data of its arguments, not only their shapes."""
    found = parameters(function)
    assigns = [node for node in walk(function) if isinstance(node, ast.Assign)]
    for _ in range(3):
        for node in assigns:
            if depends(node.value, found):
                found |= {
                    part.id
                    for target in node.targets
                    for part in walk(target)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                }
    return found


def depends(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression's value comes from one of ``names``, other than through its shape, dtype or device."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return node.attr not in FACTS and depends(node.value, names)
    if isinstance(node, ast.Call):
        name = called_name(node)
        if name in ALLOCATORS or name in FACTS or name in ("len", "isinstance", "type", "id"):
            return False
        parts = arguments(node)
        if isinstance(node.func, ast.Attribute):
            parts.append(node.func.value)
        return any(depends(part, names) for part in parts)
    return any(depends(part, names) for part in ast.iter_child_nodes(node))


def place(node: ast.AST) -> str | None:
    """``self.a``, ``a``, ``cache[]`` for what an assignment or a test is about."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"self.{node.attr}" if node.value.id in ("self", "cls", "ModelNew") else None
    if isinstance(node, ast.Subscript) and (inner := place(node.value)):
        return f"{inner}[]"
    return None


def base(name: str) -> str:
    """The container of a place: ``cache`` for ``cache[]``."""
    return name.removesuffix("[]")


def kept(name: str | None) -> bool:
    """Whether a place outlives a call: an attribute of self, or an item of a container."""
    return name is not None and ("self." in name or "[" in name)


def reads_kept(node: ast.AST) -> bool:
    """Whether an expression reads something that outlives a call."""
    for part in walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            if part.value.id in ("self", "ModelNew", "cls"):
                return True
        elif isinstance(part, ast.Name) and (part.id.startswith("_") or part.id.isupper()):
            return True
    return False


def loads_of(function: Function) -> dict[str, int]:
    """How often each plain name is read in a function."""
    loads: dict[str, int] = {}
    for node in walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            loads[node.id] = loads.get(node.id, 0) + 1
    return loads
