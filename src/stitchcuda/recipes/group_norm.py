"""Recipe: group and instance normalisation in one pass over memory, with the pointwise operators around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import CallArgument, Gain, New, Recipe, Rewriter, TargetKind, Workspace, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.epilogue import CONVOLUTIONS, is_batched
from stitchcuda.recipes.group_norm_kernel import BLOCK_RATE, Chain, GroupNormPlan, seconds, teams_of
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.scalar import Expressions, Value, is_pointwise

aten = torch.ops.aten

LARGE = 2**25
"""Bytes of the input from which memory, and not latency, decides."""
SLOWER = 1.25
"""Times the library's predicted time from which the library keeps it; predictions are no better than that."""
MAX_CHAIN = 8
"""Pointwise operators that join on each side."""
FIRST_ARCHITECTURE = 80
"""Copies into shared memory that do not wait (cp.async) exist from there on."""
POOLS = {"max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"}
"""Readers that torch.compile joins with the normalisation, which then need not be written."""


@dataclass(frozen=True)
class Norm:
    """A normalisation with the nodes that join it, in graph order."""

    node: fx.Node
    source: fx.Node
    before: list[fx.Node]
    after: list[fx.Node]
    mean: fx.Node | None
    """The mean over everything but the batch that reads the last one."""
    groups: int
    weight: fx.Node | None
    bias: fx.Node | None
    eps: float


class GroupNorm(Recipe):
    """Applies to large float32 ``group_norm`` and ``instance_norm`` whose groups fit the device's registers.

    The library reads the input twice and writes it once, a generated kernel does so too; here a group stays on chip
    between its statistics and its use. A mean over a sample's whole result is taken without writing it. Groups that
    are too short to keep a block busy are left to the library.
    """

    name: ClassVar[str] = "group_norm"
    title: ClassVar[str] = "Normalise groups that stay on chip, in one pass over memory"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 26
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every normalisation that has a kernel."""
        number = "".join(c for c in rewriter.device.target.arch if c.isdigit())
        if number and int(number) < FIRST_ARCHITECTURE:
            return
        for node in list(rewriter.graph.nodes):
            norm = norm_of(node)
            if norm is not None:
                self._rewrite(rewriter, norm)

    def _rewrite(self, rewriter: Rewriter, norm: Norm) -> None:
        value, out = tensor(norm.node), tensor((norm.after or [norm.node])[-1])
        assert value is not None
        assert out is not None
        batch, channels = value.shape[:2]
        area = math.prod(value.shape[2:])
        rows, row = batch * norm.groups, channels // norm.groups * area
        shared = rewriter.device.shared_memory_per_block
        cut = teams_of(rows, row, rewriter.device.multiprocessors, shared)
        if cut is None or value.numel() * 4 < LARGE or rows * row >= 2**40 or row >= 2**30:
            return
        team, teams, items = cut
        alone = norm.source.users.keys() == {(norm.before or [norm.node])[0]}
        steady = norm.source.meta.get("segment") == norm.node.meta.get("segment")
        bias = bias_of(norm.source) if alone and steady else None
        passes = 1 + 2 * (len(norm.before) + len(norm.after)) + (2 if bias is not None else 0)
        passes += 2 if norm.mean is not None else 0
        launches = 1 + len(norm.before) + len(norm.after)
        # The library reads twice and writes once. Of short groups a block has one at a time, which wastes it.
        stock = (2 + passes) * 4 * value.numel() / rewriter.bandwidth + launches * rewriter.launch_seconds
        rate = max(BLOCK_RATE, rewriter.bandwidth / rewriter.device.multiprocessors)
        if seconds(rows, row, team, teams, rate) > SLOWER * stock:
            return
        before, first = chain_of(norm.before, norm.source, "a", bias)
        after, second = chain_of(norm.after, norm.node, "b", None)
        plan = GroupNormPlan(
            rows=rows,
            groups=norm.groups,
            group_channels=channels // norm.groups,
            area=area,
            eps=norm.eps,
            team=team,
            teams=teams,
            items=items,
            gamma=norm.weight is not None,
            beta=norm.bias is not None,
            sums=norm.mean is not None,
            before=before,
            after=after,
        )
        if plan.launcher in rewriter.disabled:
            return
        launcher = _declared(plan)
        rewriter.add_source(launcher.source, plan.source(prelude("cuda")))
        if bias is not None:
            norm.source.args = (*norm.source.args[:2], None, *norm.source.args[3:])
        last = norm.mean or (norm.after or [norm.node])[-1]
        shape = (rows, team) if plan.sums else tuple(out.shape)
        scratch: list[CallArgument] = [Workspace((4 * teams * team,)), Workspace((teams,), torch.int64)]
        given: list[CallArgument] = [norm.source, norm.weight, norm.bias, New(shape), *scratch, *first, *second]
        result = rewriter.launch(launcher, given, before=last, name="group_norm")[0]
        if norm.mean is not None:
            result = _mean(rewriter, norm.mean, result, batch, channels * area)
        last.replace_all_uses_with(result)
        for member in reversed([*norm.before, norm.node, *norm.after, *([norm.mean] if norm.mean else [])]):
            rewriter.graph.erase_node(member)
        saved = 4 * value.numel() * passes
        what = "group normalisation of rows on chip, with the operators around it"
        rewriter.add_gain(Gain(self.name, what, saved / rewriter.bandwidth, launches, saved, (op_name(norm.node),)))


def norm_of(node: fx.Node, *, pooled: bool = False) -> Norm | None:
    """The normalisation at a node with what joins it; None for other operators and layouts.

    ``pooled``: whether a pool must, or must not, read the last one.
    """
    value, source = tensor(node), node.args[0] if node.args else None
    before = tensor(source)
    if value is None or before is None or node.kwargs or value.dim() < 3 or not isinstance(source, fx.Node):
        return None
    name = op_name(node)
    weight: Any
    bias: Any
    if name == "group_norm":
        groups, weight, bias, eps = (*node.args[1:5], *(None, None, 1e-5)[len(node.args) - 2 :])[:4]
    elif name == "instance_norm":
        weight, bias, mean, variance, batch_statistics, _, eps = node.args[1:8]
        if not batch_statistics or mean is not None or variance is not None:
            return None
        groups = value.shape[1]
    else:
        return None
    if value.dtype != torch.float32 or before.dtype != torch.float32 or math.prod(value.shape[2:]) % 4:
        return None
    plain = [tensor(part) for part in (weight, bias) if part is not None]
    if any(part is None or part.dtype != torch.float32 or not part.is_contiguous() for part in plain):
        return None
    first, chain = joined_before(source, node)
    start = tensor(first)
    if start is None or not dense(start) or not dense(value):
        return None
    after, mean_node, by_pool = _after(node)
    if by_pool != pooled:
        return None
    return Norm(node, first, chain, after, mean_node, int(groups), weight, bias, float(eps))  # type: ignore[arg-type]


def joined_before(source: fx.Node, node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor that is read, and the pointwise operators from it to the normalisation."""
    chain: list[fx.Node] = []
    here, reader = source, node
    while len(chain) < MAX_CHAIN and here.users.keys() == {reader} and _joins(here, node):
        larger = _large(here)
        if larger is None:
            break
        chain.insert(0, here)
        here, reader = larger, here
    return here, chain


def _after(node: fx.Node) -> tuple[list[fx.Node], fx.Node | None, bool]:
    """Pointwise operators behind the normalisation, the mean behind them, and whether a pool reads the last."""
    chain: list[fx.Node] = []
    here = node
    while len(here.users) == 1:
        user = next(iter(here.users))
        if user.meta.get("segment") != node.meta.get("segment"):
            break
        if _is_mean(user):
            return chain, user, False
        if op_name(user) in POOLS:
            return chain, None, True
        if len(chain) == MAX_CHAIN or not _joins(user, node) or _large(user) is not here:
            break
        chain.append(user)
        here = user
    return chain, None, False


def joined_after(node: fx.Node) -> list[fx.Node]:
    """The pointwise operators from the node on that each alone read the one before."""
    return _after(node)[0]


def _joins(node: fx.Node, norm: fx.Node) -> bool:
    """A float32 pointwise operator over the normalised shape, in the same segment."""
    value, shape = tensor(node), tensor(norm)
    if value is None or shape is None or not is_pointwise(node, "cuda") or op_name(node) == "copy_":
        return False
    same = value.shape == shape.shape and value.dtype == torch.float32 and dense(value)
    return same and node.meta.get("segment") == norm.meta.get("segment")


def _large(node: fx.Node) -> fx.Node | None:
    """The one operand of a pointwise node that has its shape, if the others have a value for each channel or one."""
    out = tensor(node)
    assert out is not None
    found = None
    for operand in node.all_input_nodes:
        value = tensor(operand)
        if value is None or value.dtype != torch.float32:
            return None
        if value.shape == out.shape:
            if found is not None:
                return None
            found = operand
        elif not value.is_contiguous() or (value.numel() != 1 and not _per_channel(value, out)):
            return None
    return found


def _per_channel(value: torch.Tensor, out: torch.Tensor) -> bool:
    shape = (1,) * (out.dim() - value.dim()) + tuple(value.shape)
    return shape == (1, out.shape[1]) + (1,) * (out.dim() - 2)


def _is_mean(node: fx.Node) -> bool:
    """A mean over all dimensions but the first."""
    value = tensor(node.args[0])
    if op_name(node) != "mean" or value is None or node.kwargs or len(node.args) < 2:
        return False
    dims: Any = node.args[1]
    return isinstance(dims, list | tuple) and sorted(dim % value.dim() for dim in dims) == list(range(1, value.dim()))


def bias_of(source: fx.Node) -> fx.Node | None:
    """The bias of a convolution, which its library adds in a pass of its own."""
    if op_name(source) not in CONVOLUTIONS or source.kwargs or len(source.args) < 3 or not is_batched(source):
        return None
    bias = source.args[2]
    value = tensor(bias)
    return bias if isinstance(bias, fx.Node) and value is not None and value.is_contiguous() else None


def chain_of(nodes: list[fx.Node], first: fx.Node, prefix: str, bias: fx.Node | None) -> tuple[Chain, list[fx.Node]]:
    """Pointwise nodes as C++ over one element ``x``, and the tensors that they read besides."""
    start: Value = Value("float", "x")
    tensors: list[fx.Node] = []
    values: dict[fx.Node, Value] = {}

    def operand(node: fx.Node) -> Value:
        if node not in tensors:
            tensors.append(node)
        return Value("float", f"{prefix}{tensors.index(node)}", weight=0)

    if bias is not None:
        start = Value("float", "({0} + {1})", (start, operand(bias)))
    values[first] = start
    write = Expressions(lambda node: values[node] if node in values else operand(node))
    for node in nodes:
        values[node] = write.pointwise(node)
    lines: list[str] = []
    names: dict[int, str] = {}

    def text(value: Value) -> str:
        if not value.args:
            return value.text
        if id(value) not in names:
            parts = [text(part) for part in value.args]
            lines.append(f"const {value.ctype} {prefix}v{len(names)} = {value.text.format(*parts)};")
            names[id(value)] = f"{prefix}v{len(names)}"
        return names[id(value)]

    result = text(values[nodes[-1]] if nodes else start)
    shapes = [tensor(node) for node in tensors]
    each = tuple(value is not None and value.numel() > 1 for value in shapes)
    chain = Chain(tuple(f"{prefix}{i}" for i in range(len(tensors))), each, tuple(lines), result)
    return chain, tensors


def _declared(plan: GroupNormPlan) -> Launcher:
    """The manifest entry."""
    return Launcher(
        name=plan.launcher,
        source=f"{plan.launcher}.cu",
        arguments=[
            argument("x", alignment=16),
            argument("gamma", optional=True),
            argument("beta", optional=True),
            argument("out", role="output", alignment=4 if plan.sums else 16),
            argument("partials", role="inout"),
            argument("counters", torch.int64, "inout"),
            *(argument(name) for name in plan.operands),
        ],
    )


def _mean(rewriter: Rewriter, node: fx.Node, sums: fx.Node, batch: int, count: int) -> fx.Node:
    """The mean from the blocks' sums."""
    out = tensor(node)
    assert out is not None
    flat = rewriter.aten(aten.view.default, sums, [batch, -1], before=node)
    total = rewriter.aten(aten.sum.dim_IntList, flat, [1], before=node)
    mean = rewriter.aten(aten.div.Tensor, total, count, before=node)
    if out.dim() == 1:
        return mean
    return rewriter.aten(aten.view.default, mean, list(out.shape), before=node)
