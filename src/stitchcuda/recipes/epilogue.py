"""Recipe: a convolution's or linear layer's bias joins the pointwise operators behind it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import fx

from stitchcuda.recipes.base import Gain, Recipe, Rewriter
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.rowwise import trailing
from stitchcuda.recipes.scalar import is_pointwise

aten = torch.ops.aten

CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution"}


def is_batched(convolution: fx.Node) -> bool:
    """Its result has a batch dimension before the channels: as many dimensions as its weight."""
    value, weight = tensor(convolution), tensor(convolution.args[1])
    return value is not None and weight is not None and value.dim() == weight.dim()


class Epilogue(Recipe):
    """Applies to a layer with bias whose only reader is pointwise or a row reduction, or all of a convolution's are.

    On cuda a convolution adds its bias in a kernel of its own: fused with the activation (and residual, and the
    slice of a concatenation) it saves a read, a write and a launch. A linear layer's bias is free in cuBLAS, so it
    is only taken where a kernel follows that reads the result anyway; on cpu likewise for both.
    """

    name: ClassVar[str] = "epilogue"
    title: ClassVar[str] = "Take biases out of convolutions and linear layers into the kernel that follows"
    order: ClassVar[int] = 45

    def apply(self, rewriter: Rewriter) -> None:
        """Split every bias that a following kernel can add for free."""
        for node in list(rewriter.graph.nodes):
            name = op_name(node)
            if name not in CONVOLUTIONS and name != "linear":
                continue
            bias = node.args[2] if len(node.args) > 2 else None
            value = tensor(node)
            if not isinstance(bias, fx.Node) or value is None or not node.users or node.kwargs:
                continue
            if name != "linear" and not is_batched(node):
                continue
            several = len(node.users) > 1
            if several and (name == "linear" or rewriter.target != "cuda" or not self._all_pointwise(node, value)):
                continue
            if not all(self._joins(rewriter, reader, convolution=name != "linear") for reader in node.users):
                continue
            self._split(rewriter, node, bias, value, channel=1 if name != "linear" else value.dim() - 1)

    def _all_pointwise(self, node: fx.Node, value: torch.Tensor) -> bool:
        """Every reader works on the convolution's own elements, so that one kernel adds the bias for all."""
        shapes = (tensor(reader) for reader in node.users)
        steady = all(reader.meta.get("segment") == node.meta.get("segment") for reader in node.users)
        return steady and all(shape is not None and shape.shape == value.shape for shape in shapes)

    def _joins(self, rewriter: Rewriter, reader: fx.Node, *, convolution: bool) -> bool:
        if trailing(reader) is not None:
            return True
        if not is_pointwise(reader, rewriter.target):
            return False
        if convolution and rewriter.target == "cuda":
            return True
        return any(is_pointwise(user, rewriter.target) or trailing(user) is not None for user in reader.users)

    def _split(self, rewriter: Rewriter, node: fx.Node, bias: fx.Node, value: torch.Tensor, *, channel: int) -> None:
        after = node.next
        shape = [1] * value.dim()
        shape[channel] = value.shape[channel]
        readers = list(node.users)
        node.args = (*node.args[:2], None, *node.args[3:])
        shaped = rewriter.aten(aten.view.default, bias, shape, before=after) if channel != value.dim() - 1 else bias
        total = rewriter.aten(aten.add.Tensor, node, shaped, before=after)
        total.meta["val"] = node.meta["val"]
        for reader in readers:
            reader.replace_input_with(node, total)
        if op_name(node) in CONVOLUTIONS and rewriter.target == "cuda":
            size = value.numel() * value.dtype.itemsize
            rewriter.add_gain(
                Gain(self.name, "bias added with the activation", 2 * size / rewriter.bandwidth, 1, 2 * size)
            )
