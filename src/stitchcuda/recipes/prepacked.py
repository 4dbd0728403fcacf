"""Recipe: convolutions and linear layers on cpu through oneDNN, with weights packed once and what follows fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.recipes.base import Gain, Recipe, Rewriter, TargetKind, meta_tensor
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.reuse import fixed_nodes
from stitchcuda.recipes.rowwise import trailing
from stitchcuda.recipes.scalar import is_pointwise

aten = torch.ops.aten

PLAIN = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "silu": "swish", "hardswish": "hardswish"}
"""oneDNN's names of activations without parameters."""
FLOPS = 5e10
"""What two cores reach on such layers in float32, per second."""
SAVED_SHARE = 0.15
"""Part of a layer's time that goes into packing weights and converting layouts at every call."""
FEWEST_ROWS = 4
"""Rows from which a packed linear layer is a matrix product."""


@dataclass(frozen=True)
class Fused:
    """What joins a layer: an activation, or for convolutions the addition of a tensor with an optional ReLU."""

    nodes: tuple[fx.Node, ...]
    attribute: str = "none"
    scalars: tuple[float, ...] = ()
    algorithm: str = ""
    other: fx.Node | None = None


class Prepacked(Recipe):
    """Applies to float32 ``conv2d`` and ``linear`` whose weights are state alone, where PyTorch has oneDNN.

    PyTorch packs such weights at every call; ``prepare()`` does it once. Convolutions that follow each other run in
    channels-last, which needs no conversion between them, and take the activation or residual behind them along. One
    that stands alone is left to PyTorch: converting its result back costs more than packing saves.
    """

    name: ClassVar[str] = "prepacked"
    title: ClassVar[str] = "Pack the weights of convolutions and linear layers once, for oneDNN"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cpu"})
    order: ClassVar[int] = 42

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every layer that can be packed."""
        if not available():
            return
        fixed = fixed_nodes(rewriter)
        layers = [node for node in rewriter.graph.nodes if _is_convolution(node, fixed) or _is_linear(node, fixed)]
        laid: dict[fx.Node, fx.Node] = {}
        chained = _chained(rewriter, [node for node in layers if op_name(node) == "conv2d"])
        layers = [node for node in layers if op_name(node) == "linear" or node in chained]
        for siblings in _siblings(rewriter, layers):
            layers = [node for node in layers if node not in siblings]
            layers.append(self._joint(rewriter, siblings))
        for node in layers:
            if op_name(node) == "linear":
                self._linear(rewriter, node)
            else:
                self._convolution(rewriter, node, laid, chained)

    def _joint(self, rewriter: Rewriter, siblings: list[fx.Node]) -> fx.Node:
        """One layer with all their columns; each reads its slice."""
        first = siblings[0]
        weight = rewriter.aten(aten.cat.default, [node.args[1] for node in siblings], before=first)
        biases = [node.args[2] for node in siblings if len(node.args) > 2 and node.args[2] is not None]
        bias = rewriter.aten(aten.cat.default, biases, before=first) if biases else None
        joint = rewriter.aten(aten.linear.default, first.args[0], weight, bias, before=first)
        start = 0
        for node in siblings:
            value = tensor(node)
            assert value is not None
            end = start + value.shape[-1]
            part = rewriter.aten(aten.slice.Tensor, joint, value.dim() - 1, start, end, before=first)
            node.replace_all_uses_with(part)
            start = end
        for node in siblings:
            rewriter.graph.erase_node(node)
        seconds = (len(siblings) - 1) * rewriter.launch_seconds
        what = "linear layers over one input as one product"
        rewriter.add_gain(Gain(self.name, what, seconds, len(siblings) - 1, operators=("linear",) * len(siblings)))
        return joint

    def _linear(self, rewriter: Rewriter, node: fx.Node) -> None:
        fused = _activation(rewriter, node)
        tail = fused.nodes[-1] if fused.nodes else node
        x, weight, *rest = node.args
        given, out = tensor(x), tensor(tail)
        assert given is not None
        assert out is not None
        rows = given.numel() // given.shape[-1]
        bias = rest[0] if rest else None
        packed = insert(
            rewriter, torch.ops.mkldnn._reorder_linear_weight.default, weight, rows, before=node, like=weight
        )
        extra = (fused.attribute, list(fused.scalars), fused.algorithm)
        product = torch.ops.mkldnn._linear_pointwise.default
        result = insert(rewriter, product, x, packed, bias, *extra, before=tail, like=tail)
        self._finish(rewriter, node, fused, result, 2 * out.numel() * given.shape[-1])

    def _convolution(
        self, rewriter: Rewriter, node: fx.Node, laid: dict[fx.Node, fx.Node], chained: set[fx.Node]
    ) -> None:
        x, weight, bias, stride, padding, dilation, groups = _convolution_arguments(node)
        fused = _joined(rewriter, node)
        tail = fused.nodes[-1] if fused.nodes else node
        given, w, out = tensor(x), tensor(weight), tensor(tail)
        assert given is not None
        assert w is not None
        assert out is not None
        walk = (padding, stride, dilation, groups)
        reorder = torch.ops.mkldnn._reorder_convolution_weight.default
        packed = insert(rewriter, reorder, weight, *walk, list(given.shape), before=node, like=weight)
        source = laid.get(x, x)  # anything else is converted by oneDNN itself, faster than by a copy
        if fused.other is None:
            convolve = torch.ops.mkldnn._convolution_pointwise.default
            arguments: tuple[Any, ...] = (source, packed, bias, *walk)
            arguments += (fused.attribute, list(fused.scalars), fused.algorithm)
        else:
            other = channels_last(rewriter, fused.other, laid, before=tail)
            convolve = torch.ops.mkldnn._convolution_pointwise.binary
            arguments = (source, other, packed, bias, *walk, "add", 1.0)
            arguments += ("relu", [], "") if fused.attribute == "relu" else (None, [], None)
        result = insert(rewriter, convolve, *arguments, before=tail, like=tail)
        result.meta["val"] = out.to("meta").contiguous(memory_format=torch.channels_last)
        plain = result
        if not all(user in chained and user.args[0] is tail for user in tail.users):
            plain = rewriter.aten(aten.contiguous.default, result, before=tail)
        laid[plain] = result
        self._finish(rewriter, node, fused, plain, 2 * out.numel() * w[0].numel())

    def _finish(self, rewriter: Rewriter, node: fx.Node, fused: Fused, result: fx.Node, flops: int) -> None:
        members = [node, *fused.nodes]
        members[-1].replace_all_uses_with(result)
        for member in reversed(members):
            rewriter.graph.erase_node(member)
        seconds = flops / FLOPS * SAVED_SHARE + len(fused.nodes) * rewriter.launch_seconds
        operators = tuple(op_name(member) or "conv2d" for member in members)
        what = "weights packed once for oneDNN, with what follows a layer fused"
        rewriter.add_gain(Gain(self.name, what, seconds, len(fused.nodes), operators=operators))


def available() -> bool:
    """PyTorch has oneDNN's fused operators here."""
    names = ("_convolution_pointwise", "_reorder_convolution_weight", "_linear_pointwise", "_reorder_linear_weight")
    return bool(torch._C._has_mkldnn) and all(hasattr(torch.ops.mkldnn, name) for name in names)


def insert(rewriter: Rewriter, overload: Any, *arguments: Any, before: fx.Node, like: Any) -> fx.Node:
    """Insert a oneDNN call whose result has the shape of ``like``; these operators cannot be asked on meta tensors."""
    value = tensor(like)
    assert value is not None
    with rewriter.graph.inserting_before(before):
        node = rewriter.graph.call_function(overload, arguments)
    node.meta |= {
        "val": meta_tensor(tuple(value.shape), value.dtype),
        "segment": before.meta.get("segment", 0),
    }
    return node


def channels_last(rewriter: Rewriter, node: fx.Node, laid: dict[fx.Node, fx.Node], *, before: fx.Node) -> fx.Node:
    """The tensor in channels-last: as a packed convolution left it, or converted once for all its readers."""
    value = tensor(node)
    assert value is not None
    if value.is_contiguous(memory_format=torch.channels_last):
        return node
    if node not in laid:
        after = node.next if node.op == "call_function" else before
        converted = rewriter.aten(aten.contiguous.default, node, before=after, memory_format=torch.channels_last)
        converted.meta["segment"] = node.meta.get("segment", 0)
        laid[node] = converted
    return laid[node]


def _is_linear(node: fx.Node, fixed: set[fx.Node]) -> bool:
    if op_name(node) != "linear" or node.kwargs or node in fixed:
        return False
    x, out = tensor(node.args[0]), tensor(node)
    if x is None or out is None or x.dim() < 2 or not out.is_contiguous() or not _is_state(node, fixed):
        return False
    return x.numel() >= FEWEST_ROWS * x.shape[-1] > 0


def _is_convolution(node: fx.Node, fixed: set[fx.Node]) -> bool:
    if op_name(node) != "conv2d" or node.kwargs or isinstance(node.args[-1], str) or node in fixed:
        return False
    x, out = tensor(node.args[0]), tensor(node)
    return x is not None and out is not None and x.dim() == 4 and x.numel() > 0 and _is_state(node, fixed)


def _joined(rewriter: Rewriter, node: fx.Node) -> Fused:
    """What joins a convolution."""
    fused = _activation(rewriter, node)
    return fused if fused.nodes else _residual(node)


def _chained(rewriter: Rewriter, convolutions: list[fx.Node]) -> set[fx.Node]:
    """Convolutions that read another's result as it is left, or leave theirs to another."""
    chained: set[fx.Node] = set()
    for node in convolutions:
        fused = _joined(rewriter, node)
        tail = fused.nodes[-1] if fused.nodes else node
        readers = [user for user in tail.users if user in convolutions and user.args[0] is tail]
        if readers:
            chained |= {node, *readers}
    return chained


def _siblings(rewriter: Rewriter, layers: list[fx.Node]) -> list[list[fx.Node]]:
    """Linear layers over one input, with or without biases alike, that only kernels read: those take slices."""
    groups: dict[tuple[Any, ...], list[fx.Node]] = {}
    for node in layers:
        kernels = all(is_pointwise(user, rewriter.target) for user in node.users)
        if op_name(node) == "linear" and kernels:
            biased = len(node.args) > 2 and node.args[2] is not None
            groups.setdefault((node.args[0], biased, node.meta.get("segment", 0)), []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def _is_state(node: fx.Node, fixed: set[fx.Node]) -> bool:
    """float32 throughout, with weight and bias that no call changes."""
    owned = [argument for argument in node.args[1:3] if isinstance(argument, fx.Node)]
    values = [tensor(value) for value in (node, node.args[0], *owned)]
    return all(value is not None and value.dtype == torch.float32 for value in values) and fixed.issuperset(owned)


def _convolution_arguments(node: fx.Node) -> tuple[Any, ...]:
    defaults: tuple[Any, ...] = (None, None, None, [1, 1], [0, 0], [1, 1], 1)
    given = (*node.args, *defaults[len(node.args) :])
    return tuple(list(value) if isinstance(value, list | tuple) else value for value in given)


def _only_reader(node: fx.Node) -> fx.Node | None:
    if len(node.users) != 1:
        return None
    (user,) = node.users
    return user if user.meta.get("segment") == node.meta.get("segment") else None


def _ends_here(rewriter: Rewriter, node: fx.Node) -> bool:
    """No generated kernel follows, which could take the operator along with others."""
    return not any(is_pointwise(user, rewriter.target) or trailing(user) is not None for user in node.users)


def _activation(rewriter: Rewriter, node: fx.Node) -> Fused:
    user = _only_reader(node)
    if user is None or user.all_input_nodes != [node] or not _ends_here(rewriter, user):
        return Fused(())
    name = op_name(user)
    match name:
        case _ if name in PLAIN:
            return Fused((user,), PLAIN[name])
        case "relu6":
            return Fused((user,), "hardtanh", (0.0, 6.0))
        case "hardtanh" if len(user.args) == 3 and not user.kwargs:
            return Fused((user,), "hardtanh", (float(user.args[1]), float(user.args[2])))  # type: ignore[arg-type]
        case "leaky_relu" if len(user.args) == 2:
            return Fused((user,), "leaky_relu", (float(user.args[1]),))  # type: ignore[arg-type]
        case "gelu":
            return Fused((user,), "gelu", (), str(user.kwargs.get("approximate", "none")))
    return Fused(())


def _residual(node: fx.Node) -> Fused:
    """``convolution + other``, and a ReLU behind it; the other is ready before the convolution is."""
    total = _only_reader(node)
    if total is None or op_name(total) != "add" or total.kwargs or len(total.all_input_nodes) != 2:
        return Fused(())
    (other,) = [source for source in total.all_input_nodes if source is not node]
    value, added = tensor(total), tensor(other)
    if value is None or added is None or added.shape != value.shape or added.dtype != torch.float32:
        return Fused(())
    after = _only_reader(total)
    if after is not None and op_name(after) == "relu":
        return Fused((total, after), "relu", other=other)
    return Fused((total,), other=other)
