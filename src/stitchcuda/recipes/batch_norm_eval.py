"""Recipe: eval-mode BatchNorm is folded into the layer before it, else into a scale and a shift."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.recipes.base import Gain, Recipe, Rewriter
from stitchcuda.recipes.normalise import op_name, tensor

aten = torch.ops.aten


class BatchNormEval(Recipe):
    """Applies to batch_norm with running statistics only; with batch statistics (train mode) it never does.

    The folded weights depend on state alone and are computed once, in ``prepare()``. Saves a pass over the
    activations and a launch for each BatchNorm.
    """

    name: ClassVar[str] = "batch_norm_folding"
    title: ClassVar[str] = "Fold eval-mode BatchNorm into the layers before it"
    order: ClassVar[int] = 20

    def apply(self, rewriter: Rewriter) -> None:
        """Fold every eval-mode BatchNorm whose statistics the call does not change."""
        for node in list(rewriter.graph.nodes):
            if op_name(node) != "batch_norm" or len(node.args) < 9 or node.args[5]:
                continue
            if not isinstance(node.args[3], fx.Node) or not isinstance(node.args[4], fx.Node):
                continue
            if {node.args[3], node.args[4]} & rewriter.captured.mutated:
                continue
            value = tensor(node)
            assert value is not None
            if value.dtype not in (torch.float32, torch.float64):
                continue
            self._fold(rewriter, node, value)

    def _fold(self, rewriter: Rewriter, node: fx.Node, value: torch.Tensor) -> None:
        source: Any
        source, gamma, beta, mean, variance = node.args[:5]
        eps = node.args[7]
        layer = source if isinstance(source, fx.Node) and self._foldable(rewriter, source) else None
        at = layer or node

        def write(overload: Any, *arguments: Any) -> fx.Node:
            return rewriter.aten(overload, *arguments, before=at)

        scale = write(aten.rsqrt.default, write(aten.add.Scalar, variance, eps))
        if gamma is not None:
            scale = write(aten.mul.Tensor, scale, gamma)
        shift = write(aten.neg.default, write(aten.mul.Tensor, mean, scale))
        if beta is not None:
            shift = write(aten.add.Tensor, shift, beta)
        if layer is not None:
            weight, bias = layer.args[1], layer.args[2] if len(layer.args) > 2 else None
            full = tensor(weight)
            assert full is not None
            shape = [-1] + [1] * (full.dim() - 1)
            folded = write(aten.mul.Tensor, weight, write(aten.view.default, scale, shape))
            if bias is not None:
                shift = write(aten.add.Tensor, write(aten.mul.Tensor, bias, scale), shift)
            layer.args = (layer.args[0], folded, shift, *layer.args[3:])
            rewriter.replace(node, layer)
        else:
            shape = [1, -1] + [1] * (value.dim() - 2)
            scaled = write(aten.mul.Tensor, source, write(aten.view.default, scale, shape))
            total = write(aten.add.Tensor, scaled, write(aten.view.default, shift, shape))
            total.meta["val"] = node.meta["val"]
            scaled.meta["val"] = node.meta["val"]
            rewriter.replace(node, total)
        size = value.numel() * value.dtype.itemsize
        saved = 2 * size if layer is not None else 0
        seconds = saved / rewriter.bandwidth + rewriter.launch_seconds
        rewriter.add_gain(Gain(self.name, "BatchNorm folded into weights", seconds, 1, saved, ("batch_norm",)))

    def _foldable(self, rewriter: Rewriter, layer: fx.Node) -> bool:
        """A layer whose output channels are the BatchNorm's, read by it alone, with weights that do not change."""
        if op_name(layer) not in ("conv1d", "conv2d", "conv3d", "linear") or len(layer.users) != 1 or layer.kwargs:
            return False
        if op_name(layer) == "linear":
            value = tensor(layer)
            if value is None or value.dim() != 2:
                return False
        states = rewriter.captured.states.keys() - rewriter.captured.mutated
        return all(arg is None or arg in states for arg in layer.args[1:3])
