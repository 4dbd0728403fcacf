"""Recipe: train-mode BatchNorm in one pass with the residual addition and activation behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import fx

from stitchcuda.program.model import Argument, Launcher
from stitchcuda.recipes.base import CallArgument, Gain, New, Recipe, Rewriter, Workspace, argument
from stitchcuda.recipes.batch_norm_train_kernel import ACTIVATIONS, NormPlan, Plan, cpu_source, source
from stitchcuda.recipes.normalise import op_name, tensor

aten = torch.ops.aten

SHORTEST_PLANE = 16
"""Elements of a channel's plane from which the cpu kernel pays."""


@dataclass(frozen=True)
class Norm:
    """A train-mode BatchNorm of the graph and the operators that join it, from first to last in ``members``."""

    node: fx.Node
    counter: fx.Node | None
    """The ``add_`` to num_batches_tracked that belongs to it."""
    residual: fx.Node | None
    activation: str
    members: tuple[fx.Node, ...]

    @property
    def tail(self) -> fx.Node:
        """The operator whose result is the call's."""
        return self.members[-1]


class BatchNormTrain(Recipe):
    """Applies to float32 batch_norm with batch statistics over contiguous input.

    Where a channel fits a thread block, statistics, normalisation, residual addition and activation are one launch
    that reads its input once; larger tensors take three. On cpu a thread owns a channel and walks its planes, so
    planes must be long enough for vector code and channels enough for all cores. Running statistics and the counter
    are updated as PyTorch does.
    """

    name: ClassVar[str] = "batch_norm_train"
    title: ClassVar[str] = "Run train-mode BatchNorm with its activation and residual addition in one pass"
    order: ClassVar[int] = 25
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every BatchNorm with batch statistics."""
        for node in list(rewriter.graph.nodes):
            norm = norm_of(rewriter, node)
            if norm is None:
                continue
            value = tensor(norm.node)
            assert value is not None
            plan = NormPlan(value.shape[0], value.shape[1], value[0, 0].numel())
            if rewriter.target == "cpu" and not _pays_on_cpu(plan, rewriter.device.multiprocessors):
                continue
            launcher = _launcher(plan, rewriter.target)
            if launcher.name not in rewriter.disabled:
                self._rewrite(rewriter, norm, plan, launcher, value)

    def _rewrite(self, rewriter: Rewriter, norm: Norm, plan: NormPlan, launcher: Launcher, value: torch.Tensor) -> None:
        rewriter.add_source(launcher.source, _text(plan, rewriter.target))
        values: dict[str, Any] = {
            "x": norm.node.args[0],
            "residual": norm.residual,
            "out": New(tuple(value.shape)),
            "workspace": Workspace((plan.workspace,)) if plan.workspace else None,
            "batch": plan.batch,
            "channels": plan.channels,
            "area": plan.area,
            "activation": ACTIVATIONS[norm.activation],
            "threads": plan.fit[0],
            **norm_values(norm),
        }
        call(rewriter, launcher, values, norm.tail, [norm])
        size = value.numel() * 4
        passes = 2 + (norm.residual is not None) + (norm.activation != "none")
        saved = 2 * size * (passes - 1 if plan.fit[1] else passes - 2)
        launches = passes + (norm.counter is not None) - (1 if plan.fit[1] or rewriter.target == "cpu" else 3)
        seconds = saved / rewriter.bandwidth + launches * rewriter.launch_seconds
        what = "train-mode BatchNorm with its activation in one pass"
        rewriter.add_gain(Gain(self.name, what, max(seconds, 0.0), launches, saved, ("batch_norm",)))


def _pays_on_cpu(plan: NormPlan, cores: int) -> bool:
    """One vector of float32 a plane at least: with a shorter one PyTorch's own is up to ten times faster."""
    return plan.area >= SHORTEST_PLANE and plan.channels >= cores


def norm_of(rewriter: Rewriter, node: fx.Node, *, residual: bool = True) -> Norm | None:
    """The BatchNorm at ``node`` with what may join it; None if it is not train-mode float32 over contiguous input."""
    if op_name(node) != "batch_norm" or len(node.args) < 8 or not node.args[5]:
        return None
    value, given = tensor(node), tensor(node.args[0])
    if value is None or given is None or value.dtype != torch.float32 or value.dim() < 2:
        return None
    if not value.is_contiguous() or not dense(given) or not 2 * value.shape[1] <= value.numel() < 2**31:
        return None
    states = [tensor(arg) for arg in node.args[1:5] if arg is not None]
    if any(state is None or state.dtype != torch.float32 for state in states):
        return None
    if (node.args[3] is None) != (node.args[4] is None) or not isinstance(node.args[6], float):
        return None
    tail, added = node, None
    if residual:
        tail, added = _added(node)
    last, activation = _activated(tail)
    members = tuple(dict.fromkeys((node, tail, last)))
    return Norm(node, _counter(rewriter, node), added, activation, members)


def dense(value: torch.Tensor) -> bool:
    """Contiguous, and 16-byte aligned if its storage is."""
    return value.is_contiguous() and int(value.storage_offset()) % 4 == 0


def norm_values(norm: Norm, suffix: str = "") -> dict[str, Any]:
    """The launcher arguments of one BatchNorm by name."""
    weight, bias, mean, variance = norm.node.args[1:5]
    return {
        f"weight{suffix}": weight,
        f"bias{suffix}": bias,
        f"running_mean{suffix}": mean,
        f"running_var{suffix}": variance,
        f"batches{suffix}": norm.counter.args[0] if norm.counter is not None else None,
        f"momentum{suffix}": norm.node.args[6],
        f"eps{suffix}": norm.node.args[7],
    }


def call(rewriter: Rewriter, launcher: Launcher, values: dict[str, Any], last: fx.Node, norms: list[Norm]) -> None:
    """Put the launcher call where ``last`` is, let its users read ``out``, and drop the operators it replaces."""
    given: list[CallArgument] = [values[declared.name] for declared in launcher.arguments]
    results = rewriter.launch(launcher, given, before=last, name=launcher.name)
    written = [
        declared.name
        for declared, value in zip(launcher.arguments, given, strict=True)
        if declared.role != "input" and isinstance(value, fx.Node | New)
    ]
    last.replace_all_uses_with(results[written.index("out")])
    replaced = {node for norm in norms for node in norm.members} | {last}
    replaced |= {norm.counter for norm in norms if norm.counter is not None}
    for node in reversed(list(rewriter.graph.nodes)):
        if node in replaced and not node.users:
            rewriter.graph.erase_node(node)


def _added(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The addition behind a BatchNorm that nobody else reads, and its other operand."""
    user = _only_user(node)
    if user is None or op_name(user) != "add" or user.kwargs or len(user.args) != 2:
        return node, None
    other = user.args[1] if user.args[0] is node else user.args[0]
    value, mine = tensor(other), tensor(node)
    if not isinstance(other, fx.Node) or other is node or value is None or mine is None:
        return node, None
    if value.shape != mine.shape or value.dtype != mine.dtype or not dense(value):
        return node, None
    return user, other


def _activated(node: fx.Node) -> tuple[fx.Node, str]:
    user = _only_user(node)
    if user is None or user.kwargs:
        return node, "none"
    match op_name(user), user.args[1:]:
        case ("relu" | "relu6" | "silu" | "hardswish") as kind, ():
            return user, kind
        case "hardtanh", (low, high) if low == 0 and high == 6:
            return user, "relu6"
    return node, "none"


def _only_user(node: fx.Node) -> fx.Node | None:
    """The single reader in the same segment."""
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    return user if user.meta.get("segment") == node.meta.get("segment") else None


def _counter(rewriter: Rewriter, node: fx.Node) -> fx.Node | None:
    """``num_batches_tracked.add_(1)`` of the same module, in the same segment, read by nobody."""
    states = rewriter.captured.states
    mean = states.get(node.args[3]) if isinstance(node.args[3], fx.Node) else None
    if mean is None or not mean.path.endswith("running_mean"):
        return None
    wanted = mean.path.removesuffix("running_mean") + "num_batches_tracked"
    for other in rewriter.graph.nodes:
        if op_name(other) != "add_" or other.users or other.kwargs or other.args[1:] != (1,):
            continue
        state, value = states.get(other.args[0]), tensor(other.args[0])
        known = state is not None and state.path == wanted and value is not None and value.dtype == torch.int64
        if known and other.meta.get("segment") == node.meta.get("segment"):
            return other  # type: ignore[no-any-return]
    return None


def _text(plan: NormPlan, target: str) -> str:
    return source([plan]) if target == "cuda" else cpu_source()


def _launcher(plan: NormPlan, target: str) -> Launcher:
    if target == "cpu":
        return Launcher(name="batch_norm_train", source="batch_norm_train.cpp", arguments=_declared(plan, vector=1))
    return declared_launcher(plan, plan.vector)


def declared_launcher(plan: Plan, vector: int) -> Launcher:
    """The manifest entry of a plan's launcher on cuda; ``vector`` floats are one access to activations."""
    return Launcher(name=plan.launcher, source=f"{plan.launcher}.cu", arguments=_declared(plan, vector))


OPTIONAL = {"residual", "workspace"} | {
    f"{name}{suffix}"
    for name in ("weight", "bias", "running_mean", "running_var", "batches")
    for suffix in ("", "_1", "_2")
}


def _declared(plan: Plan, vector: int) -> list[Argument]:
    declared = []
    for name, kind, role in plan.arguments:
        roles: dict[str, Literal["input", "output", "inout"]] = {
            "input": "input",
            "output": "output",
            "inout": "inout",
        }
        wide = name in ("x", "residual", "out", "workspace")
        declared.append(
            argument(
                name,
                "float32" if kind.startswith("float") else "int64",
                roles[role],
                scalar=not kind.endswith("*"),
                alignment=4 * vector if wide else None,
                optional=name in OPTIONAL,
            )
        )
    return declared
