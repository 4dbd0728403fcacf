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

_STREAMS = frozenset({"torch.cuda.Stream", "torch.cuda.ExternalStream", "torch.cuda.streams.Stream", "torch.Stream"})
_ENTERED = frozenset({"torch.cuda.stream", "torch.cuda.StreamContext", "torch.cuda.set_stream"})
_FOREIGN = ("cuStreamCreate", "cudaStreamCreate")
_JOINS = frozenset({"wait_stream", "wait_event", "wait"})
_FOREIGN_JOINS = re.compile(r"cu(da)?(Stream|Event|Ctx|Device)(WaitEvent|Synchronize)")
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
    if any(_FOREIGN_JOINS.match(name) for name in view.attributes) or any(_joins(view, call) for call in calls):
        return
    hot = [part for function in view.hot for part in walk(function) if isinstance(part, ast.Call)]
    entered = any(view.names.resolve(call.func) & _ENTERED for call in hot)
    made = next((call for call in calls if view.names.resolve(call.func) & _STREAMS), None)
    foreign = next((call for call in calls if called_name(call).startswith(_FOREIGN)), None)
    # A graph is captured on a stream of its own, and replayed on the caller's.
    rule = "side_stream" if view.graphs or not (entered or foreign) else "unjoined_stream"
    for call in (made, foreign):
        if call is not None:
            yield view.hit(rule, call, "a stream is made and the caller's stream never waits for it")


def _joins(view: View, call: ast.Call) -> bool:
    """Whether the caller's stream, or the caller, waits for another: not where a stream of its own is what waits."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = view.names.resolve(call.func.value)
    own = bool(owner) and all(path.removesuffix("()") in _STREAMS for path in owner)
    return call.func.attr == "synchronize" or (call.func.attr in _JOINS and not own)


def _graphs(view: View) -> Iterator[Hit]:
    replay = next((node for node in walk(view.tree) if called_name(node) == "replay"), None)
    if replay is not None and not view.attributes & _COPIES:
        yield view.hit("graph_without_copy", replay, "replay() and no copy_() in the file")


def _limits(view: View) -> Iterator[Hit]:
    """One limit that is set once through ctypes: nobody gives it back."""
    found = []
    for node in walk(view.tree):
        if isinstance(node, ast.Call) and called_name(node) in _LIMITS and node.args:
            which = view.folder.fold(node.args[0])
            found += [node] if which is not None and which.value == PERSISTING_L2 else []
    if len(found) == 1:
        yield view.hit("device_limits", found[0])
