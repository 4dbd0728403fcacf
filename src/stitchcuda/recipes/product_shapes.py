"""Which products of two tensors a graph has, as [batches, m, k] by [batches, k, n] with one step along each dimension.

Reads mm, bmm, matmul and einsum; for ``recipes.split_matmul``, which decides what to do with them. Linear layers and
products with a bias are not read here.
"""

from __future__ import annotations

import math
import string
from dataclasses import dataclass

import torch
from torch import fx

from stitchcuda.recipes.normalise import op_name, tensor

TURNS = {
    "numpy_T", "t", "mT", "transpose", "swapaxes", "permute", "movedim", "unsqueeze", "squeeze", "view", "reshape",
}  # fmt: skip
"""Views of all of a tensor, under which its memory may be read as it lies."""


@dataclass(frozen=True)
class Side:
    """An operand: ``node`` is contiguous, and read with these steps, in elements."""

    node: fx.Node
    batches: int
    """1 where all batches share the matrix; ``batch_step`` is 0 then."""
    batch_step: int
    row_step: int
    """Between rows of the left operand, or columns of the right one."""
    k_step: int


@dataclass(frozen=True)
class Product:
    """``node`` is, in memory, the contiguous [batches, m, n] of ``a`` [batches, m, k] by ``b`` [batches, k, n]."""

    node: fx.Node
    a: Side
    b: Side
    batches: int
    m: int
    n: int
    k: int


def product_of(node: fx.Node) -> Product | None:
    """The float32 product at a node; None if it is none, or lies in memory in a way that single steps do not walk."""
    labels = _labels(node)
    if labels is None:
        return None
    first, second, out, left, right = labels
    a, b, value = tensor(left), tensor(right), tensor(node)
    if a is None or b is None or value is None or not value.is_contiguous():
        return None
    if any(t.dtype != torch.float32 for t in (a, b, value)) or value.numel() == 0:
        return None
    sizes = dict(zip(first, a.shape, strict=True)) | dict(zip(second, b.shape, strict=True))
    if any(
        sizes[name] != size for name, size in zip(first + second + out, (*a.shape, *b.shape, *value.shape), strict=True)
    ):
        return None
    # As few leading dimensions as possible are batches.
    for prefix in range(len(out) - 1):
        for one, two, x, y in ((first, second, left, right), (second, first, right, left)):
            rows = "".join(name for name in out[prefix:] if name in one and name not in two)
            columns = "".join(name for name in out[prefix:] if name in two and name not in one)
            if rows and columns and out[prefix:] == rows + columns:
                return _product(node, (x, one, rows), (y, two, columns), out[:prefix], sizes)
    return None


def _product(
    node: fx.Node,
    left: tuple[fx.Node, str, str],
    right: tuple[fx.Node, str, str],
    batch: str,
    sizes: dict[str, int],
) -> Product | None:
    summed = "".join(name for name in left[1] if name not in left[2] + batch)
    if set(summed) != set(right[1]) - set(right[2] + batch) or not summed:
        return None
    a, b = (_side(x, names, rows, batch, summed, sizes) for x, names, rows in (left, right))
    if a is None or b is None or max(a.batches, b.batches) != math.prod(sizes[name] for name in batch):
        return None
    m, n, k = (math.prod(sizes[name] for name in group) for group in (left[2], right[2], summed))
    return Product(node, a, b, max(a.batches, b.batches), m, n, k)


def _labels(node: fx.Node) -> tuple[str, str, str, fx.Node, fx.Node] | None:
    """Names of the dimensions of both operands and of the result, as einsum has them, and the operands."""
    kind = op_name(node)
    if kind not in ("mm", "bmm", "matmul", "einsum") or node.kwargs or len(node.args) != 2:
        return None
    if kind == "einsum":
        equation, operands = node.args
        if not isinstance(equation, str) or not isinstance(operands, list | tuple) or len(operands) != 2:
            return None
        left, right = operands
        inputs, arrow, out = equation.replace(" ", "").partition("->")
        first, comma, second = inputs.partition(",")
        distinct = all(len(set(names)) == len(names) for names in (first, second, out))
        if not arrow or not comma or not distinct or not (first + second + out).isalpha():
            return None
    else:
        left, right = node.args
        a, b = tensor(left), tensor(right)
        if a is None or b is None or a.dim() < 2 or b.dim() < 2:
            return None
        batch = string.ascii_lowercase[: max(a.dim(), b.dim()) - 2]
        first, second = batch[len(batch) - a.dim() + 2 :] + "MK", batch[len(batch) - b.dim() + 2 :] + "KN"
        out = batch + "MN"
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return None
    value, a, b = tensor(node), tensor(left), tensor(right)
    ranks = [t.dim() if t is not None else -1 for t in (a, b, value)]
    if ranks != [len(first), len(second), len(out)] or not set(out) <= set(first + second):
        return None
    return first, second, out, left, right


def _side(node: fx.Node, names: str, rows: str, batch: str, summed: str, sizes: dict[str, int]) -> Side | None:
    value = tensor(node)
    assert value is not None
    base = _as_it_lies(node)
    if base is None:
        return None
    step_of = dict(zip(names, value.stride(), strict=True))
    own_batch = "".join(name for name in batch if name in step_of)
    steps = [_step(group, step_of, sizes) for group in (own_batch if own_batch == batch else "", rows, summed)]
    if any(step is None for step in steps) or own_batch not in ("", batch) or 1 not in steps[1:]:
        return None
    batches = math.prod(sizes[name] for name in own_batch)
    batch_step, row_step, k_step = (int(step or 0) for step in steps)
    return Side(base, batches, batch_step if batches > 1 else 0, row_step, k_step)


def _step(group: str, step_of: dict[str, int], sizes: dict[str, int]) -> int | None:
    """The step of dimensions that are walked as one; None if no single one serves."""
    found = 0
    reach = None
    for name in reversed(group):
        if sizes[name] == 1:
            continue
        if reach is None:
            found = step_of[name]
        elif step_of[name] != reach:
            return None
        reach = step_of[name] * sizes[name]
    return found


def _as_it_lies(node: fx.Node) -> fx.Node | None:
    """The contiguous tensor whose memory a node is, all of it."""
    value = tensor(node)
    while value is not None and not value.is_contiguous():
        before = node.args[0] if op_name(node) in TURNS and node.args else None
        earlier = tensor(before)
        if not isinstance(before, fx.Node) or earlier is None or earlier.numel() != value.numel():
            return None
        if earlier.storage_offset() != value.storage_offset():
            return None
        node, value = before, earlier
    return node if value is not None else None
