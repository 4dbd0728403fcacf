"""A task's computation as a fingerprint of its ATen graph: equal however modules, variables and files are named and
statements ordered. Captured on fake tensors, so that no weights are allocated; in worker processes, since sources run.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

    from stitchcuda.recipes.capture import Captured

_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "logical_and", "logical_or", "eq", "ne"})
_SECONDS = 120
"""For one source."""


@dataclass(frozen=True)
class GraphMarks:
    """SHA-256 digests of a graph, or why there is none."""

    whole: str = ""
    """With all shapes and constants."""
    shapeless: str = ""
    """With neither sizes nor integers: equal at other sizes."""
    problem: str = ""


def graph_marks(source: str) -> GraphMarks:
    """The marks of a task's source, in this process: what the source does on import happens here."""
    from stitchcuda.errors import StitchError
    from stitchcuda.recipes.capture import capture
    from stitchcuda.task.loader import check_source
    from stitchcuda.task.model import Target, Task

    try:
        check_source(source, "task")
        task = Task(name="leak", origin="leak", source=source, target=Target(kind="cpu", arch="native"))
        captured = capture(task)
    except (StitchError, TimeoutError, ArithmeticError, RecursionError) as error:
        return GraphMarks(problem=str(error)[:200])
    except Exception as error:  # whatever a source raises when it runs
        return GraphMarks(problem=f"{type(error).__name__}: {error}"[:200])
    return GraphMarks(whole=_fingerprint(captured, sizes=True), shapeless=_fingerprint(captured, sizes=False))


def marks_of(sources: Iterable[str], *, lanes: int) -> dict[str, GraphMarks]:
    """Marks by source; ``lanes`` worker processes, or this one where that is 0."""
    wanted = list(dict.fromkeys(sources))
    if not lanes:
        return {source: graph_marks(source) for source in wanted}
    found: dict[str, GraphMarks] = {}
    left = wanted
    while left:
        for source, marks in _batch(left, lanes):
            found[source] = marks
        left = [source for source in wanted if source not in found]
        if left:  # a source that took its process with it is the first that has no answer
            found[left[0]] = GraphMarks(problem="reading it ended its process")
            left = left[1:]
    return found


def _batch(sources: list[str], lanes: int) -> Iterator[tuple[str, GraphMarks]]:
    """Answers until all are there or a worker died."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(lanes, mp_context=context, initializer=_prepare) as pool:
        try:
            yield from zip(sources, pool.map(_timed, sources), strict=True)
        except BrokenProcessPool:
            return


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the sources, not of what is done here
    signal.signal(signal.SIGALRM, _late)


def _late(number: int, frame: object) -> None:
    raise TimeoutError(f"not read within {_SECONDS} s")


def _timed(source: str) -> GraphMarks:
    signal.alarm(_SECONDS)
    try:
        return graph_marks(source)
    finally:
        signal.alarm(0)


def _fingerprint(captured: Captured, *, sizes: bool) -> str:
    printer = _Printer(captured, sizes)
    output = next(node for node in captured.graph.nodes if node.op == "output")
    text = [printer.number(node) for node in output.all_input_nodes]
    return hashlib.sha256("\n".join([*printer.lines, *map(str, text)]).encode()).hexdigest()


class _Printer:
    """Prints a graph from its outputs back, nodes numbered as they are met, arguments of ``a + b`` in a fixed order."""

    def __init__(self, captured: Captured, sizes: bool) -> None:
        self.captured, self.sizes = captured, sizes
        self.lines: list[str] = []
        self.numbers: dict[fx.Node, int] = {}
        self.shapes: dict[fx.Node, str] = {}
        """What a node is, as far as one can tell without telling equal inputs apart."""
        for node in captured.graph.nodes:
            self.shapes[node] = hashlib.sha256(self._what(node, lambda n: self.shapes[n]).encode()).hexdigest()

    def number(self, root: fx.Node) -> int:
        """The number of a node; it and what it needs are printed first. No recursion: graphs are deep."""
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if node in self.numbers:
                waiting.pop()
                continue
            needed = [n for n in self._ordered(node) if n not in self.numbers]
            if needed:
                waiting += reversed(needed)
                continue
            self.lines.append(self._what(node, lambda n: str(self.numbers[n])))
            self.numbers[node] = len(self.numbers)
            waiting.pop()
        return self.numbers[root]

    def _ordered(self, node: fx.Node) -> list[fx.Node]:
        needed = list(node.all_input_nodes)
        return sorted(needed, key=lambda n: self.shapes[n]) if self._commutes(node) else needed

    def _commutes(self, node: fx.Node) -> bool:
        return self._operator(node) in _COMMUTATIVE and len(node.all_input_nodes) == 2 and not node.kwargs

    def _operator(self, node: fx.Node) -> str:
        from stitchcuda.recipes.normalise import op_name

        return op_name(node).rstrip("_") or str(getattr(node.target, "__name__", node.target))

    def _what(self, node: fx.Node, name: Any) -> str:
        value = self._value(node.meta.get("val"))
        if node.op == "placeholder":
            state = self.captured.states.get(node)
            if state is None:
                return f"input {value}"
            literal = "" if state.value is None or not self.sizes else str(state.value.flatten().tolist())
            return f"{'state' if state.kind != 'literal' else 'literal'} {value} {literal}"
        arguments = [self._argument(argument, name) for argument in node.args]
        if self._commutes(node):
            first = self._ordered(node)
            arguments = [*(name(n) for n in first), *arguments[2:]]
        words = [f"{key}={self._argument(node.kwargs[key], name)}" for key in sorted(node.kwargs) if key != "device"]
        return f"{self._operator(node)}({','.join([*arguments, *words])}) {value}"

    def _argument(self, argument: Any, name: Any) -> str:
        from torch import fx

        if isinstance(argument, fx.Node):
            return str(name(argument))
        if isinstance(argument, list | tuple):
            return "[" + ",".join(self._argument(part, name) for part in argument) + "]"
        if isinstance(argument, int) and not isinstance(argument, bool):
            return str(argument) if self.sizes else "n"
        return str(argument)

    def _value(self, value: Any) -> str:
        import torch

        if isinstance(value, torch.Tensor):
            shape = list(value.shape) if self.sizes else len(value.shape)
            return f"{value.dtype}{shape}"
        if isinstance(value, list | tuple):
            return "(" + ",".join(map(self._value, value)) + ")"
        return ""
