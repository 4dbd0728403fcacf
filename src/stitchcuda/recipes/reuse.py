"""When a tensor's memory may be overwritten: kernels and operators that work in place save an allocation and a pass."""

from __future__ import annotations

import torch
from torch import fx

from stitchcuda.recipes.base import Rewriter, is_launch
from stitchcuda.recipes.normalise import op_name, storage_roots, tensor

aten = torch.ops.aten

IN_PLACE = {
    "relu", "hardtanh", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "hardswish", "hardsigmoid", "mish", "clamp",
    "clamp_min", "add", "sub", "mul", "div", "exp", "neg", "masked_fill", "relu6", "sqrt", "rsqrt",
}  # fmt: skip
"""Operators that are run in place when their first argument is free."""


def reuse_memory(rewriter: Rewriter) -> None:
    """Let pointwise ATen operators that stay work in place where their first argument is read by nobody else."""
    fixed = fixed_nodes(rewriter)
    for node in list(rewriter.graph.nodes):
        name = op_name(node)
        if name not in IN_PLACE or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        first, out = tensor(node.args[0]), tensor(node)
        packet = getattr(aten, name + "_", None)
        overload = getattr(packet, node.target._overloadname, None) if packet is not None else None
        if overload is None or first is None or out is None or not shares_layout(first, out):
            continue
        others = [arg for arg in node.all_input_nodes if arg is not node.args[0]]
        roots = storage_roots(rewriter.graph)
        if any(roots[other] is roots[node.args[0]] for other in others):
            continue
        if storage_is_free(node.args[0], {node}, roots, fixed):
            node.target = overload


def storage_is_free(node: fx.Node, members: set[fx.Node], roots: dict[fx.Node, fx.Node], fixed: set[fx.Node]) -> bool:
    """A kernel of ``members`` may overwrite the tensor of ``node``: a fresh one that nobody reads afterwards."""
    root = roots[node]
    if root.op != "call_function" or root in fixed or root in members:
        return False
    aliases = [alias for alias, base in roots.items() if base is root]
    allowed = members | set(aliases) | _ancestors(node)
    return all(user in allowed and user.op != "output" for alias in aliases for user in alias.users)


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = list(node.all_input_nodes)
    while pending:
        here = pending.pop()
        if here not in found:
            found.add(here)
            pending += here.all_input_nodes
    return found


def fixed_nodes(rewriter: Rewriter) -> set[fx.Node]:
    """Nodes that depend on state alone: they may be computed once, so nothing may overwrite them."""
    fixed: set[fx.Node] = set(rewriter.captured.states)
    for node in rewriter.graph.nodes:
        steady = not is_launch(node) or not node.meta["writes"]
        if node.op == "call_function" and steady and all(s in fixed for s in node.all_input_nodes):
            fixed.add(node)
    return fixed


def shares_layout(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Same shape, strides and element type."""
    return first.shape == second.shape and first.stride() == second.stride() and first.dtype == second.dtype
