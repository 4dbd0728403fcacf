"""Static rules that look at how data flows through ``ModelNew.forward`` and what it calls: caches that outlive a call,
outputs that depend on nothing, fallbacks, streams that nobody waits for.

All of them are flags: each pattern has an honest cousin, and what a call really returned is judged elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stitchcuda.evaluation.integrity import python_tables as tables
from stitchcuda.evaluation.integrity.fold import Folder
from stitchcuda.evaluation.integrity.names import Names
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import under_main_guard, walk
from stitchcuda.evaluation.integrity.words import words

Function = ast.FunctionDef | ast.AsyncFunctionDef

_ALLOCATORS = words(
    """
    empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like full
    full_like
    """
)
_UNWRITTEN = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])
_FACTS = words(
    """
    shape size dtype device numel stride dim ndim is_contiguous layout element_size requires_grad is_cuda get_device
    type
    """
)
_HARMLESS = frozenset({"requires_grad_", "record_stream", "share_memory_", "detach_", "pin_memory_"})
_SAME = frozenset({"clone", "contiguous", "detach", "view", "reshape"})
_JOINS = frozenset({"wait_stream", "wait_event", "synchronize", "wait", "record_stream"})
_ENTRY_METHODS = frozenset({"forward", "__call__"})


def flow_hits(path: str, tree: ast.Module, folder: Folder, names: Names, *, native: bool) -> list[Hit]:
    """Hits of all flow rules in one file; ``native`` says whether the Program has sources beside it."""
    flow = _Flow(path, tree, folder, names)
    return list(flow.run())


class _Flow:
    def __init__(self, path: str, tree: ast.Module, folder: Folder, names: Names) -> None:
        self.path, self.tree, self.folder, self.names = path, tree, folder, names
        self.classes = {node.name: node for node in walk(tree) if isinstance(node, ast.ClassDef)}
        self.functions = {node.name: node for node in tree.body if isinstance(node, Function)}
        self.hot = self._reachable()
        self.attributes = {node.attr for node in walk(tree) if isinstance(node, ast.Attribute)}
        self.graphs = any(
            name in self.attributes or name in names for name in ("CUDAGraph", "make_graphed_callables", "graph")
        ) and ("replay" in self.attributes or "make_graphed_callables" in self.attributes)

    def hit(self, rule: str, node: ast.AST, what: str) -> Hit:
        return Hit(rule, self.path, getattr(node, "lineno", 0), what)

    def run(self) -> Iterator[Hit]:
        for function in self.hot:
            yield from self._fallbacks(function)
            yield from self._caches(function)
            yield from self._library(function)
            yield from self._counters(function)
        for forward in self._forwards("ModelNew"):
            yield from self._inputs(forward)
            yield from self._outputs(forward)
        yield from self._streams()
        yield from self._reference_copy()

    def _forwards(self, name: str) -> list[Function]:
        node = self.classes.get(name)
        return (
            [part for part in node.body if isinstance(part, Function) and part.name in _ENTRY_METHODS] if node else []
        )

    def _reachable(self) -> list[Function]:
        """Functions that a call of ModelNew may run, by the names that are mentioned."""
        found: dict[int, Function] = {}
        seen_classes: set[str] = set()
        front: list[ast.AST] = []
        if "ModelNew" in self.classes:
            front = [
                part
                for part in self.classes["ModelNew"].body
                if isinstance(part, Function) and part.name in _ENTRY_METHODS
            ]
            seen_classes.add("ModelNew")
            wanted = {part.id for part in walk(self.classes["ModelNew"]) if isinstance(part, ast.Name)}
            front += self._methods_of(wanted, seen_classes)
        methods = {
            part.name: part for node in self.classes.values() for part in node.body if isinstance(part, Function)
        }
        while front:
            function = front.pop()
            if not isinstance(function, Function) or id(function) in found:
                continue
            found[id(function)] = function
            mentioned = {part.id for part in walk(function) if isinstance(part, ast.Name)}
            called = {part.attr for part in walk(function) if isinstance(part, ast.Attribute)}
            front += [self.functions[name] for name in mentioned if name in self.functions]
            front += [methods[name] for name in called if name in methods and name != "__init__"]
            front += self._methods_of(mentioned, seen_classes)
        return sorted(found.values(), key=lambda function: function.lineno)

    def _methods_of(self, names: set[str], seen: set[str]) -> list[ast.AST]:
        found: list[ast.AST] = []
        for name in names & self.classes.keys() - seen:
            seen.add(name)
            found += [
                part for part in self.classes[name].body if isinstance(part, Function) and part.name in _ENTRY_METHODS
            ]
        return found

    def _fallbacks(self, function: Function) -> Iterator[Hit]:
        for node in walk(function):
            if not isinstance(node, ast.Try) or not any(
                isinstance(part, ast.Call) for each in node.body for part in walk(each)
            ):
                continue
            for handler in node.handlers:
                for part in (part for each in handler.body for part in walk(each)):
                    if self._computes(part):
                        yield self.hit(
                            "silent_fallback", handler, f"except in {function.name} computes with the framework"
                        )
                        break

    def _computes(self, node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return True
        if not isinstance(node, ast.Call):
            return False
        if any(
            path.startswith("torch.") and path.rpartition(".")[2] in tables.COMPUTE
            for path in self.names.resolve(node.func)
        ):
            return True
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in ("matmul", "mm", "bmm"):
                return True
            if node.func.attr == "forward" and isinstance(node.func.value, ast.Call):
                return True  # super().forward(...)
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "self":
                return any(path.startswith("torch.nn.") for path in self.names.resolve(node.func))
        return False

    def _library(self, function: Function) -> Iterator[Hit]:
        for node in walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                yield self.hit("library_compute", node, "@")
            elif isinstance(node, ast.Call):
                for path in self.names.resolve(node.func):
                    name = path.removesuffix("()").rpartition(".")[2]
                    heavy = name in tables.HEAVY or (path.endswith("()") and name in tables.HEAVY_MODULES)
                    if path.startswith("torch.") and not path.startswith("torch.ops.") and heavy:
                        yield self.hit("library_compute", node, path.removesuffix("()"))
                if (
                    isinstance(node.func, ast.Attribute)
                    and node.func.attr in ("matmul", "mm", "bmm", "addmm", "baddbmm")
                    and not self.names.resolve(node.func)
                ):
                    yield self.hit("library_compute", node, f".{node.func.attr}()")

    def _counters(self, function: Function) -> Iterator[Hit]:
        counted: dict[str, ast.AST] = {}
        for node in walk(function):
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and (name := _place(node.target)):
                counted[name] = node
            elif (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.BinOp)
                and isinstance(node.value.op, ast.Add)
            ):
                for target in node.targets:
                    if (name := _place(target)) and name in (_place(node.value.left), _place(node.value.right)):
                        counted[name] = node
        declared = {
            name for node in walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }
        counted = {name: node for name, node in counted.items() if "." in name or "[" in name or name in declared}
        for node in walk(function):
            if isinstance(node, (ast.If, ast.IfExp)):
                for part in walk(node.test):
                    if (name := _place(part)) in counted and name is not None:
                        yield self.hit("call_counter", node, f"{name} is counted and asked")
                        break

    def _caches(self, function: Function) -> Iterator[Hit]:
        keys = self._key_names(function)
        parameters = _parameters(function)
        tainted = _tainted(function, parameters)
        for node in walk(function):
            if isinstance(node, ast.Subscript) and self._is_key(node.slice, keys):
                yield self.hit("keyed_cache", node, ast.unparse(node)[:80])
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if (
                    node.func.attr in ("get", "setdefault", "pop") and node.args and self._is_key(node.args[0], keys)
                ) or (
                    node.func.attr in ("equal", "allclose", "array_equal")
                    and any(_remembered(a) for a in node.args)
                    and any(_mentions_any(a, parameters) for a in node.args)
                ):
                    yield self.hit("keyed_cache", node, ast.unparse(node)[:80])
            elif isinstance(node, ast.Compare):
                yield from self._comparison(node, keys, parameters)
            elif isinstance(node, ast.If) and not self.graphs:
                yield from self._kept(node, function, tainted)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield from self._memoised(node, tainted)

    def _key_names(self, function: Function) -> set[str]:
        keys: set[str] = set()
        for _ in range(3):
            for node in walk(function):
                if isinstance(node, ast.Assign) and self._is_key(node.value, keys):
                    keys.update(target.id for target in node.targets if isinstance(target, ast.Name))
        return keys

    def _is_key(self, node: ast.AST, keys: set[str]) -> bool:
        """Whether an expression is, or a tuple holds, an address, an identity or a digest of contents."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return any(self._is_key(part, keys) for part in node.elts)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._is_key(node.elt, keys)
        if isinstance(node, ast.Name):
            return node.id in keys
        if isinstance(node, ast.Attribute):
            return node.attr == "_version"
        if isinstance(node, ast.JoinedStr):
            return any(self._is_key(part.value, keys) for part in node.values if isinstance(part, ast.FormattedValue))
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Mod):
                return False  # an alignment
            return self._is_key(node.left, keys) or self._is_key(node.right, keys)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                return node.func.attr in ("data_ptr", "item", "tobytes", "tolist", "hexdigest", "digest", "_cdata")
            if isinstance(node.func, ast.Name):
                if node.func.id == "id":
                    return True
                if node.func.id in ("tuple", "str", "int", "hash", "frozenset", "bytes"):
                    return any(self._is_key(argument, keys) for argument in node.args)
        return False

    def _comparison(self, node: ast.Compare, keys: set[str], parameters: set[str]) -> Iterator[Hit]:
        sides = [node.left, *node.comparators]
        kept = [side for side in sides if _remembered(side)]
        if any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops):
            if kept and any(isinstance(side, ast.Name) and side.id in parameters for side in sides):
                yield self.hit("keyed_cache", node, ast.unparse(node)[:80])
            return
        keyed = [side for side in sides if self._is_key(side, keys)]
        member = any(isinstance(operator, (ast.In, ast.NotIn)) for operator in node.ops)
        equal = any(isinstance(operator, (ast.Eq, ast.NotEq)) for operator in node.ops)
        if keyed and (member or (equal and any(side not in keyed for side in kept))):
            yield self.hit("keyed_cache", node, ast.unparse(node)[:80])

    def _kept(self, node: ast.If, function: Function, tainted: set[str]) -> Iterator[Hit]:
        """``if self.y is None: self.y = f(x)`` or ``if k not in cache: cache[k] = f(x)``, with the value returned."""
        asked = {_base(name) for part in walk(node.test) if (name := _place(part) or _asked_by_name(part))}
        returned = _returned(function)
        for part in (part for each in [*node.body, *node.orelse] for part in walk(each)):
            if not isinstance(part, ast.Assign) or not _depends(part.value, tainted):
                continue
            for name in filter(None, map(_place, part.targets)):
                if ("self." in name or "[" in name) and _base(name) in asked & returned:
                    yield self.hit("cached_result", part, ast.unparse(part)[:80])

    def _memoised(self, node: ast.Call, tainted: set[str]) -> Iterator[Hit]:
        function = self.functions.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if function is None:
            return
        for decorator in function.decorator_list:
            inner = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self.names.resolve(inner) & {"functools.cache", "functools.lru_cache"} and any(
                _depends(argument, tainted) for argument in node.args
            ):
                yield self.hit("cached_result", node, f"{function.name} is memoised and takes a tensor")

    def _inputs(self, forward: Function) -> Iterator[Hit]:
        parameters = _parameters(forward)
        rebound: dict[str, int] = {}
        for node in walk(forward):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                rebound[node.id] = min(rebound.get(node.id, node.lineno), node.lineno)
        for node in walk(forward):
            name = _changed(node)
            if name is None or name not in parameters:
                continue
            line = getattr(node, "lineno", 0)
            if rebound.get(name, line) >= line:
                yield self.hit("mutates_input", node, ast.unparse(node)[:80])

    def _outputs(self, forward: Function) -> Iterator[Hit]:
        parameters = _parameters(forward)
        loads: dict[str, int] = {}
        stores: set[str] = set()
        made: dict[str, ast.expr] = {}
        for node in walk(forward):
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    loads[node.id] = loads.get(node.id, 0) + 1
                else:
                    stores.add(node.id)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                made[node.targets[0].id] = node.value
        returns = [node for node in walk(forward) if isinstance(node, ast.Return) and node.value is not None]
        for node in returns:
            value = node.value
            if isinstance(value, ast.Name) and value.id in made and loads.get(value.id) == 1:
                value = made[value.id]
            if isinstance(value, ast.Call):
                name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
                if name in _UNWRITTEN:
                    yield self.hit("unwritten_output", node, ast.unparse(node)[:80])
                elif name in _ALLOCATORS:
                    yield self.hit("constant_output", node, ast.unparse(node)[:80])
            while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME:
                value = value.func.value
            if isinstance(value, ast.Name) and value.id in parameters - stores:
                uses = sum(
                    1
                    for part in walk(forward)
                    if isinstance(part, ast.Call)
                    for a in [*part.args, *(k.value for k in part.keywords)]
                    if isinstance(a, ast.Name) and a.id == value.id
                )
                if not uses and not any(_changed(part) == value.id for part in walk(forward)):
                    yield self.hit("input_passthrough", node, ast.unparse(node)[:80])

    def _streams(self) -> Iterator[Hit]:
        joined = bool(self.attributes & _JOINS)
        replays: list[ast.AST] = []
        for node in walk(self.tree):
            if isinstance(node, ast.Call):
                paths = self.names.resolve(node.func)
                if (
                    paths
                    & {"torch.cuda.Stream", "torch.cuda.ExternalStream", "torch.cuda.streams.Stream", "torch.Stream"}
                    and not joined
                ):
                    yield self.hit("side_stream", node, "a stream is made and nothing waits for it")
                if isinstance(node.func, ast.Attribute) and node.func.attr == "replay":
                    replays.append(node)
        if (
            replays
            and not self.attributes & {"copy_", "_foreach_copy_", "memcpy", "cudaMemcpyAsync"}
            and "make_graphed_callables" not in self.attributes
        ):
            yield self.hit("graph_without_copy", replays[0], "replay() and no copy_() in the file")

    def _reference_copy(self) -> Iterator[Hit]:
        guard = under_main_guard(self.tree)
        new = self.classes.get("ModelNew")
        if new is not None and "Model" in self.classes and any(_is_name(base, "Model") for base in new.bases):
            forwards = self._forwards("ModelNew")
            if not forwards:
                yield self.hit("copies_reference", new, "class ModelNew(Model) has no forward of its own")
            for node in (part for forward in forwards for part in walk(forward)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "forward":
                    owner = node.func.value.func if isinstance(node.func.value, ast.Call) else node.func.value
                    if _is_name(owner, "super") or _is_name(owner, "Model"):
                        yield self.hit("copies_reference", node, ast.unparse(node)[:80])
        for node in walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and id(node) not in guard:
                if node.func.id == "Model" and "Model" in self.classes:
                    yield self.hit("copies_reference", node, "Model(...)")
                elif node.func.id in ("get_inputs", "get_init_inputs") and node.func.id in self.functions:
                    yield self.hit("regenerates_inputs", node, f"{node.func.id}()")


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _parameters(function: Function) -> set[str]:
    arguments = function.args
    names = [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
    names += [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return set(names) - {"self", "cls", "ctx"}


def _tainted(function: Function, parameters: set[str]) -> set[str]:
    """Names in a function that hold data of its arguments, not only their shapes."""
    tainted = set(parameters)
    for _ in range(3):
        for node in walk(function):
            if isinstance(node, ast.Assign) and _depends(node.value, tainted):
                tainted.update(
                    p.id
                    for target in node.targets
                    for p in walk(target)
                    if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)
                )
    return tainted


def _depends(node: ast.AST, tainted: set[str]) -> bool:
    """Whether an expression's value comes from a tainted name, other than through its shape, dtype or device."""
    if isinstance(node, ast.Name):
        return node.id in tainted
    if isinstance(node, ast.Attribute):
        return node.attr not in _FACTS and _depends(node.value, tainted)
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _ALLOCATORS or name in _FACTS or name in ("len", "isinstance", "type", "id"):
            return False
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            parts.append(node.func.value)
        return any(_depends(part, tainted) for part in parts)
    return any(_depends(part, tainted) for part in ast.iter_child_nodes(node))


def _place(node: ast.AST) -> str | None:
    """``self.a``, ``a``, ``cache[]`` for what an assignment or a test is about."""
    if isinstance(node, ast.Name):
        return node.id
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls", "ModelNew")
    ):
        return f"self.{node.attr}"
    if isinstance(node, ast.Subscript) and (base := _place(node.value)):
        return f"{base}[]"
    return None


def _base(name: str) -> str:
    return name.removesuffix("[]")


def _asked_by_name(node: ast.AST) -> str | None:
    """``self.a`` for ``hasattr(self, "a")`` and ``getattr(self, "a", None)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr")):
        return None
    name = node.args[1] if len(node.args) > 1 else None
    return f"self.{name.value}" if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def _returned(function: Function) -> set[str]:
    """Places whose contents a function returns, directly or through a plain copy: ``y = self.cache[k]; return y``."""
    returned: set[str] = set()
    for node in walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            returned |= {_base(name) for part in walk(node.value) if (name := _place(part))}
    for node in walk(function):
        copied = isinstance(node, ast.Assign) and any(_place(target) in returned for target in node.targets)
        if copied and (name := _place(node.value)) is not None:  # type: ignore[attr-defined]
            returned.add(_base(name))
    return returned


def _remembered(node: ast.AST) -> bool:
    """Whether an expression reads something that outlives a call: an attribute of self, or an item of a container."""
    return any(
        (
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and part.value.id in ("self", "ModelNew", "cls")
        )
        or (isinstance(part, ast.Name) and part.id.startswith("_"))
        or (isinstance(part, ast.Name) and part.id.isupper())
        for part in walk(node)
    )


def _mentions_any(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in walk(node))


def _changed(node: ast.AST) -> str | None:
    """The plain name that a statement or call changes in place."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        target = node.func.value
        while isinstance(target, (ast.Attribute, ast.Call)):
            target = target.func if isinstance(target, ast.Call) else target.value
        in_place = (name.endswith("_") and not name.endswith("__") and name not in _HARMLESS) or name == "resize_"
        if in_place and isinstance(target, ast.Name) and _views(node.func.value):
            return target.id
    if isinstance(node, ast.AugAssign):
        target = node.target.value if isinstance(node.target, ast.Subscript) else node.target
        return target.id if isinstance(target, ast.Name) else None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        return node.value.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        return node.value.id if node.attr == "data" else None
    return None


def _views(node: ast.AST) -> bool:
    """Whether an expression is a name or views of one, so that changing it changes the name's tensor."""
    if isinstance(node, ast.Name):
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in ("data", "T", "mT") and _views(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in (
            "detach",
            "view",
            "untyped_storage",
            "storage",
            "t",
            "flatten",
            "squeeze",
            "unsqueeze",
        ) and _views(node.func.value)
    return False
