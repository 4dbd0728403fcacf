"""Recipe: maxima and max pooling over rows as operators that a row kernel can hold."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import fx

from stitchcuda.recipes.base import Gain, Recipe, Rewriter
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.rowwise import trailing
from stitchcuda.recipes.scalar import is_pointwise

aten = torch.ops.aten

WIDEST = 4
"""Elements of a pooling window that are written as maxima of slices."""
EXTREMES = {"max": aten.amax.default, "min": aten.amin.default}


class PlainMaxima(Recipe):
    """Applies to ``max(x, dim)`` whose indices nobody reads, and to ``max_pool1d`` in front of a sum or mean of rows.

    Indices are neither found nor written then. The pool becomes a maximum of strided slices, which joins the reduction
    behind it. A lone maximum is left alone.
    """

    name: ClassVar[str] = "plain_maxima"
    title: ClassVar[str] = "Take maxima without their indices, and pool rows where they are summed"
    order: ClassVar[int] = 44

    def apply(self, rewriter: Rewriter) -> None:
        """Rewrite every such operator."""
        for node in list(rewriter.graph.nodes):
            if op_name(node) in EXTREMES and node.target in (aten.max.dim, aten.min.dim):
                self._values_only(rewriter, node)
            elif op_name(node) == "max_pool1d":
                self._pooled(rewriter, node)

    def _values_only(self, rewriter: Rewriter, node: fx.Node) -> None:
        source = node.args[0]
        before = tensor(source)
        if node.kwargs or before is None or not before.dtype.is_floating_point or before.dim() == 0:
            return
        if len(node.users) != 1:
            return
        item = next(iter(node.users))
        if len(item.args) != 2 or item.args[1] != 0 or tensor(item) is None:
            return
        near = [other for other in (source, *item.users) if isinstance(other, fx.Node)]
        # On its own this is no kernel.
        if not rewriter.launchers and not any(is_pointwise(other, rewriter.target) for other in near):
            return
        dim, keep = node.args[1], bool(node.args[2]) if len(node.args) > 2 else False
        values = rewriter.aten(EXTREMES[op_name(node)], source, [dim], keep, before=node)
        indices = 8 * values.meta["val"].numel()
        rewriter.replace(item, values)
        rewriter.graph.erase_node(node)
        seconds = indices / rewriter.bandwidth
        rewriter.add_gain(Gain(self.name, "maxima without their indices", seconds, 0, indices, (op_name(values),)))

    def _pooled(self, rewriter: Rewriter, node: fx.Node) -> None:
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
        given = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
        lists = {name: list(value) if isinstance(value, list | tuple) else value for name, value in given.items()}
        width = lists["kernel_size"]
        plain = (
            lists.get("stride", []) in (width, []) and lists.get("padding", [0]) == [0] and not given.get("ceil_mode")
        )
        if not plain or lists.get("dilation", [1]) != [1] or not isinstance(width, list) or not 2 <= width[0] <= WIDEST:
            return
        source, last = node.args[0], node
        if len(node.users) != 1 or not isinstance(source, fx.Node):
            return
        user = next(iter(node.users))
        # A dimension put in for the pool and taken out again goes with it, unless what is pooled changes meanwhile.
        if (
            user.meta.get("segment") == node.meta.get("segment")
            and op_name(source) == "unsqueeze"
            and source.args[1] == 1
            and user.target is aten.squeeze.dim
            and user.args[1] == 1
        ):
            source, last = source.args[0], user
        before, after = tensor(source), tensor(last)
        if before is None or after is None or not isinstance(source, fx.Node) or before.dim() != after.dim():
            return
        if any(trailing(reader) is None or op_name(reader) not in ("sum", "mean") for reader in last.users):
            return
        size, end = width[0], after.shape[-1] * width[0]
        slices = [rewriter.aten(aten.slice.Tensor, source, -1, i, end, size, before=last) for i in range(size)]
        largest = slices[0]
        for part in slices[1:]:
            largest = rewriter.aten(aten.maximum.default, largest, part, before=last)
        rewriter.replace(last, largest)
        indices = 8 * after.numel()
        seconds = indices / rewriter.bandwidth
        rewriter.add_gain(Gain(self.name, "rows pooled where they are summed", seconds, 0, indices, ("max_pool1d",)))
