"""Recipe: a mean over a convolution's output is taken over its input instead, where it costs a fraction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import Gain, New, Recipe, Rewriter, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.window_sums import Window, WindowSums

aten = torch.ops.aten

FORWARD = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
TRANSPOSED = {"conv_transpose1d": 1, "conv_transpose2d": 2, "conv_transpose3d": 3}
RATES = {"cuda": 5e13, "cpu": 5e10}
"""float32 FLOP/s of a library's convolution where none were measured."""
WORTH = 1.25
"""Predicted speedup of convolution and mean below which they stay as they are."""
OVERLOADS = {
    (False, 1): aten.conv1d.default,
    (False, 2): aten.conv2d.default,
    (False, 3): aten.conv3d.default,
    (True, 1): aten.conv_transpose1d.default,
    (True, 2): aten.conv_transpose2d.input,
    (True, 3): aten.conv_transpose3d.input,
}


@dataclass(frozen=True)
class Convolution:
    """A convolution in one group; the lists have one entry for each spatial dimension."""

    node: fx.Node
    transposed: bool
    bias: fx.Node | None
    size: list[int]
    taps: list[int]
    out: list[int]
    stride: list[int]
    padding: list[int]
    output_padding: list[int]
    dilation: list[int]

    @property
    def rank(self) -> int:
        """Spatial dimensions."""
        return len(self.size)

    def windows(self, dim: int) -> list[Window]:
        """For each tap along a spatial dimension the inputs that it multiplies, over all outputs."""
        size, out = self.size[dim], self.out[dim]
        step, pad, spread = self.stride[dim], self.padding[dim], self.dilation[dim]
        found = []
        for tap in range(self.taps[dim]):
            shift = tap * spread - pad
            if self.transposed:  # output = input * step + shift
                inside = [i for i in range(size) if 0 <= i * step + shift < out]
            else:  # input = output * step + shift
                inside = [i for i in (y * step + shift for y in range(out)) if 0 <= i < size]
            stride = 1 if self.transposed else step
            found.append(Window(inside[0], inside[-1] + 1, stride) if inside else Window(0, 0, 1))
        return found


class ConvMean(Recipe):
    """Applies to ``mean(convolution(x))`` over spatial dimensions, numbers multiplied in between included.

    Both are linear: the mean of a tap's products is the tap times the mean of the inputs that it meets, which differ
    only at the borders. What is left is a convolution over the other dimensions, with a channel for each input
    channel and tap, or a matrix product when no dimension is left.
    """

    name: ClassVar[str] = "conv_mean"
    title: ClassVar[str] = "Average a convolution's input instead of its output"
    order: ClassVar[int] = 12

    def apply(self, rewriter: Rewriter) -> None:
        """Rewrite every such pair that pays."""
        made: set[fx.Node] = set()
        for node in list(rewriter.graph.nodes):
            dims = _averaged(node)
            if dims is None:
                continue
            if node.args[0] in made and _is_identity(node, dims):
                rewriter.replace(node, node.args[0])
                continue
            convolution, factors = _source(node)
            if convolution is None or not dims or min(dims) < 2:
                continue
            spatial = [dim - 2 for dim in dims]
            stock, own = seconds(rewriter, convolution, spatial)
            fits = rewriter.target != "cuda" or _fits(convolution, spatial)
            if own * WORTH <= stock and fits and WindowSums.supported(rewriter.disabled):
                made.add(self._rewrite(rewriter, node, convolution, factors, spatial))
                saved = stock - own
                what = "mean over the input of a convolution instead of its output"
                names = (op_name(convolution.node), "mean")
                rewriter.add_gain(Gain(self.name, what, saved, 1, _bytes(convolution.node), names))

    def _rewrite(
        self, rewriter: Rewriter, node: fx.Node, convolution: Convolution, factors: list[fx.Node], dims: list[int]
    ) -> fx.Node:
        out = tensor(node)
        assert out is not None
        summed = convolution.node.args[0]
        assert isinstance(summed, fx.Node)
        for dim in dims:
            summed = _sums(rewriter, summed, dim + 2, convolution.windows(dim), node)
        weight, bias = _weight(rewriter, convolution, dims, node), convolution.bias
        for factor in reversed(factors):  # of weight and bias, which depend on state alone
            weight = rewriter.aten(factor.target, weight, *factor.args[1:], before=node)
            if bias is not None:
                bias = rewriter.aten(factor.target, bias, *factor.args[1:], before=node)
        whole = len(dims) == convolution.rank
        value = _rest(rewriter, convolution, dims, summed, weight, bias if whole else None, node)
        if tuple(tensor(value).shape) != tuple(out.shape):  # type: ignore[union-attr]
            value = rewriter.aten(aten.view.default, value, list(out.shape), before=node)
        if bias is not None and not whole:  # apart, so that it can join the operators behind it
            shaped = rewriter.aten(aten.view.default, bias, [-1] + [1] * (out.dim() - 2), before=node)
            value = rewriter.aten(aten.add.Tensor, value, shaped, before=node)
        value.meta["val"] = out
        rewriter.replace(node, value)
        return value


def _averaged(node: fx.Node) -> list[int] | None:
    """The dimensions that the node averages, rising; None if it is no float32 mean."""
    value = tensor(node.args[0] if node.args else None)
    if value is None or value.dtype != torch.float32 or value.dim() < 3:
        return None
    name = op_name(node)
    if name in ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"):
        unit = set(node.args[1]) == {1} and value.dim() == int(name[-2]) + 2  # type: ignore[arg-type]
        return list(range(2, value.dim())) if unit else None
    if name != "mean" or node.kwargs or len(node.args) < 2 or len(node.args) > 3:
        return None
    given: Any = node.args[1]
    dims = [given] if isinstance(given, int) else list(given or [])
    return sorted(dim % value.dim() for dim in dims)


def _is_identity(node: fx.Node, dims: list[int]) -> bool:
    """A mean over one element each that keeps the shape."""
    value, out = tensor(node.args[0]), tensor(node)
    assert value is not None
    assert out is not None
    return value.shape == out.shape and all(value.shape[dim] == 1 for dim in dims)


def _source(node: fx.Node) -> tuple[Convolution | None, list[fx.Node]]:
    """The convolution whose output the node averages, and the multiplications by numbers in between."""
    factors: list[fx.Node] = []
    here = node.args[0]
    while isinstance(here, fx.Node) and len(here.users) == 1 and here.meta.get("segment") == node.meta.get("segment"):
        if op_name(here) not in ("mul", "div") or len(here.args) != 2 or here.kwargs:
            return convolution_of(here), factors
        if not isinstance(here.args[1], int | float):
            break
        factors.append(here)
        here = here.args[0]
    return None, factors


def convolution_of(node: fx.Node) -> Convolution | None:
    """The float32 convolution in one group at a node; None for anything else."""
    name = op_name(node)
    rank = FORWARD.get(name) or TRANSPOSED.get(name)
    if rank is None or node.kwargs:
        return None
    ones, zeros = [1] * rank, [0] * rank
    defaults: tuple[Any, ...] = (None, None, None, ones, zeros, ones, 1)
    if name in TRANSPOSED:
        defaults = (None, None, None, ones, zeros, zeros, 1, ones)
    given = (*node.args, *defaults[len(node.args) :])
    x, w, out = tensor(given[0]), tensor(given[1]), tensor(node)
    if x is None or w is None or out is None or isinstance(given[4], str):
        return None
    if x.dim() != rank + 2 or x.dtype != torch.float32 or w.dtype != torch.float32 or not dense(x):
        return None

    def each(value: Any) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * rank if len(values) == 1 else values

    stride, padding = each(given[3]), each(given[4])
    output_padding = each(given[5]) if name in TRANSPOSED else zeros
    groups, dilation = (given[6], each(given[7])) if name in TRANSPOSED else (given[6], each(given[5]))
    if groups != 1:
        return None
    sizes = [list(value.shape[2:]) for value in (x, w, out)]
    return Convolution(
        node, name in TRANSPOSED, given[2], sizes[0], sizes[1], sizes[2], stride, padding, output_padding, dilation
    )


def seconds(rewriter: Rewriter, convolution: Convolution, dims: list[int]) -> tuple[float, float]:
    """Predicted time of the convolution with the mean behind it, and of the rewrite."""
    x, w = tensor(convolution.node.args[0]), tensor(convolution.node.args[1])
    assert x is not None
    assert w is not None
    rate = RATES[rewriter.target]
    if rewriter.device.ceilings is not None:
        rate = rewriter.device.ceilings.flops_per_second.get("fp32", rate)
    batch, pixels = x.shape[0], math.prod(convolution.size if convolution.transposed else convolution.out)
    flops = 2.0 * batch * pixels * w.numel()
    left = flops / math.prod((convolution.size if convolution.transposed else convolution.out)[dim] for dim in dims)
    windows = math.prod(convolution.taps[dim] for dim in dims) / math.prod(convolution.size[dim] for dim in dims)
    read = 4 * x.numel()
    stock = max(flops / rate, read / rewriter.bandwidth) + _bytes(convolution.node) / rewriter.bandwidth
    bandwidth, passes = rewriter.bandwidth, convolution.taps[dims[0]]
    if rewriter.target == "cuda":  # one pass, of which few rows keep few threads busy
        plan = _plan(x.shape, dims[0] + 2, convolution.windows(dims[0]))
        bandwidth, passes = min(bandwidth, plan.bytes_per_second), 1
    own = read * passes / bandwidth + read * 2 * windows / rewriter.bandwidth + 2 * left / rate
    return stock, own + (2 + len(dims)) * rewriter.launch_seconds


def _bytes(node: fx.Node) -> int:
    value = tensor(node)
    assert value is not None
    return 4 * value.numel()


def _sums(rewriter: Rewriter, x: fx.Node, dim: int, windows: list[Window], before: fx.Node) -> fx.Node:
    """Sums of ``x`` over windows along a dimension, which becomes that of the windows."""
    value = tensor(x)
    assert value is not None
    shape = (*value.shape[:dim], len(windows), *value.shape[dim + 1 :])
    if rewriter.target == "cuda":
        plan = _plan(value.shape, dim, windows)
        launcher = Launcher(
            name=plan.launcher,
            source=f"{plan.launcher}.cu",
            arguments=[
                argument("x", alignment=4 * plan.vector),
                argument("out", role="output", alignment=4 * plan.vector),
            ],
        )
        rewriter.add_source(launcher.source, plan.source())
        return rewriter.launch(launcher, [x, New(shape)], before=before, name="window_sums")[0]
    parts = []
    for window in windows:
        part = rewriter.aten(aten.slice.Tensor, x, dim, window.first, window.end, window.step, before=before)
        parts.append(rewriter.aten(aten.sum.dim_IntList, part, [dim], True, before=before))
    return rewriter.aten(aten.cat.default, parts, dim, before=before) if len(parts) > 1 else parts[0]


def _fits(convolution: Convolution, dims: list[int]) -> bool:
    """Whether the kernel is written for every dimension that is summed, one after the other."""
    x = tensor(convolution.node.args[0])
    assert x is not None
    shape = list(x.shape)
    for dim in dims:
        at = dim + 2
        plan = _plan(shape, at, convolution.windows(dim))
        if not plan.fits:
            return False
        shape[at] = convolution.taps[dim]
    return True


def _plan(shape: Sequence[int], dim: int, windows: list[Window]) -> WindowSums:
    """The kernel that sums a tensor of ``shape`` over windows along a dimension."""
    return WindowSums(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]), tuple(windows))


def _weight(rewriter: Rewriter, convolution: Convolution, dims: list[int], before: fx.Node) -> fx.Node:
    """The weight with a channel for each input channel and tap of the averaged dimensions, over their outputs' number.

    It depends on state alone. Of a forward convolution [out, in * taps, rest], of a transposed one
    [in * taps, out, rest].
    """
    weight = convolution.node.args[1]
    value = tensor(weight)
    assert value is not None
    kept = [dim for dim in range(convolution.rank) if dim not in dims]
    inner, outer = (0, 1) if convolution.transposed else (1, 0)
    order = [inner, *(dim + 2 for dim in dims)]
    order = [*order, outer] if convolution.transposed else [outer, *order]
    turned = rewriter.aten(aten.permute.default, weight, [*order, *(dim + 2 for dim in kept)], before=before)
    merged = value.shape[inner] * math.prod(convolution.taps[dim] for dim in dims)
    channels = [merged, value.shape[outer]] if convolution.transposed else [value.shape[outer], merged]
    taps = [convolution.taps[dim] for dim in kept]
    shaped = rewriter.aten(aten.reshape.default, turned, [*channels, *taps], before=before)
    count = math.prod(convolution.out[dim] for dim in dims)
    return rewriter.aten(aten.div.Tensor, shaped, count, before=before)


def _rest(
    rewriter: Rewriter,
    convolution: Convolution,
    dims: list[int],
    summed: fx.Node,
    weight: fx.Node,
    bias: fx.Node | None,
    before: fx.Node,
) -> fx.Node:
    """The convolution over the dimensions that are left, on the sums; the averaged ones have size 1 in its result."""
    value = tensor(summed)
    assert value is not None
    kept = [dim for dim in range(convolution.rank) if dim not in dims]
    order = [0, 1, *(dim + 2 for dim in dims), *(dim + 2 for dim in kept)]
    if order != sorted(order):
        summed = rewriter.aten(aten.permute.default, summed, order, before=before)
    channels = value.shape[1] * math.prod(convolution.taps[dim] for dim in dims)
    sizes = [value.shape[dim + 2] for dim in kept]
    summed = rewriter.aten(aten.reshape.default, summed, [value.shape[0], channels, *sizes], before=before)
    if not kept:
        matrix = rewriter.aten(aten.t.default, weight, before=before) if convolution.transposed else weight
        return rewriter.aten(aten.linear.default, summed, matrix, bias, before=before)
    lists = [[values[dim] for dim in kept] for values in (convolution.stride, convolution.padding)]
    dilation = [convolution.dilation[dim] for dim in kept]
    more: list[Any] = [*lists, dilation, 1]
    if convolution.transposed:
        more = [*lists, [convolution.output_padding[dim] for dim in kept], 1, dilation]
    overload = OVERLOADS[convolution.transposed, len(kept)]
    return rewriter.aten(overload, summed, weight, bias, *more, before=before)
