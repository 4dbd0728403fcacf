"""Recipe: max pooling before a monotone activation instead of behind it."""

from __future__ import annotations

from typing import ClassVar

from torch import fx

from stitchcuda.recipes.base import Gain, Recipe, Rewriter
from stitchcuda.recipes.epilogue import CONVOLUTIONS, is_batched
from stitchcuda.recipes.normalise import op_name, tensor

MONOTONE = {"relu", "hardtanh", "relu6", "sigmoid", "tanh", "leaky_relu"}


class PoolFirst(Recipe):
    """Applies to ``max_pool(activation(x))`` with a non-decreasing activation and no other reader; on cuda also to
    ``max_pool(convolution(x))`` with a bias.

    The largest value's activation is the largest activation, exactly (rounding is monotone too), so the pool
    reads x and the activation, and a convolution's bias on cuda, works on the smaller result.
    """

    name: ClassVar[str] = "pool_first"
    title: ClassVar[str] = "Pool before monotone activations, which then work on less"
    order: ClassVar[int] = 30

    def apply(self, rewriter: Rewriter) -> None:
        """Swap every such pair."""
        for pool in list(rewriter.graph.nodes):
            if op_name(pool) not in ("max_pool2d", "max_pool1d", "max_pool3d"):
                continue
            activation = pool.args[0]
            if not isinstance(activation, fx.Node) or len(activation.users) != 1:
                continue
            if activation.meta.get("segment") != pool.meta.get("segment"):
                continue
            if op_name(activation) in MONOTONE and self._rises(activation):
                self._swap(rewriter, pool, activation)
            elif op_name(activation) in CONVOLUTIONS and rewriter.target == "cuda":
                self._bias_behind(rewriter, pool, activation)

    def _rises(self, activation: fx.Node) -> bool:
        slope = activation.args[1] if len(activation.args) > 1 else 0.01
        return op_name(activation) != "leaky_relu" or (isinstance(slope, int | float) and slope >= 0)

    def _bias_behind(self, rewriter: Rewriter, pool: fx.Node, convolution: fx.Node) -> None:
        """The library adds a convolution's bias in a pass of its own, which is shorter behind the pool."""
        before, after = tensor(convolution), tensor(pool)
        assert before is not None
        assert after is not None
        total = self._pull_bias(rewriter, convolution, pool, pool.next)
        if total is pool:
            return
        total.meta["val"] = pool.meta["val"]
        pool.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
        saved = 2 * (before.numel() - after.numel()) * before.dtype.itemsize
        rewriter.add_gain(Gain(self.name, "max pool before the bias", saved / rewriter.bandwidth, 0, saved))

    def _swap(self, rewriter: Rewriter, pool: fx.Node, activation: fx.Node) -> None:
        source = activation.args[0]
        before, after = tensor(activation), tensor(pool)
        assert isinstance(source, fx.Node)
        assert before is not None
        assert after is not None
        first = rewriter.aten(pool.target, source, *pool.args[1:], before=pool, **pool.kwargs)
        steady = source.meta.get("segment") == pool.meta.get("segment")
        if op_name(source) in CONVOLUTIONS and rewriter.target == "cuda" and len(source.users) == 2 and steady:
            first = self._pull_bias(rewriter, source, first, pool)
        last = rewriter.aten(activation.target, first, *activation.args[1:], before=pool, **activation.kwargs)
        for node in (first, last):
            node.meta["val"] = pool.meta["val"]
        rewriter.replace(pool, last)
        saved = 2 * (before.numel() - after.numel()) * before.dtype.itemsize
        rewriter.add_gain(Gain(self.name, "max pool before the activation", saved / rewriter.bandwidth, 0, saved))

    def _pull_bias(self, rewriter: Rewriter, convolution: fx.Node, pooled: fx.Node, before: fx.Node) -> fx.Node:
        """A bias is added behind the pool as well: one value per channel does not change which element is largest."""
        import torch

        aten = torch.ops.aten
        bias = convolution.args[2] if len(convolution.args) > 2 else None
        value = tensor(pooled)
        if not isinstance(bias, fx.Node) or value is None or convolution.kwargs or not is_batched(convolution):
            return pooled
        convolution.args = (*convolution.args[:2], None, *convolution.args[3:])
        shape = [1, -1] + [1] * (value.dim() - 2)
        shaped = rewriter.aten(aten.view.default, bias, shape, before=before)
        return rewriter.aten(aten.add.Tensor, pooled, shaped, before=before)
