"""Static rules about what a Program does to the device beside its own work: streams that nobody waits for, graphs that
are replayed as they are, limits that are changed and stay so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from stitchcuda.evaluation.integrity.python_view import View, called_name
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import walk
from stitchcuda.evaluation.integrity.words import words

_OWN = frozenset({"torch.cuda.Stream", "torch.cuda.streams.Stream", "torch.Stream"})
_STREAMS = _OWN | {"torch.cuda.ExternalStream"}
_ENTERED = frozenset({"torch.cuda.stream", "torch.cuda.StreamContext", "torch.cuda.set_stream"})
_FOREIGN = ("cuStreamCreate", "cudaStreamCreate")
_NON_BLOCKING = 1
_WAITS = words("synchronize query cpu item tolist numpy elapsed_time nonzero")
"""Methods whose call ends when the device's work has, or says whether it has."""
_JOINS = frozenset({"wait_stream", "wait_event", "wait"})
_FOREIGN_JOINS = re.compile(r"cu(da)?(Stream|Event|Ctx|Device)(WaitEvent|Synchronize|Query)")
_FOREIGN_GRAPH = re.compile(r"\bcu(da)?GraphLaunch\b")
_COPIES = frozenset({"copy_", "_foreach_copy_", "memcpy", "cudaMemcpyAsync", "make_graphed_callables"})
_LIMITS = frozenset({"cuCtxSetLimit", "cudaDeviceSetLimit"})
PERSISTING_L2 = 6
"""The number of the limit for lines that persist in L2, to the driver and to the runtime."""


def stream_hits(view: View) -> Iterator[Hit]:
    """Hits in one file."""
    for rule in (_streams, _graphs, _limits):
        yield from view.all(rule(view))


def _streams(view: View) -> Iterator[Hit]:
    calls = [node for node in walk(view.tree) if isinstance(node, ast.Call)]
    if any(_joins(view, node) for node in walk(view.tree)) or any(_FOREIGN_JOINS.search(text) for text in _texts(view)):
        return
    hot = [part for function in view.hot for part in walk(function) if isinstance(part, ast.Call)]
    entered = any(view.names.resolve(call.func) & _ENTERED and not _callers(view, call) for call in hot)
    made = next((call for call in calls if view.names.resolve(call.func) & _STREAMS), None)
    foreign = next((call for call in calls if called_name(call).startswith(_FOREIGN)), None)
    # A graph is captured on a stream of its own and replayed on the caller's; native code may join what it is given.
    unsure = view.graphs or _native(view) or "cuda_stream" in view.attributes
    unsure = unsure or any(_FOREIGN_GRAPH.search(text) for text in _texts(view))
    own = made is not None and bool(view.names.resolve(made.func) & _OWN) and entered
    for call, sure in ((made, own), (foreign, foreign is not None and _never_waits(view, foreign))):
        if call is not None:
            rule = "unjoined_stream" if sure and not unsure else "side_stream"
            yield view.hit(rule, call, "a stream is made and the caller's stream never waits for it")


def _native(view: View) -> bool:
    """Whether the file takes launchers from native code beside it."""
    imports = (node for node in walk(view.tree) if isinstance(node, ast.ImportFrom))
    return any(node.module == "bindings" for node in imports)


def _never_waits(view: View, call: ast.Call) -> bool:
    """Whether a stream of the driver's is made so that it does not wait for the legacy default stream, either."""
    folded = [view.folder.fold(argument) for argument in call.args[1:2]]
    return any(value is not None and value.value == _NON_BLOCKING for value in folded)


def _callers(view: View, call: ast.Call) -> bool:
    """Whether what is entered is the caller's own stream."""
    paths = view.names.resolve(call.args[0]) if call.args else frozenset()
    return bool(paths) and paths <= {"torch.cuda.current_stream()", "torch.cuda.default_stream()"}


def _joins(view: View, node: ast.AST) -> bool:
    """Whether the caller's stream, or the caller, waits for another: not where a stream of its own is what waits.
    A method that is only mentioned somebody else may call: ``map(main.wait_stream, streams)``."""
    if isinstance(node, ast.Name):
        return any(path.endswith(".synchronize") for path in view.names.resolve(node))
    if isinstance(node, ast.With) and any(_enters(view, item) for item in node.items):
        return any(_on_host(part) for each in node.body for part in walk(each))
    if isinstance(node, ast.Call) and called_name(node) == "getattr" and len(node.args) > 1:
        named = view.folder.text(node.args[1])
        return named in _WAITS or (named in _JOINS and not _own(view, node.args[0]))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _class(view, node.func.value):
        return node.func.attr in _JOINS and bool(node.args) and not _own(view, node.args[0])
    if not isinstance(node, ast.Attribute):
        return False
    waits = node.attr in _JOINS and not _class(view, node.value) and not _own(view, node.value)
    return waits or node.attr in _WAITS


def _enters(view: View, item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and bool(view.names.resolve(call.func) & _ENTERED)


def _on_host(node: ast.AST) -> bool:
    """``int(count)``, ``sizes.to("cpu")``: what waits for the stream that it is called on."""
    name = called_name(node)
    return name in ("int", "float", "bool") or (
        name == "to" and any(isinstance(part, ast.Constant) and part.value == "cpu" for part in walk(node))
    )


def _class(view: View, node: ast.expr) -> bool:
    """``torch.cuda.Stream`` itself, as in ``torch.cuda.Stream.wait_stream(a, b)``."""
    return bool(view.names.resolve(node) & _STREAMS)


def _own(view: View, node: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is surely a stream that the file makes: a parameter may be the caller's, and so may what
    a handle is wrapped in."""
    if isinstance(node, ast.Call):
        paths = view.names.resolve(node.func)
        return bool(paths) and paths <= _OWN
    if isinstance(node, (ast.BoolOp, ast.IfExp)):
        parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
        return all(_own(view, part, depth) for part in parts)
    name = node.id if isinstance(node, ast.Name) else ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    values = [each for each in view.names.values(name) if not isinstance(each, ast.Constant)]
    given = any(isinstance(each, ast.arg) and each.arg == name for each in walk(view.tree))
    return bool(values) and not given and depth < 8 and all(_own(view, each, depth + 1) for each in values)


def _texts(view: View) -> Iterator[str]:
    """Names of attributes and texts of a file, which may be native code."""
    yield from view.attributes
    yield from (node.id for node in walk(view.tree) if isinstance(node, ast.Name))
    for node in walk(view.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _graphs(view: View) -> Iterator[Hit]:
    replay = next((node for node in walk(view.tree) if called_name(node) == "replay"), None)
    if replay is not None and not view.attributes & _COPIES:
        yield view.hit("graph_without_copy", replay, "replay() and no copy_() in the file")


def _limits(view: View) -> Iterator[Hit]:
    """A limit that is set through ctypes in one place, to something: nobody gives it back."""
    found = [
        node
        for node in walk(view.tree)
        if isinstance(node, ast.Call) and called_name(node) in _LIMITS and len(node.args) > 1
    ]
    if len(found) == 1 and _folded(view, found[0].args[0]) == PERSISTING_L2 and _folded(view, found[0].args[1]):
        yield view.hit("device_limits", found[0])


def _folded(view: View, node: ast.expr) -> object:
    """The value of an expression, or of what a ctypes type is made with; None when it is not known."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and called_name(node).startswith("c_"):
        node = node.args[0]
    folded = view.folder.fold(node)
    return folded.value if folded is not None else None
