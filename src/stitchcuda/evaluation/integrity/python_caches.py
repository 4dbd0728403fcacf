"""Static rules about what a Program remembers between calls: values kept under an address, an identity, a shape or a
count, and behaviour that depends on how often it was called.

All are flags: a workspace kept by size is honest, and what a call really returned is judged elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stitchcuda.evaluation.integrity.python_view import (
    Function,
    View,
    base,
    called_name,
    depends,
    kept,
    parameters,
    place,
    reads_kept,
    tainted,
)
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import walk

_DIGESTS = frozenset({"data_ptr", "item", "tobytes", "tolist", "hexdigest", "digest", "_cdata"})
_WRAPPERS = frozenset({"tuple", "str", "int", "hash", "frozenset", "bytes"})
_SAME_CONTENTS = frozenset({"equal", "allclose", "array_equal"})


def cache_hits(view: View) -> Iterator[Hit]:
    """Hits in all functions that a call may reach."""
    for function in view.hot:
        yield from view.all(_function_hits(view, function))


def _function_hits(view: View, function: Function) -> Iterator[Hit]:
    rules = _Caches(view, function)
    yield from rules.keyed()
    yield from rules.counted()
    if not view.graphs:
        yield from rules.kept_results()
        yield from rules.carried()
    yield from rules.memoised()


class _Caches:
    """One function."""

    def __init__(self, view: View, function: Function) -> None:
        self.view, self.function = view, function
        self.parameters = parameters(function)
        self.tainted = tainted(function)
        self.keys: set[str] = set()
        """Names in the function that hold addresses, identities or digests."""
        self._find_keys()

    def keyed(self) -> Iterator[Hit]:
        """Look-ups by address, identity, version or contents."""
        for node in walk(self.function):
            if isinstance(node, ast.Subscript) and self._is_key(node.slice):
                yield self.view.hit("keyed_cache", node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                lookup = node.func.attr in ("get", "setdefault", "pop") and node.args
                compares = node.func.attr in _SAME_CONTENTS and any(map(reads_kept, node.args))
                if (lookup and self._is_key(node.args[0])) or (
                    compares and any(depends(argument, self.parameters) for argument in node.args)
                ):
                    yield self.view.hit("keyed_cache", node)
            elif isinstance(node, ast.Compare) and self._compares_keys(node):
                yield self.view.hit("keyed_cache", node)

    def _find_keys(self) -> None:
        assigns = [node for node in walk(self.function) if isinstance(node, ast.Assign)]
        for _ in range(3):
            for node in assigns:
                if self._is_key(node.value):
                    self.keys |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def _is_key(self, node: ast.AST) -> bool:
        """Whether an expression is, or a tuple holds, an address, an identity or a digest of contents."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return any(map(self._is_key, node.elts))
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._is_key(node.elt)
        if isinstance(node, ast.Name):
            return node.id in self.keys
        if isinstance(node, ast.Attribute):
            return node.attr == "_version"
        if isinstance(node, ast.JoinedStr):
            return any(self._is_key(part.value) for part in node.values if isinstance(part, ast.FormattedValue))
        if isinstance(node, ast.BinOp):
            alignment = isinstance(node.op, ast.Mod)
            return not alignment and (self._is_key(node.left) or self._is_key(node.right))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                return node.func.attr in _DIGESTS
            name = called_name(node)
            return name == "id" or (name in _WRAPPERS and any(map(self._is_key, node.args)))
        return False

    def _compares_keys(self, node: ast.Compare) -> bool:
        sides = [node.left, *node.comparators]
        remembered = [side for side in sides if reads_kept(side)]
        if any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops):
            return bool(remembered) and any(isinstance(s, ast.Name) and s.id in self.parameters for s in sides)
        keyed = [side for side in sides if self._is_key(side)]
        member = any(isinstance(operator, (ast.In, ast.NotIn)) for operator in node.ops)
        equal = any(isinstance(operator, (ast.Eq, ast.NotEq)) for operator in node.ops)
        return bool(keyed) and (member or (equal and any(side not in keyed for side in remembered)))

    def kept_results(self) -> Iterator[Hit]:
        """``if self.y is None: self.y = f(x)`` or ``if k not in cache: cache[k] = f(x)``, with the value returned."""
        returned = self._returned()
        for node in walk(self.function):
            if not isinstance(node, ast.If):
                continue
            asked = {base(name) for part in walk(node.test) if (name := place(part) or _asked_by_name(part))}
            for part in (part for each in [*node.body, *node.orelse] for part in walk(each)):
                if not isinstance(part, ast.Assign) or not depends(part.value, self.tainted):
                    continue
                for name in filter(None, map(place, part.targets)):
                    if kept(name) and base(name) in asked & returned:
                        yield self.view.hit("cached_result", part)

    def carried(self) -> Iterator[Hit]:
        """Data of one call that a later one reads: ``y = self.last ...`` above ``self.last = f(x)``."""
        read: dict[str, int] = {}
        for node in walk(self.function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and (name := place(node)):
                read[name] = min(read.get(name, node.lineno), node.lineno)
        for node in walk(self.function):
            if isinstance(node, ast.Assign) and depends(node.value, self.tainted):
                for name in filter(None, map(place, node.targets)):
                    if name.startswith("self.") and read.get(base(name), node.lineno) < node.lineno:
                        yield self.view.hit("cached_result", node)
            elif isinstance(node, ast.Call) and called_name(node) == "append" and isinstance(node.func, ast.Attribute):
                held = place(node.func.value) or ""
                data = any(depends(argument, self.tainted) for argument in node.args)
                if kept(held) and data and read.get(base(held), node.lineno) < node.lineno:
                    yield self.view.hit("cached_result", node)

    def _returned(self) -> set[str]:
        """Places whose contents are returned, directly or through a plain copy: ``y = self.cache[k]; return y``."""
        returned: set[str] = set()
        for node in walk(self.function):
            if isinstance(node, ast.Return) and node.value is not None:
                returned |= {base(name) for part in walk(node.value) if (name := place(part))}
        for node in walk(self.function):
            if isinstance(node, ast.Assign) and {place(target) for target in node.targets} & returned:
                returned |= {base(name) for name in [place(node.value)] if name}
        return returned

    def memoised(self) -> Iterator[Hit]:
        """Calls of functions under functools.cache with tensors."""
        for node in walk(self.function):
            function = self.view.functions.get(node.func.id) if _plain_call(node) else None  # type: ignore[attr-defined]
            if function is None or not isinstance(node, ast.Call):
                continue
            if _memoises(self.view, function) and any(depends(argument, self.tainted) for argument in node.args):
                yield self.view.hit("cached_result", node, f"{function.name} is memoised and takes a tensor")

    def counted(self) -> Iterator[Hit]:
        """``self.n += 1`` with ``self.n > 5`` or ``self.n % 2`` somewhere in the function."""
        counters: set[str] = set()
        for node in walk(self.function):
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                counters |= {name for name in [place(node.target)] if name}
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                sides = (place(node.value.left), place(node.value.right))
                added = isinstance(node.value.op, ast.Add)
                counters |= {name for target in node.targets if added and (name := place(target)) in sides and name}
        outer = {
            name for node in walk(self.function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }
        counters = {name for name in counters if kept(name) or name in outer}
        for node in walk(self.function):
            asks = isinstance(node, ast.Compare) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod))
            asked = {place(part) for part in walk(node)} & counters if asks else set()
            if asked:
                yield self.view.hit("call_counter", node, f"{min(name for name in asked if name)} is counted and asked")


def _plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _memoises(view: View, function: Function) -> bool:
    for decorator in function.decorator_list:
        inner = decorator.func if isinstance(decorator, ast.Call) else decorator
        if view.names.resolve(inner) & {"functools.cache", "functools.lru_cache"}:
            return True
    return False


def _asked_by_name(node: ast.AST) -> str | None:
    """``self.a`` for ``hasattr(self, "a")`` and ``getattr(self, "a", None)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr")):
        return None
    name = node.args[1] if len(node.args) > 1 else None
    return f"self.{name.value}" if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
