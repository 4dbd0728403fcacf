"""Recipe: stride-1 depthwise convolutions with any small filter and padding, each input read once from memory."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import Gain, New, Recipe, Rewriter, TargetKind, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.conv_depthwise import depthwise_of
from stitchcuda.recipes.conv_depthwise_planes_kernel import Planes
from stitchcuda.recipes.normalise import op_name, tensor

LARGE = 2**24
"""Bytes of input and output from which memory, and not latency, decides."""


class ConvDepthwisePlanes(Recipe):
    """Applies to large float32 depthwise ``conv2d`` of stride 1 that ``conv_depthwise`` has no kernel for.

    The library's kernels for filters that are not square, or padding that does not match the filter, compute one
    output a thread and are bound by instructions; these slide the filter's rows down through registers.
    """

    name: ClassVar[str] = "conv_depthwise_planes"
    title: ClassVar[str] = "Slide depthwise filters down through registers"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 23
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every depthwise convolution that has a kernel and moves enough memory."""
        for node in list(rewriter.graph.nodes):
            plan = planes_of(node)
            if plan is None or plan.launcher in rewriter.disabled or plan.bytes < LARGE:
                continue
            launcher = Launcher(
                name=plan.launcher,
                source=f"{plan.launcher}.cu",
                arguments=[
                    argument("x", alignment=4 * plan.read),
                    argument("filter"),
                    argument("bias", optional=True),
                    argument("out", role="output", alignment=4 * plan.write),
                ],
            )
            rewriter.add_source(launcher.source, plan.source())
            x, weight = node.args[:2]
            assert isinstance(x, fx.Node)
            assert isinstance(weight, fx.Node)
            bias: Any = node.args[2] if len(node.args) > 2 else None
            shape = (plan.batch, plan.channels, plan.out_height, plan.out_width)
            (result,) = rewriter.launch(launcher, [x, weight, bias, New(shape)], before=node, name=plan.launcher)
            rewriter.replace(node, result)
            what = "depthwise convolution that slides down through registers"
            seconds = plan.bytes / rewriter.bandwidth
            rewriter.add_gain(Gain(self.name, what, seconds, 0, 0, ("conv2d",)))


def planes_of(node: fx.Node) -> Planes | None:
    """The kernel for a depthwise ``conv2d`` node; None for another operator, or where a recipe before has one."""
    if op_name(node) != "conv2d" or node.kwargs or depthwise_of(node) is not None:
        return None
    defaults: tuple[Any, ...] = (None, None, None, [1, 1], [0, 0], [1, 1], 1)
    given = (*node.args, *defaults[len(node.args) :])
    x, w, out, bias = tensor(given[0]), tensor(given[1]), tensor(node), tensor(given[2])
    if x is None or w is None or out is None or x.dim() != 4 or isinstance(given[4], str):
        return None
    values = [value for value in (x, w, out, bias) if value is not None]
    if any(value.dtype != torch.float32 or not dense(value) for value in values):
        return None
    stride, padding, dilation = (list(value) * (2 // len(value)) for value in given[3:6])
    depthwise = given[6] == x.shape[1] == w.shape[0] > 1 and w.shape[1] == 1
    if not depthwise or stride != [1, 1] or dilation != [1, 1]:
        return None
    plan = Planes(
        batch=x.shape[0],
        channels=x.shape[1],
        height=x.shape[2],
        width=x.shape[3],
        taps=(w.shape[2], w.shape[3]),
        padding=(padding[0], padding[1]),
    )
    return plan if plan.supported else None
