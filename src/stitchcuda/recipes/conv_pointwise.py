"""Recipe: 1x1 convolutions as matrix products, where the library's are faster than its convolutions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.recipes.base import Gain, Recipe, Rewriter, TargetKind
from stitchcuda.recipes.normalise import op_name, tensor

aten = torch.ops.aten

SAVED_SHARE = 0.15
"""Part of the convolution's time that the matrix product saves; 1.1 to 1.7 times as fast on an H200."""

FLOPS = 2.5e13
"""What cuDNN's float32 1x1 convolutions reached on an H200, per second."""

UNARY = {"relu", "relu6", "hardtanh", "sigmoid", "silu", "hardswish", "hardsigmoid", "gelu", "tanh", "leaky_relu"}
"""Activations that are the same on rows as on 1x1 planes."""


class ConvPointwise(Recipe):
    """Applies to float32 1x1 convolutions of stride 1 in one group over contiguous input, by shape.

    ``weight [out, in] @ x [batch, in, height * width]`` writes the output in place, so nothing is transposed. A bias
    becomes an addition of its own, which joins the operators behind it. On 1x1 planes it is a linear layer on rows,
    and averaging such planes is nothing at all.
    """

    name: ClassVar[str] = "conv_pointwise"
    title: ClassVar[str] = "Compute 1x1 convolutions as matrix products"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 30

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every convolution that pays."""
        for node in list(rewriter.graph.nodes):
            if _is_unit_pool(node):
                rewriter.replace(node, node.args[0])
            elif is_pointwise_convolution(node) and pays(node):
                self._rewrite(rewriter, node)

    def _rewrite(self, rewriter: Rewriter, node: fx.Node) -> None:
        given, weight, out = tensor(node.args[0]), tensor(node.args[1]), tensor(node)
        assert given is not None
        assert weight is not None
        assert out is not None
        n, c, k = given.shape[0], given.shape[1], weight.shape[0]
        last = node
        if given.shape[2] * given.shape[3] == 1:
            last, product = _as_linear(rewriter, node, n, c, k)
        else:
            product = _as_product(rewriter, node, n, c, k)
        result = rewriter.aten(aten.view.default, product, list(out.shape), before=node)
        bias = node.args[2] if len(node.args) > 2 else None
        if bias is not None and last is node and product.target is aten.bmm.default:
            shaped = rewriter.aten(aten.view.default, bias, [k, 1, 1], before=node)
            result = rewriter.aten(aten.add.Tensor, result, shaped, before=node)
        result.meta["val"] = last.meta["val"]
        rewriter.replace(last, result)
        seconds = 2 * out.numel() * c / FLOPS * SAVED_SHARE
        rewriter.add_gain(Gain(self.name, "1x1 convolution as a matrix product", seconds, operators=("conv2d",)))


def _as_product(rewriter: Rewriter, node: fx.Node, n: int, c: int, k: int) -> fx.Node:
    flat = rewriter.aten(aten.view.default, node.args[0], [n, c, -1], before=node)
    matrix = rewriter.aten(aten.view.default, node.args[1], [1, k, c], before=node)
    wide = rewriter.aten(aten.expand.default, matrix, [n, k, c], before=node)
    return rewriter.aten(aten.bmm.default, wide, flat, before=node)


def _as_linear(rewriter: Rewriter, node: fx.Node, n: int, c: int, k: int) -> tuple[fx.Node, fx.Node]:
    """On 1x1 planes: a linear layer on rows, with the activations behind it; the last node replaced, and its value."""
    flat = rewriter.aten(aten.view.default, node.args[0], [n, c], before=node)
    matrix = rewriter.aten(aten.view.default, node.args[1], [k, c], before=node)
    bias = node.args[2] if len(node.args) > 2 else None
    last, value = node, rewriter.aten(aten.linear.default, flat, matrix, bias, before=node)
    while len(last.users) == 1:
        user = next(iter(last.users))
        plain = not user.kwargs and user.all_input_nodes == [last] and user.args[0] is last
        if op_name(user) not in UNARY or not plain or user.meta.get("segment") != node.meta.get("segment"):
            break
        value = rewriter.aten(user.target, value, *user.args[1:], before=node)
        last = user
    return last, value


def _is_unit_pool(node: fx.Node) -> bool:
    """Whether the node averages planes of one pixel."""
    x, out = tensor(node.args[0] if node.args else None), tensor(node)
    if op_name(node) != "adaptive_avg_pool2d" or x is None or out is None:
        return False
    return x.shape == out.shape and x.shape[-2:] == (1, 1) and not any(user.op == "output" for user in node.users)


def is_pointwise_convolution(node: fx.Node) -> bool:
    """Whether the node is a float32 1x1 ``conv2d`` of stride 1 without padding, in one group, contiguous throughout."""
    if op_name(node) != "conv2d" or node.kwargs or isinstance(node.args[-1], str):
        return False
    defaults: tuple[Any, ...] = (None, None, None, [1, 1], [0, 0], [1, 1], 1)
    given = (*node.args, *defaults[len(node.args) :])
    x, w, out = tensor(given[0]), tensor(given[1]), tensor(node)
    if x is None or w is None or out is None or x.dim() != 4:
        return False
    plain = all(value.dtype == torch.float32 and value.is_contiguous() for value in (x, w, out))
    unit = list(w.shape[2:]) == [1, 1] and list(given[3]) == [1, 1] and list(given[4]) == [0, 0]
    return plain and unit and given[6] == 1 and x.numel() > 0


def pays(node: fx.Node) -> bool:
    """Whether the matrix product is the faster route.

    Of eight shapes measured on an H200 the product won by 1.1 to 1.7 times on planes of 56x56 and more, on 7x7
    and, with few input channels, on 14x14; it lost with 512 input channels on 14x14. Shapes in between follow the
    nearest measured one.
    """
    x = tensor(node.args[0])
    assert x is not None
    channels, area = x.shape[1], x.shape[2] * x.shape[3]
    return area >= 40 * 40 or area <= 8 * 8 or channels <= 256
