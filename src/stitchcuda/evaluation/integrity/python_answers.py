"""Static rules about where an answer comes from: rejected is a way through ``forward`` on which the answer is not made
from what the call was given.

A shortcut that the inputs decide (an empty batch, rows that are all equal) is left alone, and so is what a memory of
sizes, a workspace or a CUDA graph looks like. How the ways are followed is in ``python_paths``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stitchcuda.evaluation.integrity.python_paths import Paths
from stitchcuda.evaluation.integrity.python_view import Function, View, called_name, is_name, place
from stitchcuda.evaluation.integrity.python_ways import (
    BEAT,
    CHOSEN,
    CONSTANT,
    COUNT,
    EARLIER,
    FACT,
    FRESH,
    HIDDEN,
    INPUT,
    NARROW,
    Answer,
    Sources,
)
from stitchcuda.evaluation.integrity.rules import Hit
from stitchcuda.evaluation.integrity.trees import walk
from stitchcuda.evaluation.integrity.words import words
from stitchcuda.task.model import Precision

_REDUCTIONS = words("max min amax amin aminmax mean var std sum norm item numel abs median quantile")
"""What a scale or a statistic is made with: those are refreshed now and then by design."""


_TIMERS = words("elapsed_time perf_counter perf_counter_ns do_bench")
"""Whoever measures tries settings in turn."""


def answer_hits(view: View, precision: Precision) -> Iterator[Hit]:
    """Hits in ``ModelNew.forward``."""
    for forward in view.forwards():
        paths = Paths(view, forward)
        if not paths.given:
            continue
        counted = frozenset() if view.attributes & _TIMERS else _counts(forward, paths)
        for pick in _picked(forward, counted):
            yield view.hit("counts_calls", pick, f"{ast.unparse(pick)}: a count of calls picks one of two")
        if view.graphs:
            # What a graph returns is filled behind the text's back, from what was copied in.
            # A forward that never looks at them answers to shapes alone, or is given them elsewhere: by a hook.
            reads = any(answer.read for answer in paths.answers)
            for answer in paths.answers:
                whole: Sources = frozenset().union(*answer.outputs)
                if whole == {CONSTANT} or not reads:
                    continue
                if not answer.read and not (answer.asked | whole) & {FACT, INPUT}:
                    yield view.hit("stale_graph", answer.node, "nothing of the inputs is read on this way")
            continue
        for answer in paths.answers:
            yield from _answer(view, paths, answer, precision)
        for node in paths.cut:
            yield view.hit("counts_calls", node, f"{ast.unparse(node)}: a count of calls says how much is read")


def _counts(forward: Function, paths: Paths) -> frozenset[str]:
    """Counts of calls, not of what lies in the inputs: no item of a local list, none that a variable picks."""
    other = {
        place(node)
        for node in walk(forward)
        if isinstance(node, ast.Subscript)
        and (not isinstance(node.slice, ast.Constant) or place(node.value) in paths.local)
    }
    return frozenset(name for name in paths.counters if name not in other)


def _picked(forward: Function, counters: frozenset[str]) -> Iterator[ast.IfExp]:
    """``a if calls < n else b`` of two numbers, or two of torch's functions: one while somebody is likely to check,
    the other afterwards. What a program has measured is no constant, turns are taken by a remainder or by a count that
    starts anew, and names for a profiler compute nothing."""
    anew = {
        place(target)
        for node in walk(forward)
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.BinOp)
        for target in node.targets
    }
    for node in walk(forward):
        if not isinstance(node, ast.IfExp) or not isinstance(node.test, ast.Compare):
            continue
        sides = [node.test.left, *node.test.comparators]
        counted = any(place(side) in counters - anew for side in sides)
        bound = any(isinstance(side, ast.Constant) for side in sides)
        ordered = all(isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for operator in node.test.ops)
        if counted and bound and ordered and all(_number(part) or _of_torch(part) for part in (node.body, node.orelse)):
            yield node


def _number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _of_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and is_name(node.value, "torch")


def _answer(view: View, paths: Paths, answer: Answer, precision: Precision) -> Iterator[Hit]:
    whole: Sources = frozenset().union(*answer.outputs)
    earlier = sorted(
        token.removeprefix(EARLIER)
        for token in whole
        if token.startswith(EARLIER) and token.removeprefix(EARLIER) in paths.filled
    )
    tables = sorted(token.removeprefix(CHOSEN) for token in whole if token.startswith(CHOSEN))
    hidden = answer.asked & HIDDEN
    if INPUT not in whole:
        if earlier and not paths.compares:
            yield view.hit("earlier_answer", answer.node, f"{earlier[0]} holds what an earlier call computed")
        elif tables and all(_idle(token, tables) for token in whole):
            yield view.hit("earlier_answer", answer.node, f"{tables[0]} is a table, and the inputs pick from it")
        elif all(token.startswith(FRESH) for token in whole) and whole and not answer.asked & {FACT, INPUT}:
            yield view.hit("empty_answer", answer.node, "nothing writes what is returned")
        elif CONSTANT in whole <= {CONSTANT, FACT} and hidden and not answer.asked & {FACT, INPUT}:
            yield view.hit("empty_answer", answer.node, "a constant, from a certain call on")
    elif COUNT in hidden:
        plain = [name for name in earlier if name not in paths.containers]
        activations = [name for name in plain if not all(map(_reduces, paths.filled[name]))]
        if activations and BEAT not in hidden:
            yield view.hit("counts_calls", answer.node, f"from a certain call on {activations[0]} is an earlier call's")
        exact = any(NARROW not in frozenset().union(*other.outputs) for other in paths.answers)
        if precision == "fp32" and NARROW in whole and exact:
            yield view.hit("counts_calls", answer.node, "from a certain call on, sixteen bits are enough")


def _idle(token: str, tables: list[str]) -> bool:
    """Whether a source brings nothing but an entry of a table."""
    return token in (CONSTANT, FACT) or token.removeprefix(CHOSEN).removeprefix(EARLIER) in tables


def _reduces(value: ast.AST) -> bool:
    """Whether a value is a statistic of the inputs."""
    return any(called_name(part) in _REDUCTIONS for part in walk(value))
