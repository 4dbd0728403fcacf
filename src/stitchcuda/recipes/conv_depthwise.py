"""Recipe: depthwise convolutions, alone or with the train-mode BatchNorms and activations around them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.recipes.base import Gain, New, Recipe, Rewriter, TargetKind, Workspace
from stitchcuda.recipes.batch_norm_train import Norm, call, declared_launcher, dense, norm_of, norm_values
from stitchcuda.recipes.batch_norm_train_kernel import ACTIVATIONS, DepthwisePlan, NormDepthwisePlan, source
from stitchcuda.recipes.normalise import op_name, tensor

aten = torch.ops.aten


class ConvDepthwise(Recipe):
    """Applies to float32 3x3 and 5x5 depthwise convolutions of stride 1 or 2 with matching padding.

    BatchNorm, activation, convolution, BatchNorm, activation, as mobile networks have it, is one launch where a
    channel of the batch fits a thread block, and otherwise five that read the large tensors once each.
    """

    name: ClassVar[str] = "conv_depthwise"
    title: ClassVar[str] = "Run depthwise convolutions with the train-mode BatchNorms around them"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 22
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every depthwise convolution that has a kernel."""
        for node in list(rewriter.graph.nodes):
            plan = depthwise_of(node)
            if plan is None:
                continue
            first, second = _before(rewriter, node), _after(rewriter, node)
            if first is not None and second is not None and (len(node.args) < 3 or node.args[2] is None):
                self._surrounded(rewriter, node, plan, first, second)
            elif pays_alone(plan):
                self._alone(rewriter, node, plan)

    def _surrounded(self, rewriter: Rewriter, node: fx.Node, plan: DepthwisePlan, first: Norm, second: Norm) -> None:
        joint = NormDepthwisePlan(plan, rewriter.device.shared_memory_per_block)
        if joint.launcher in rewriter.disabled:
            return
        launcher = declared_launcher(joint, 4)
        rewriter.add_source(launcher.source, source([joint]))
        values: dict[str, Any] = {
            "x": first.node.args[0],
            "filter": node.args[1],
            "out": New((plan.batch, plan.channels, plan.out_height, plan.out_width)),
            "workspace": Workspace((joint.workspace,)) if joint.workspace else None,
            "batch": plan.batch,
            "channels": plan.channels,
            "height": plan.height,
            "width": plan.width,
            "activation_1": ACTIVATIONS[first.activation],
            "activation_2": ACTIVATIONS[second.activation],
            "launch_size": joint.launch_size,
            **norm_values(first, "_1"),
            **norm_values(second, "_2"),
        }
        between = Norm(node, None, None, "none", (node,))
        call(rewriter, launcher, values, second.tail, [first, between, second])
        size = 4 * plan.batch * plan.channels * (plan.height * plan.width + plan.out_height * plan.out_width)
        stock, own = 5 * size, size if joint.fit[0] else 3 * size
        launches = 7 - (1 if joint.fit[0] else 5)
        seconds = (stock - own) / rewriter.bandwidth + launches * rewriter.launch_seconds
        what = "depthwise convolution with the BatchNorms and activations around it"
        rewriter.add_gain(Gain(self.name, what, seconds, launches, stock - own, ("batch_norm", "conv2d")))

    def _alone(self, rewriter: Rewriter, node: fx.Node, plan: DepthwisePlan) -> None:
        if plan.launcher in rewriter.disabled:
            return
        launcher = declared_launcher(plan, 4 if plan.out_width % 4 == 0 else plan.vector)
        rewriter.add_source(launcher.source, source([plan]))
        values: dict[str, Any] = {
            "x": node.args[0],
            "filter": node.args[1],
            "bias": node.args[2] if len(node.args) > 2 else None,
            "out": New((plan.batch, plan.channels, plan.out_height, plan.out_width)),
            "batch": plan.batch,
            "channels": plan.channels,
            "height": plan.height,
            "width": plan.width,
            "tile_rows": plan.tile_rows,
        }
        call(rewriter, launcher, values, node, [])
        size = 4 * plan.batch * plan.channels * (plan.height * plan.width + plan.out_height * plan.out_width)
        what = "depthwise convolution from shared memory"
        rewriter.add_gain(Gain(self.name, what, size / rewriter.bandwidth, 0, size, ("conv2d",)))


def pays_alone(plan: DepthwisePlan) -> bool:
    """Whether the convolution without BatchNorms is faster than cuDNN's.

    On an H200 it was 1.05 to 1.8 times as fast at stride 1 from 14x14 up, and slower at stride 2 and on 7x7 planes.
    """
    return plan.stride == 1 and plan.height * plan.width >= 14 * 14


def depthwise_of(node: fx.Node) -> DepthwisePlan | None:
    """The plan for a depthwise ``conv2d`` node; None if it is another convolution or no kernel fits it."""
    if op_name(node) != "conv2d" or node.kwargs or isinstance(node.args[-1], str):
        return None
    defaults: tuple[Any, ...] = (None, None, None, [1, 1], [0, 0], [1, 1], 1)
    given = (*node.args, *defaults[len(node.args) :])
    x, w, bias = (tensor(argument) for argument in given[:3])
    stride, padding, dilation, groups = given[3:]
    if x is None or w is None or x.dim() != 4 or x.dtype != torch.float32 or w.dtype != torch.float32:
        return None
    if not dense(x) or not w.is_contiguous() or (bias is not None and bias.dtype != torch.float32):
        return None
    kernel = w.shape[2]
    shaped = groups == x.shape[1] == w.shape[0] and w.shape[1] == 1 and w.shape[3] == kernel
    pad, step = (kernel - 1) // 2, stride[0]
    regular = list(stride) == [step] * 2 and list(padding) == [pad] * 2 and list(dilation) == [1, 1]
    if not shaped or not regular or groups == 1:
        return None
    plan = DepthwisePlan(x.shape[0], x.shape[1], x.shape[2], x.shape[3], kernel, step)
    return plan if plan.supported else None


def _before(rewriter: Rewriter, node: fx.Node) -> Norm | None:
    """The BatchNorm whose activated result is read by the convolution alone."""
    source_node = node.args[0]
    for _ in range(2):
        if not isinstance(source_node, fx.Node) or len(source_node.users) != 1:
            return None
        norm = norm_of(rewriter, source_node, residual=False)
        if norm is not None:
            same = norm.tail is node.args[0] and norm.node.meta.get("segment") == node.meta.get("segment")
            return norm if same else None
        source_node = source_node.args[0] if source_node.args else None
    return None


def _after(rewriter: Rewriter, node: fx.Node) -> Norm | None:
    """The BatchNorm that alone reads the convolution's result."""
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    if user.args[0] is not node or user.meta.get("segment") != node.meta.get("segment"):
        return None
    return norm_of(rewriter, user, residual=False)
