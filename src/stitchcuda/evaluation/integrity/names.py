"""What a name in a Python file stands for: a dotted path from its module, through aliases and roundabout look-ups.

``import torch.cuda as c; E = getattr(c, "Ev" + "ent"); E.record`` is ``torch.cuda.Event.record``. A trailing ``()``
says that an object came from calling that path. This is a flat view of one file: scopes are not told apart, and a name
that is bound in several ways stands for all of them.
"""

from __future__ import annotations

import ast
import builtins

from stitchcuda.evaluation.integrity.fold import Folder
from stitchcuda.evaluation.integrity.trees import walk

_BUILTINS = frozenset(dir(builtins))
FOREIGN_TYPE = "?type"
"""The type of an object that the file was given: ``type(x)``, ``x.__class__``."""
_MAX_DEPTH = 24
_MAX_WAYS = 8


class Names:
    """Resolves expressions of one module."""

    def __init__(self, tree: ast.Module, folder: Folder) -> None:
        self._folder = folder
        self._imports: dict[str, set[str]] = {}
        self._values: dict[str, list[ast.expr]] = {}
        self._bound: set[str] = set()
        for node in walk(tree):
            self._collect(node)

    def __contains__(self, name: str) -> bool:
        """Whether the file binds ``name`` in any way."""
        return name in self._bound

    def values(self, name: str) -> list[ast.expr]:
        """The expressions that the file binds ``name`` to."""
        return self._values.get(name, [])

    def resolve(self, node: ast.AST) -> frozenset[str]:
        """Every dotted path that ``node`` may stand for; empty when nothing is known."""
        return self._resolve(node, 0, frozenset())

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                self._imports.setdefault(name, set()).add(alias.name if alias.asname else name)
                self._bound.add(name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                path = f"{node.module}.{alias.name}" if node.module else alias.name
                self._imports.setdefault(alias.asname or alias.name, set()).add("." * node.level + path)
                self._bound.add(alias.asname or alias.name)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._bind(node.target, node.value)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind(node.optional_vars, node.context_expr)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._bound.add(node.name)
        elif isinstance(node, ast.arg):
            self._bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self._bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._bound.add(node.id)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for each, part in zip(target.elts, value.elts, strict=False):
                self._bind(each, part)
        elif isinstance(target, ast.Name):
            self._values.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            self._values.setdefault(f"self.{target.attr}", []).append(value)

    def _resolve(self, node: ast.AST, depth: int, seen: frozenset[str]) -> frozenset[str]:
        if depth > _MAX_DEPTH:
            return frozenset()
        found: set[str] = set()
        if isinstance(node, ast.Name):
            found = self._resolve_name(node.id, depth, seen)
        elif isinstance(node, ast.Attribute):
            found = {_attribute(base, node.attr) for base in self._resolve(node.value, depth + 1, seen)}
            if node.attr == "__class__" and not found and not _is_self(node.value):
                found = {FOREIGN_TYPE}
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                found |= self._resolve_value(f"self.{node.attr}", depth, seen)
        elif isinstance(node, ast.Subscript):
            found = self._resolve_subscript(node, depth, seen)
        elif isinstance(node, ast.Call):
            found = self._resolve_call(node, depth, seen)
        elif isinstance(node, ast.IfExp):
            found = set(self._resolve(node.body, depth + 1, seen) | self._resolve(node.orelse, depth + 1, seen))
        elif isinstance(node, ast.BoolOp):
            found = {path for part in node.values for path in self._resolve(part, depth + 1, seen)}
        return frozenset(sorted(found)[:_MAX_WAYS])

    def _resolve_name(self, name: str, depth: int, seen: frozenset[str]) -> set[str]:
        found = set(self._imports.get(name, ()))
        found |= self._resolve_value(name, depth, seen)
        if not found and name in _BUILTINS and name not in self._bound:
            found.add(f"builtins.{name}")
        if name == "__builtins__":
            found.add("builtins")
        return found

    def _resolve_value(self, name: str, depth: int, seen: frozenset[str]) -> set[str]:
        if name in seen:
            return set()
        return {
            path
            for value in self._values.get(name, ())[:_MAX_WAYS]
            for path in self._resolve(value, depth + 1, seen | {name})
        }

    def _resolve_subscript(self, node: ast.Subscript, depth: int, seen: frozenset[str]) -> set[str]:
        key = self._folder.text(node.slice)
        if key is None:
            return set()
        found: set[str] = set()
        for base in self._resolve(node.value, depth + 1, seen):
            found |= self._member(base, key, depth, seen)
        return found

    def _member(self, base: str, key: str, depth: int, seen: frozenset[str]) -> set[str]:
        """What lies under ``key`` in a mapping of names."""
        if base == "sys.modules":
            return {key}
        if base in ("builtins.globals()", "builtins.locals()", "builtins.vars()"):
            return self._resolve_name(key, depth, seen)
        if base == "builtins":
            return {f"builtins.{key}"}
        if base.endswith(".__dict__"):
            return {f"{base.removesuffix('.__dict__')}.{key}"}
        return set()

    def _resolve_call(self, node: ast.Call, depth: int, seen: frozenset[str]) -> set[str]:
        found: set[str] = set()
        for function in self._resolve(node.func, depth + 1, seen):
            found |= self._result(function, node, depth, seen)
            if function == "operator.attrgetter()" and isinstance(node.func, ast.Call):  # attrgetter("a.b")(x)
                path = self._folder.text(node.func.args[0]) if node.func.args else None
                bases = self._resolve(node.args[0], depth + 1, seen) if path and node.args else ()
                found |= {f"{base}.{path}" for base in bases}
        return found

    def _result(self, function: str, node: ast.Call, depth: int, seen: frozenset[str]) -> set[str]:
        arguments = node.args
        if function in ("builtins.getattr", "inspect.getattr_static") and len(arguments) >= 2:
            return self._get(arguments[0], arguments[1], depth, seen)
        if function in ("builtins.object.__getattribute__", "builtins.type.__getattribute__") and len(arguments) == 2:
            return self._get(arguments[0], arguments[1], depth, seen)
        if function.endswith((".__getattribute__", ".__getattr__")) and len(arguments) == 1:
            name = self._folder.text(arguments[0])
            return {_attribute(function.rpartition(".")[0], name)} if name else set()
        if function in ("importlib.import_module", "builtins.__import__", "importlib.__import__") and arguments:
            name = self._folder.text(arguments[0])
            if name is None:
                return set()
            whole = function.endswith("import_module") or len(arguments) > 3
            return {name if whole else name.split(".")[0]}
        if function == "builtins.vars" and arguments:
            return {f"{base}.__dict__" for base in self._resolve(arguments[0], depth + 1, seen)}
        if function == "builtins.type" and len(arguments) == 1:
            known = {_class_of(base) for base in self._resolve(arguments[0], depth + 1, seen)}
            return known or ({FOREIGN_TYPE} if not _is_self(arguments[0]) else set())
        if function.endswith((".__dict__.get", "sys.modules.get", "builtins.globals().get")) and arguments:
            key = self._folder.text(arguments[0])
            return self._member(function.removesuffix(".get"), key, depth, seen) if key else set()
        if function in ("functools.partial", "types.MethodType", "inspect.unwrap") and arguments:
            return set(self._resolve(arguments[0], depth + 1, seen))
        return {f"{function}()"}

    def _get(self, base: ast.expr, name: ast.expr, depth: int, seen: frozenset[str]) -> set[str]:
        key = self._folder.text(name)
        if key is None:
            return set()
        found = {_attribute(path, key) for path in self._resolve(base, depth + 1, seen)}
        if isinstance(base, ast.Name) and base.id == "self":
            found |= self._resolve_value(f"self.{key}", depth, seen)
        return found


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _attribute(base: str, name: str) -> str:
    return _class_of(base) if name == "__class__" else f"{base}.{name}"


_TENSOR_MAKERS = frozenset(
    f"torch.{name}()"
    for name in (
        "empty",
        "zeros",
        "ones",
        "rand",
        "randn",
        "tensor",
        "full",
        "arange",
        "eye",
        "as_tensor",
        "empty_like",
    )
)


def _class_of(base: str) -> str:
    """The class of what a path stands for, so far as the path tells."""
    if base in _TENSOR_MAKERS:
        return "torch.Tensor"
    return base.removesuffix("()")
