"""Where a tensor's elements lie in the tensor that views and copies were made from, found by moving their places."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from stitchcuda.recipes.normalise import VIEWS, op_name, tensor

COPIES = {"clone", "contiguous", "reshape", "_unsafe_view"}
"""Operators that may copy, and change no value."""
FOLLOWED = (VIEWS | COPIES) - {"dropout", "feature_dropout", "alpha_dropout", "as_strided"}
"""Operators through which the places of elements are followed."""
MAX_TRACED = 2**21
"""Elements of a tensor whose places are followed through views and copies."""


@dataclass(frozen=True)
class Operand:
    """A tensor [samples, heads, positions, size] as it lies in ``base``: strides in elements, size densely."""

    base: fx.Node
    offset: int
    sample: int
    head: int
    step: int


def place_of(node: fx.Node) -> Operand | None:
    """Where a tensor [samples, heads, positions, size] lies in the tensor that views and copies were made from."""
    base = node
    while op_name(base) in FOLLOWED and isinstance(base.args[0], fx.Node):
        before = tensor(base.args[0])
        steady = base.args[0].meta.get("segment", 0) == node.meta.get("segment", 0)
        if before is None or before.dtype != torch.float32 or len(base.all_input_nodes) > 1 or not steady:
            break
        base = base.args[0]
    for start in (base, node):
        operand = _traced(start, node)
        if operand is not None:
            return operand
    return None


def _traced(base: fx.Node, node: fx.Node) -> Operand | None:
    """Follow the elements' places by running the views and copies on a tensor of places."""
    value = tensor(base)
    if value is None or value.numel() > MAX_TRACED or value.storage_offset() % 4:
        return None
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(value.shape, value.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    if node is not base:
        places = run(node, base, places)
    if places.dim() != 4:
        return None
    origin = int(places.flatten()[0])
    strides = []
    for dim, size in enumerate(places.shape):
        step = int(places.select(dim, 1).flatten()[0]) - origin if size > 1 else 0
        strides.append(step)
    expected = torch.tensor(origin)
    for size, stride in zip(places.shape, strides, strict=True):
        expected = expected.unsqueeze(-1) + torch.arange(size) * stride
    sample, head, step, dense = strides
    aligned = all(number % 4 == 0 for number in (origin, sample, head, step))
    if dense != 1 or not aligned or not torch.equal(expected, places):
        return None
    return Operand(base, origin, sample, head, step)


def run(node: fx.Node, base: fx.Node, places: torch.Tensor) -> torch.Tensor:
    """The value of ``node`` when ``base`` has the value ``places``; between them are only views and copies."""
    chain = []
    here = node
    while here is not base:
        chain.append(here)
        before = here.args[0]
        assert isinstance(before, fx.Node)
        here = before
    value = places
    for step in reversed(chain):
        # A copy in between may have made a view possible that the original does not allow.
        if op_name(step) in ("view", "_unsafe_view"):
            value = value.reshape(step.args[1])  # type: ignore[arg-type]
        elif op_name(step) in ("to", "type_as"):
            continue
        else:
            value = step.target(value, *step.args[1:], **step.kwargs)  # type: ignore[operator]
    return value
