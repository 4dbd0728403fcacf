"""Losses and reductions over all elements, as terms that are added up (or compared) and what is made of the totals.

A term belongs to an element, or to a row where a loss reduces each row first. Which operators around it join the
kernel is ``full_group``'s work; loops and memory are ``full_cuda``'s and ``full_cpu``'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.rowwise import cosine, distance
from stitchcuda.recipes.scalar import CTYPES, Expressions, Reduction, Value, apply, constant

MEAN, SUM = 1, 2
"""ATen's codes of reductions."""

PLAIN = {"mean", "sum", "amax", "amin", "max", "min", "linalg_vector_norm", "norm", "linalg_norm"}
"""Reductions that eager does in one launch."""
ELEMENTS = {
    "mse_loss": (4, 2),
    "l1_loss": (6, 3),
    "smooth_l1_loss": (4, 2),
    "huber_loss": (4, 2),
    "kl_div": (9, 4),
    "binary_cross_entropy_with_logits": (10, 5),
    "soft_margin_loss": (10, 5),
    "hinge_embedding_loss": (14, 7),
    "margin_ranking_loss": (10, 5),
    "poisson_nll_loss": (8, 4),
}
"""Losses of elements: the tensors that eager moves for one (reads and writes of the inputs' size), and its launches."""
ROWS = {"triplet_margin_loss": (12, 9), "cosine_embedding_loss": (12, 16)}
"""Losses of rows, likewise."""

FORMULAS: dict[str, tuple[tuple[str, ...], str, int]] = {
    "mse_loss": (("self", "target"), "(({0} - {1}) * ({0} - {1}))", 2),
    "l1_loss": (("self", "target"), "({0} - {1} < {T}(0) ? {1} - {0} : {0} - {1})", 2),
    "soft_margin_loss": (("self", "target"), "own::log1p(own::exp(-{1} * {0}))", 40),
}
"""Operands, the term, and its weight; losses with more to them are functions."""


@dataclass(frozen=True)
class Reach:
    """What a reduction runs over: a space, whose last ``inner`` dimensions are reduced to a value per row first."""

    shape: tuple[int, ...]
    inner: int | None
    operands: tuple[fx.Node, ...]
    """Tensors of the space (or broadcast to it)."""
    per_row: tuple[fx.Node, ...] = ()
    """Tensors with a value per row."""


Term = tuple[Reduction, Value]


def arguments(node: fx.Node) -> dict[str, Any]:
    """An ATen call's arguments by their names in its schema, defaults included."""
    declared = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((argument.name for argument in declared), node.args, strict=False))
    defaults = {a.name: a.default_value for a in declared if a.has_default_value()}
    return defaults | given | dict(node.kwargs)


def reach(node: fx.Node) -> Reach | None:
    """What ``node`` reduces to one value; None for other operators and for options that have no formula here."""
    name, out = op_name(node), tensor(node)
    if name not in PLAIN and name not in ELEMENTS and name not in ROWS:
        return None
    if out is None or out.numel() != 1 or not out.dtype.is_floating_point or out.dtype not in CTYPES:
        return None
    named = arguments(node)
    if name in PLAIN:
        return _plain(node, named)
    if named["reduction"] not in (MEAN, SUM) or not _has_formula(name, named):
        return None
    values = {each: value for each in node.all_input_nodes if (value := tensor(each)) is not None}
    target = named.get("target")
    if any(v.dtype not in CTYPES or (v.dtype != out.dtype and each is not target) for each, v in values.items()):
        return None
    if name in ELEMENTS:
        shape = tuple(torch.broadcast_shapes(*(value.shape for value in values.values())))  # type: ignore[no-untyped-call]
        return Reach(shape, None, tuple(values)) if math.prod(shape) > 1 else None
    rows = tuple(each for each in values if each is not target)
    (shape, *others) = {tuple(values[each].shape) for each in rows}
    if others or len(shape) != 2 or shape[1] < 2:
        return None
    labels = tuple(each for each in values if each is target)
    if any(tuple(values[each].shape) != shape[:1] for each in labels):
        return None
    return Reach(shape, 1, rows, labels)


def _plain(node: fx.Node, named: dict[str, Any]) -> Reach | None:
    source, out = node.args[0], tensor(node)
    before = tensor(source)
    assert out is not None
    if not isinstance(source, fx.Node) or before is None or before.dtype != out.dtype or before.numel() < 2:
        return None
    if op_name(node) in ("max", "min") and len(named) != 1:
        return None
    if "norm" in op_name(node) and _order(node) not in (1, 2, math.inf):
        return None
    return Reach(tuple(before.shape), None, (source,))


def _order(node: fx.Node) -> float:
    """Which vector norm it is; NaN where it is another one."""
    named = arguments(node)
    given = named.get("ord", named.get("p"))
    if op_name(node) == "linalg_norm":
        before = tensor(node.args[0])
        plain = given is None or (given == 2 and before is not None and before.dim() == 1)
        return 2.0 if plain else math.nan
    return float(given) if isinstance(given, int | float) else 2.0 if given is None else math.nan


def _has_formula(name: str, named: dict[str, Any]) -> bool:
    match name:
        case "binary_cross_entropy_with_logits":
            return named.get("weight") is None and named.get("pos_weight") is None
        case "poisson_nll_loss":
            return not named["full"]
        case "triplet_margin_loss":
            return named["p"] in (1, 2)
        case "smooth_l1_loss":
            return bool(named["beta"] > 0)
    return True


def terms(node: fx.Node, write: Expressions, per_row: Expressions) -> list[Term]:
    """What is reduced over everything for a node that ``reach`` accepts, and how.

    ``write`` gives the values of elements, ``per_row`` those of tensors with a value per row.
    """
    out = tensor(node)
    assert out is not None
    name, ctype = op_name(node), CTYPES[out.dtype]
    if name in PLAIN:
        return _plain_terms(node, write.operand(node.args[0], ctype))
    if name in FORMULAS:
        names, text, weight = FORMULAS[name]
        named = arguments(node)
        return [("sum", apply(text, ctype, *(write.operand(named[each], ctype) for each in names), weight=weight))]
    return [("sum", FUNCTIONS[name](_Operands(node, write, per_row, ctype)))]


def _plain_terms(node: fx.Node, x: Value) -> list[Term]:
    name = op_name(node)
    kind: Reduction = "sum"
    if "norm" in name:
        order = _order(node)
        if order == 2:
            return [("sum", apply("({0} * {0})", x.ctype, x))]
        x = apply("({0} < {T}(0) ? -{0} : {0})", x.ctype, x)
        kind = "sum" if order == 1 else "max"
    elif name not in ("mean", "sum"):
        kind = "max" if name in ("amax", "max") else "min"
    if kind == "sum":
        return [("sum", x)]
    # Comparing passes over NaN, which must come out.
    return [(kind, x), ("sum", apply("({0} != {0} ? {T}(1) : {T}(0))", x.ctype, x))]


def finish(node: fx.Node, totals: list[Value], count: int) -> Value:
    """The node's value from its terms' totals; ``count`` terms were reduced."""
    name, ctype = op_name(node), totals[0].ctype
    if len(totals) == 2:
        return apply("({1} > {T}(0) ? {T}(NAN) : {0})", ctype, *totals)
    if name in PLAIN:
        if "norm" in name and _order(node) == 2:
            return apply("own::sqrt({0})", ctype, *totals, weight=8)
        return apply("({0} / {1})", ctype, *totals, constant(count, ctype)) if name == "mean" else totals[0]
    mean = arguments(node)["reduction"] == MEAN
    return apply("({0} / {1})", ctype, *totals, constant(count, ctype)) if mean else totals[0]


@dataclass(frozen=True)
class _Operands:
    """Arguments of a loss as values."""

    node: fx.Node
    write: Expressions
    per_row: Expressions
    ctype: str

    def element(self, name: str) -> Value:
        return self.write.operand(arguments(self.node)[name], self.ctype)

    def row(self, name: str) -> Value:
        return self.per_row.operand(arguments(self.node)[name], self.ctype)

    def number(self, name: str) -> Value:
        return constant(arguments(self.node)[name], self.ctype)

    def plain(self, name: str) -> Any:
        return arguments(self.node)[name]


def _absolute_difference(of: _Operands) -> Value:
    return apply(FORMULAS["l1_loss"][1], of.ctype, of.element("self"), of.element("target"), weight=2)


def _smooth_l1(of: _Operands) -> Value:
    text = "({0} < {1} ? {T}(0.5) * {0} * {0} / {1} : {0} - {T}(0.5) * {1})"
    return apply(text, of.ctype, _absolute_difference(of), of.number("beta"), weight=9)


def _huber(of: _Operands) -> Value:
    text = "({0} < {1} ? {T}(0.5) * {0} * {0} : {1} * ({0} - {T}(0.5) * {1}))"
    return apply(text, of.ctype, _absolute_difference(of), of.number("delta"), weight=5)


def _kl_div(of: _Operands) -> Value:
    x, y = of.element("self"), of.element("target")
    if of.plain("log_target"):
        return apply("(own::exp({1}) * ({1} - {0}))", of.ctype, x, y, weight=14)
    own = apply("({0} == {T}(0) ? {T}(0) : {0} * own::log({0}))", of.ctype, y, weight=20)
    return apply("({2} - {1} * {0})", of.ctype, x, y, own, weight=2)


def _logits(of: _Operands) -> Value:
    x, y = of.element("self"), of.element("target")
    tail = apply("own::log1p(own::exp({0} < {T}(0) ? {0} : -{0}))", of.ctype, x, weight=36)
    return apply("(({T}(1) - {1}) * {0} - (({0} < {T}(0) ? {0} : {T}(0)) - {2}))", of.ctype, x, y, tail, weight=5)


def _hinge_embedding(of: _Operands) -> Value:
    x, y, margin = of.element("self"), of.element("target"), of.number("margin")
    far = apply("({1} - {0} < {T}(0) ? {T}(0) : {1} - {0})", of.ctype, x, margin, weight=2)
    return apply("(({1} != {T}(1) ? {2} : {T}(0)) + ({1} != {T}(-1) ? {0} : {T}(0)))", of.ctype, x, y, far, weight=5)


def _margin_ranking(of: _Operands) -> Value:
    names = ("input1", "input2", "target")
    raw = apply("(-{2} * ({0} - {1}) + {3})", of.ctype, *(of.element(n) for n in names), of.number("margin"), weight=3)
    return apply("({0} < {T}(0) ? {T}(0) : {0})", of.ctype, raw)


def _poisson(of: _Operands) -> Value:
    x, y = of.element("input"), of.element("target")
    if of.plain("log_input"):
        return apply("(own::exp({0}) - {1} * {0})", of.ctype, x, y, weight=14)
    return apply("({0} - {1} * own::log({0} + {2}))", of.ctype, x, y, of.number("eps"), weight=20)


def _triplet(of: _Operands) -> Value:
    anchor, positive, negative = (of.element(name) for name in ("anchor", "positive", "negative"))
    order, eps = of.plain("p"), of.number("eps")
    near, far = distance(anchor, positive, eps, order), distance(anchor, negative, eps, order)
    if of.plain("swap"):
        other = distance(positive, negative, eps, order)
        far = apply("({0} < {1} || {0} != {0} ? {0} : {1})", of.ctype, far, other)
    raw = apply("({2} + {0} - {1})", of.ctype, near, far, of.number("margin"))
    return apply("({0} < {T}(0) ? {T}(0) : {0})", of.ctype, raw)


def _cosine_embedding(of: _Operands) -> Value:
    x, y, label = of.element("input1"), of.element("input2"), of.row("target")
    angle = cosine(x, y, "own::sqrt(({1} + {T}(1e-12)) * ({2} + {T}(1e-12)))")
    apart = apply("({0} - {1} < {T}(0) ? {T}(0) : {0} - {1})", of.ctype, angle, of.number("margin"), weight=2)
    text = "(({1} == {T}(1) ? {T}(1) - {0} : {T}(0)) + ({1} == {T}(-1) ? {2} : {T}(0)))"
    return apply(text, of.ctype, angle, label, apart, weight=5)


FUNCTIONS: dict[str, Callable[[_Operands], Value]] = {
    "smooth_l1_loss": _smooth_l1,
    "huber_loss": _huber,
    "kl_div": _kl_div,
    "binary_cross_entropy_with_logits": _logits,
    "hinge_embedding_loss": _hinge_embedding,
    "margin_ranking_loss": _margin_ranking,
    "poisson_nll_loss": _poisson,
    "triplet_margin_loss": _triplet,
    "cosine_embedding_loss": _cosine_embedding,
}
