"""Static rules about what ``ModelNew.forward`` does with its inputs and gives back: inputs changed or passed through,
outputs that depend on nothing, buffers given out twice.

Most are flags; what a call really returned is judged elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stitchcuda.evaluation.integrity import python_tables as tables
from stitchcuda.evaluation.integrity.python_view import (
    ALLOCATORS,
    UNWRITTEN,
    Function,
    View,
    arguments,
    called_name,
    is_name,
    loads_of,
    parameters,
    place,
)
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import under_main_guard, walk

_HARMLESS = frozenset({"requires_grad_", "record_stream", "share_memory_", "detach_", "pin_memory_"})
_SAME = frozenset({"clone", "contiguous", "detach", "view", "reshape"})
_VIEWS = frozenset({"detach", "view", "untyped_storage", "storage", "t", "flatten", "squeeze", "unsqueeze"})
_FOLDING = frozenset(
    {"t", "contiguous", "matmul", "mm", "mul", "transpose", "permute", "float", "half", "detach", "clone"}
)
_CONTAINERS = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})
_INTERCEPTORS = frozenset({"__torch_function__", "__torch_dispatch__"})
_ITEMS = frozenset({"__getitem__", "__iter__", "__len__", "items", "values"})


def output_hits(view: View) -> Iterator[Hit]:
    """Hits in one file."""
    for function in view.hot:
        for rule in (_fallbacks, _library, _exits, _weights, _unwritten):
            yield from view.all(rule(view, function))
    for forward in view.forwards():
        yield from view.all(_inputs(view, forward))
        yield from view.all(_returns(view, forward))
    for whole in (_types, _reference, _folded):
        yield from view.all(whole(view))


def _fallbacks(view: View, function: Function) -> Iterator[Hit]:
    for node in walk(function):
        if not isinstance(node, ast.Try):
            continue
        if not any(isinstance(part, ast.Call) for each in node.body for part in walk(each)):
            continue
        for handler in node.handlers:
            if any(_computes(view, part) for each in handler.body for part in walk(each)):
                yield view.hit("silent_fallback", handler, f"except in {function.name} computes with the framework")


def _computes(view: View, node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return True
    if not isinstance(node, ast.Call):
        return False
    paths = view.names.resolve(node.func)
    if any(path.startswith("torch.") and path.rpartition(".")[2] in tables.COMPUTE for path in paths):
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in ("matmul", "mm", "bmm") or _calls_base(node):
        return True
    return is_name(node.func.value, "self") and any(path.startswith("torch.nn.") for path in paths)


def _calls_base(node: ast.Call) -> bool:
    """``super().forward(...)`` or ``Model.forward(...)``."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "forward":
        return False
    owner = node.func.value.func if isinstance(node.func.value, ast.Call) else node.func.value
    return is_name(owner, "super") or is_name(owner, "Model")


def _library(view: View, function: Function) -> Iterator[Hit]:
    for node in walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield view.hit("library_compute", node, "@")
        elif isinstance(node, ast.Call):
            paths = view.names.resolve(node.func)
            for path in paths:
                name = path.removesuffix("()").rpartition(".")[2]
                heavy = name in tables.HEAVY or (path.endswith("()") and name in tables.HEAVY_MODULES)
                if heavy and path.startswith("torch.") and not path.startswith("torch.ops."):
                    yield view.hit("library_compute", node, path.removesuffix("()"))
            if not paths and called_name(node) in ("matmul", "mm", "bmm", "addmm", "baddbmm"):
                yield view.hit("library_compute", node, f".{called_name(node)}()")


def _exits(view: View, function: Function) -> Iterator[Hit]:
    for node in walk(function):
        if isinstance(node, ast.Call) and view.names.resolve(node.func) & {
            "sys.exit",
            "builtins.exit",
            "builtins.quit",
        }:
            yield view.hit("ends_process", node)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if view.names.resolve(raised) & {"builtins.SystemExit", "builtins.KeyboardInterrupt"}:
                yield view.hit("ends_process", node)


def _inputs(view: View, forward: Function) -> Iterator[Hit]:
    given = parameters(forward)
    rebound: dict[str, int] = {}
    for node in walk(forward):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            rebound[node.id] = min(rebound.get(node.id, node.lineno), node.lineno)
    for node in walk(forward):
        name = _changed(node)
        line = getattr(node, "lineno", 0)
        if name is not None and name in given and rebound.get(name, line) >= line:
            yield view.hit("mutates_input", node)


def _weights(view: View, function: Function) -> Iterator[Hit]:
    """``self.layer.weight.mul_(2)``."""
    for node in walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _in_place(node.func.attr):
            owner = node.func.value
            while isinstance(owner, ast.Attribute) and owner.attr == "data":
                owner = owner.value
            if isinstance(owner, ast.Attribute) and owner.attr in ("weight", "bias"):
                yield view.hit("mutates_weights", node)


def _unwritten(view: View, function: Function) -> Iterator[Hit]:
    """Fresh, unwritten tensors whose first use reads them: ``y = torch.empty_like(x); y += x``."""
    for made in walk(function):
        if not (isinstance(made, ast.Assign) and len(made.targets) == 1 and isinstance(made.targets[0], ast.Name)):
            continue
        name, source = made.targets[0].id, made.value
        while isinstance(source, ast.Subscript) or (called_name(source) in _VIEWS | {"view_as", "reshape"}):
            inner = source.value if isinstance(source, ast.Subscript) else source.func.value  # type: ignore[attr-defined]
            source = inner
        if called_name(source) not in UNWRITTEN:
            continue
        uses = sorted(
            (node.lineno, node.col_offset, reads)
            for node in walk(function)
            if isinstance(node, (ast.stmt, ast.expr))
            and node.lineno > made.lineno
            and (reads := _reads_or_writes(node, name)) is not None
        )
        if uses and uses[0][2]:
            yield view.hit("reads_unwritten", made)


def _reads_or_writes(node: ast.AST, name: str) -> bool | None:
    """True where a node reads the data of ``name``, False where it may write it, None where it does neither."""
    if isinstance(node, ast.AugAssign):
        return True if is_name(node.target, name) else None
    if isinstance(node, ast.BinOp):
        return True if is_name(node.left, name) or is_name(node.right, name) else None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return False if is_name(node.value, name) else None
    if isinstance(node, ast.Call):
        if any(is_name(argument, name) for argument in arguments(node)):
            return False
        if isinstance(node.func, ast.Attribute) and is_name(node.func.value, name) and _in_place(node.func.attr):
            return node.func.attr in ("add_", "mul_", "sub_", "div_", "addcmul_", "scatter_add_", "index_add_")
    return None


def _in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__") and method not in _HARMLESS


def _returns(view: View, forward: Function) -> Iterator[Hit]:
    loads = loads_of(forward)
    stored = {part.id for part in walk(forward) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    made = {
        node.targets[0].id: node.value
        for node in walk(forward)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    }
    for node in walk(forward):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        parts = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else [node.value]
        if isinstance(node.value, ast.Dict):
            parts = node.value.values
        for value in parts:
            if isinstance(value, ast.Name) and value.id in made and loads.get(value.id) == 1:
                value = made[value.id]
            name = called_name(value)
            if name in UNWRITTEN:
                yield view.hit("unwritten_output", node)
            elif name in ALLOCATORS:
                yield view.hit("constant_output", node)
            yield from _given_out_again(view, node, value)
            while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME:
                value = value.func.value
            given = isinstance(value, ast.Name) and value.id in parameters(forward) - stored
            if given and not _used(forward, ast.unparse(value)):
                yield view.hit("input_passthrough", node)


def _given_out_again(view: View, node: ast.Return, value: ast.expr) -> Iterator[Hit]:
    """``return self.out``, ``return self.ring[i].copy_(y)``: what was returned before changes under its owner."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr.endswith("_"):
        value = value.func.value
    name = place(value)
    if name is not None and name.startswith("self."):
        attribute = name.removeprefix("self.").removesuffix("[]")
        assigned = {
            target.attr
            for function in view.hot
            for each in walk(function)
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Attribute)
        }
        if name.endswith("[]") or attribute in assigned:
            yield view.hit("reused_output", node)


def _used(forward: Function, name: str) -> bool:
    """Whether a parameter goes into any call, or is changed, besides being returned."""
    for part in walk(forward):
        if isinstance(part, ast.Call) and any(is_name(argument, name) for argument in arguments(part)):
            return True
        if _changed(part) == name:
            return True
    return False


def _types(view: View) -> Iterator[Hit]:
    """Classes that are tensors or containers and answer for themselves when they are looked at."""
    made = {part.id for function in view.hot for part in walk(function) if isinstance(part, ast.Name)}
    for name, node in view.classes.items():
        bases = {path for each in node.bases for path in view.names.resolve(each)}
        methods = {part.name for part in node.body if isinstance(part, Function)}
        if "torch.Tensor" in bases or methods & _INTERCEPTORS:
            yield view.hit("tensor_subclass", node, f"class {name}")
            lazy = methods & (_INTERCEPTORS | tables.TENSOR_METHODS)
            if lazy and "torch.Tensor" in bases and name in made:
                yield view.hit("lazy_answer", node, f"class {name} has a {min(lazy)} of its own, and a call makes one")
        elif bases & _CONTAINERS and methods & _ITEMS:
            yield view.hit("tensor_subclass", node, f"class {name} with items of its own")


def _reference(view: View) -> Iterator[Hit]:
    guard = under_main_guard(view.tree)
    new = view.classes.get("ModelNew")
    if new is not None and "Model" in view.classes and any(is_name(each, "Model") for each in new.bases):
        if not view.forwards():
            yield view.hit("copies_reference", new, "class ModelNew(Model) has no forward of its own")
        for forward in view.forwards():
            for node in walk(forward):
                if isinstance(node, ast.Call) and _calls_base(node):
                    yield view.hit("copies_reference", node)
    for node in walk(view.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and id(node) not in guard:
            if node.func.id == "Model" and "Model" in view.classes:
                yield view.hit("copies_reference", node, "Model(...)")
            elif node.func.id in ("get_inputs", "get_init_inputs") and node.func.id in view.functions:
                yield view.hit("regenerates_inputs", node, f"{node.func.id}()")


def _folded(view: View) -> Iterator[Hit]:
    """Weights worked on in the constructor and kept as a plain attribute: weights that are loaded later are ignored."""
    constructor = view.method("ModelNew", "__init__")
    for node in walk(constructor) if constructor is not None else ():
        if not isinstance(node, ast.Assign) or not any(isinstance(target, ast.Attribute) for target in node.targets):
            continue
        if called_name(node.value) in ("Parameter", "Buffer"):
            continue
        weights = any(isinstance(part, ast.Attribute) and part.attr in ("weight", "bias") for part in walk(node.value))
        works = any(
            (isinstance(part, ast.BinOp) and isinstance(part.op, (ast.MatMult, ast.Mult, ast.Add, ast.Div)))
            or called_name(part) in _FOLDING
            for part in walk(node.value)
        )
        if weights and works:
            yield view.hit("folds_at_construction", node)


def _changed(node: ast.AST) -> str | None:
    """The plain name that a statement or call changes in place."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        target: ast.expr = node.func.value
        if not _in_place(name) or not _is_view(target):
            return None
        while isinstance(target, (ast.Attribute, ast.Call)):
            target = target.func if isinstance(target, ast.Call) else target.value
        return target.id if isinstance(target, ast.Name) else None
    if isinstance(node, ast.AugAssign):
        target = node.target.value if isinstance(node.target, ast.Subscript) else node.target
        return target.id if isinstance(target, ast.Name) else None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        return node.value.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        return node.value.id if node.attr == "data" else None
    return None


def _is_view(node: ast.AST) -> bool:
    """Whether an expression is a name or views of one, so that changing it changes the name's tensor."""
    if isinstance(node, ast.Name):
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in ("data", "T", "mT") and _is_view(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _VIEWS and _is_view(node.func.value)
    return False
