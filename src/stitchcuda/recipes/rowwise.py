"""Reductions over trailing dimensions (softmax, LayerNorm, RMSNorm, mean, ...) as values of a row kernel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.scalar import CTYPES, Expressions, Reduction, Value, apply, constant

NORMALISING = {"softmax", "log_softmax", "_softmax", "_log_softmax", "layer_norm", "rms_norm"}
"""The result has the input's shape."""
REDUCING = {
    "mean",
    "sum",
    "amax",
    "amin",
    "var",
    "std",
    "linalg_vector_norm",
    "norm",
    "logsumexp",
    "adaptive_avg_pool2d",
    "cosine_similarity",
    "pairwise_distance",
}
"""The result has one element per row."""
EAGER_PASSES = {
    "rms_norm": 4,
    "linalg_vector_norm": 1,
    "logsumexp": 4,
    "var": 1,
    "std": 1,
    "cosine_similarity": 5,
    "pairwise_distance": 3,
}
"""How often eager reads the input; 1 for the others."""


def trailing(node: fx.Node) -> int | None:
    """How many trailing dimensions of its input the node reduces over; None when it is no such operator."""
    name = op_name(node)
    if name not in NORMALISING | REDUCING or not node.args:
        return None
    value, out = tensor(node.args[0]), tensor(node)
    if (
        value is None
        or out is None
        or not value.dtype.is_floating_point
        or out.dtype != value.dtype
        or value.dim() == 0
    ):
        return None
    if value.dtype not in CTYPES or value.numel() == 0:
        return None
    rank = value.dim()
    dims: Any
    match name:
        case "softmax" | "log_softmax" | "_softmax" | "_log_softmax":
            dims = [node.args[1]]
        case "layer_norm" | "rms_norm":
            shape = node.args[1]
            assert isinstance(shape, list | tuple)
            return len(shape)
        case "adaptive_avg_pool2d":
            return 2 if list(node.args[1]) == [1, 1] and rank == 4 else None  # type: ignore[arg-type]
        case "linalg_vector_norm":
            if _argument(node, 1, "ord", 2) != 2:
                return None
            dims = _argument(node, 2, "dim", None)
        case "norm":
            if _argument(node, 1, "p", 2) != 2:
                return None
            dims = _argument(node, 2, "dim", None)
        case "cosine_similarity" | "pairwise_distance":
            other = tensor(node.args[1])
            if other is None or other.shape != value.shape or other.dtype != value.dtype:
                return None
            if name == "pairwise_distance" and _argument(node, 2, "p", 2) not in (1, 2):
                return None
            dims = [_argument(node, 2, "dim", 1) if name == "cosine_similarity" else -1]
        case _:
            dims = _argument(node, 1, "dim", None)
    if dims is None or dims == []:
        dims = list(range(rank))
    dims = sorted(dim % rank for dim in (dims if isinstance(dims, list | tuple) else [dims]))
    count = len(dims)
    return count if dims == list(range(rank - count, rank)) else None


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    return node.kwargs.get(name, node.args[position] if len(node.args) > position else default)


def reduce(kind: Reduction, value: Value) -> Value:
    """The reduction of an element value over its row."""
    return Value(value.ctype, args=(value,), reduction=kind, weight=1)


def rowwise(node: fx.Node, write: Expressions, length: int) -> Value:
    """The value of a node that ``trailing`` accepts; ``length`` is the number of elements of a row."""
    before = tensor(node.args[0])
    assert before is not None
    ctype = CTYPES[before.dtype]
    x = write.operand(node.args[0], ctype)
    size = constant(length, ctype)
    match op_name(node):
        case "softmax" | "_softmax":
            e = apply("own::exp({0} - {1})", ctype, x, reduce("max", x), weight=12)
            return apply("({0} / {1})", ctype, e, reduce("sum", e), weight=6)
        case "log_softmax" | "_log_softmax":
            d = apply("({0} - {1})", ctype, x, reduce("max", x))
            total = reduce("sum", apply("own::exp({0})", ctype, d, weight=12))
            return apply("({0} - {1})", ctype, d, apply("own::log({0})", ctype, total, weight=18))
        case "logsumexp":
            top = apply("(({0} - {0}) == {T}(0) ? {0} : {T}(0))", ctype, reduce("max", x))
            total = reduce("sum", apply("own::exp({0} - {1})", ctype, x, top, weight=12))
            return apply("(own::log({0}) + {1})", ctype, total, top, weight=18)
        case "layer_norm":
            mean = apply("({0} / {1})", ctype, reduce("sum", x), size)
            d = apply("({0} - {1})", ctype, x, mean)
            square = reduce("sum", apply("({0} * {0})", ctype, d))
            eps = constant(_argument(node, 4, "eps", 1e-5), ctype)
            scale = apply("({T}(1) / own::sqrt({0} / {1} + {2}))", ctype, square, size, eps, weight=12)
            return _affine(node, write, ctype, apply("({0} * {1})", ctype, d, scale), 2, 3)
        case "rms_norm":
            eps = _argument(node, 3, "eps", None)
            epsilon = constant(torch.finfo(before.dtype).eps if eps is None else eps, ctype)
            square = reduce("sum", apply("({0} * {0})", ctype, x))
            scale = apply("({T}(1) / own::sqrt({0} / {1} + {2}))", ctype, square, size, epsilon, weight=12)
            return _affine(node, write, ctype, apply("({0} * {1})", ctype, x, scale), 2, None)
        case "mean" | "adaptive_avg_pool2d":
            return apply("({0} / {1})", ctype, reduce("sum", x), size)
        case "sum":
            return reduce("sum", x)
        case "amax" | "amin":
            kind: Reduction = "max" if op_name(node) == "amax" else "min"
            odd = reduce("sum", apply("({0} != {0} ? {T}(1) : {T}(0))", ctype, x))
            return apply("({1} > {T}(0) ? {T}(NAN) : {0})", ctype, reduce(kind, x), odd)
        case "linalg_vector_norm" | "norm":
            return apply("own::sqrt({0})", ctype, reduce("sum", apply("({0} * {0})", ctype, x)), weight=8)
        case "cosine_similarity":
            eps = constant(_argument(node, 3, "eps", 1e-8), ctype)
            norms = "({1} > {3} * {3} ? own::sqrt({1}) : {3}) * ({2} > {3} * {3} ? own::sqrt({2}) : {3})"
            return cosine(x, write.operand(node.args[1], ctype), norms, eps)
        case "pairwise_distance":
            eps = constant(_argument(node, 3, "eps", 1e-6), ctype)
            return distance(x, write.operand(node.args[1], ctype), eps, _argument(node, 2, "p", 2))
        case "var" | "std":
            mean = apply("({0} / {1})", ctype, reduce("sum", x), size)
            d = apply("({0} - {1})", ctype, x, mean)
            square = reduce("sum", apply("({0} * {0})", ctype, d))
            divisor = constant(max(length - _correction(node), 0), ctype)
            variance = apply("({0} / {1})", ctype, square, divisor)
            return apply("own::sqrt({0})", ctype, variance) if op_name(node) == "std" else variance
    raise AssertionError(f"{node.target} is not a rowwise operator")


def cosine(x: Value, y: Value, norms: str, *more: Value) -> Value:
    """The cosine between two rows; ``norms`` is the divisor from both rows' sums of squares, {1} and {2}."""
    products = [reduce("sum", apply("({0} * {1})", x.ctype, *pair)) for pair in ((x, y), (x, x), (y, y))]
    return apply(f"({{0}} / ({norms}))", x.ctype, *products, *more, weight=30)


def distance(x: Value, y: Value, eps: Value, order: float) -> Value:
    """The distance between two rows in the norm of order 1 or 2; ``eps`` is added to each difference."""
    d = apply("({0} - {1} + {2})", x.ctype, x, y, eps, weight=2)
    if order == 1:
        return reduce("sum", apply("({0} < {T}(0) ? -{0} : {0})", x.ctype, d))
    return apply("own::sqrt({0})", x.ctype, reduce("sum", apply("({0} * {0})", x.ctype, d)), weight=8)


def _correction(node: fx.Node) -> float:
    given = node.kwargs.get("correction", node.kwargs.get("unbiased"))
    if given is None and len(node.args) > 2 and isinstance(node.args[2], bool):
        given = node.args[2]
    return 1.0 if given is None else float(given)  # type: ignore[arg-type]


def _affine(node: fx.Node, write: Expressions, ctype: str, value: Value, weight: int, bias: int | None) -> Value:
    gamma = _argument(node, weight, "weight", None)
    beta = _argument(node, bias, "bias", None) if bias is not None else None
    if gamma is not None:
        value = apply("({0} * {1})", ctype, value, write.operand(gamma, ctype))
    if beta is not None:
        value = apply("({0} + {1})", ctype, value, write.operand(beta, ctype))
    return value


def keeps_dims(node: fx.Node) -> bool:
    """A reducing node's result keeps the reduced dimensions as size 1."""
    value, out = tensor(node.args[0]), tensor(node)
    return value is not None and out is not None and value.dim() == out.dim()


def eager_reads(node: fx.Node) -> int:
    """Passes over the input that eager makes."""
    return EAGER_PASSES.get(op_name(node), 1)


def row_length(shape: tuple[int, ...], count: int) -> int:
    """Elements of one row when the last ``count`` dimensions are reduced."""
    return math.prod(shape[-count:])
