"""Recipe: linear layers over few rows with their bias and activation, in full float32."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import CallArgument, Gain, New, Recipe, Rewriter, TargetKind, Workspace, argument
from stitchcuda.recipes.fuse import reorder
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.normalise import VIEWS, op_name, tensor
from stitchcuda.recipes.places import FOLLOWED, run
from stitchcuda.recipes.reuse import fixed_nodes
from stitchcuda.recipes.scalar import Expressions, Value, is_pointwise
from stitchcuda.recipes.skinny_linear_kernel import SOURCE, Norm, SkinnyPlan, Walk, fitted, row_starts, template

Layout = Literal["contiguous", "channels_last", "any"]
Role = Literal["input", "output", "inout"]

MAX_ROWS = 32
MAX_WEIGHTS = 4 * 2**20
"""Elements of the weight up to which the library's kernels, made for large products, leave the device waiting."""
MAX_PRODUCTS = 2**26
"""Multiplications beyond which throughput decides instead of latency."""
MAX_NORM = 512
"""Elements of a row that the kernel normalises in registers."""
MAX_NORM_ELEMENTS = 10240
"""Elements of all normalised rows, which every block keeps in shared memory."""
STOCK_SECONDS = 9e-6
"""What the library takes for such a layer (measured on an H200: 4.6 to 9.8 microseconds)."""
OWN_SECONDS = 3e-6


class SkinnyLinear(Recipe):
    """Applies to float32 linear layers over at most 32 rows whose weights are small enough for latency to decide.

    What lies around the layer joins it: a LayerNorm of its input, the activation behind it, and the addition of a
    residual. Rows may be strided on every side, so that transposed tokens are read and written in place.
    """

    name: ClassVar[str] = "skinny_linear"
    title: ClassVar[str] = "Compute linear layers over few rows with a kernel that spreads the weights over all warps"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 40
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every layer that pays."""
        for node in list(rewriter.graph.nodes):
            layer = layer_of(rewriter, node)
            if layer is not None:
                self._rewrite(rewriter, layer)
        reorder(rewriter.graph)

    def _rewrite(self, rewriter: Rewriter, layer: Layer) -> None:
        plan, tail = layer.plan, layer.tail
        finish = statements(layer.node, layer.activations)
        digest = hashlib.sha256(plan.text("", finish).encode()).hexdigest()[:6]
        name = f"skinny_linear_{plan.rows}x{plan.columns}x{plan.k}_{digest}"
        if name in rewriter.disabled:
            return
        if name not in rewriter.launchers:
            text = rewriter.sources.get(SOURCE) or prelude("cuda") + "\n" + template()
            rewriter.sources[SOURCE] = text + "\n" + plan.text(name, finish) + "\n"
        out, split = tensor(tail), plan.splits > 1
        norm = tensor(layer.norm)
        keeps = plan.norm is not None and plan.norm.keeps is not None
        assert out is not None
        given: dict[str, CallArgument] = {
            "x": layer.x,
            "w": layer.weight,
            "bias": layer.bias,
            "gamma": layer.gamma,
            "beta": layer.beta,
            "residual": layer.residual,
            "out": New(tuple(out.shape)),
            "normal": New(tuple(norm.shape)) if keeps and norm is not None else None,
            "partials": Workspace((plan.splits * plan.rows * plan.columns,)) if split else None,
            "arrived": Workspace((plan.blocks,), torch.int32) if split else None,
        }
        arguments = []
        for key, value in given.items():
            known = tensor(value)
            layout: Layout = "any" if known is not None and not known.is_contiguous() else "contiguous"
            role: Role = "input"
            if key in ("out", "normal"):
                role = "output"
            elif key in ("partials", "arrived"):
                role = "inout"
            kind = torch.int32 if key == "arrived" else torch.float32
            wide = key in ("x", "w", "gamma", "beta", "normal")
            optional = key not in ("x", "w", "out")
            arguments.append(
                argument(key, kind, role, layout=layout, alignment=16 if wide else None, optional=optional)
            )
        launcher = Launcher(name=name, source=SOURCE, arguments=arguments)
        result, *kept = rewriter.launch(launcher, list(given.values()), before=tail, name=name)
        if layer.norm is not None and kept:
            layer.norm.replace_all_uses_with(kept[0], delete_user_cb=lambda user: user not in layer.members)
        tail.replace_all_uses_with(result)
        for member in reversed(layer.members):
            if not member.users:
                rewriter.graph.erase_node(member)
        joined = [member for member in layer.members if op_name(member) not in VIEWS | {"linear"}]
        moved = sum(2 * 4 * made.numel() for member in joined if (made := tensor(member)) is not None)
        seconds = STOCK_SECONDS - OWN_SECONDS + len(joined) * rewriter.launch_seconds
        operators = ("linear", *(op_name(member) for member in joined))
        what = "linear layer over few rows, with what lies around it"
        rewriter.add_gain(Gain(self.name, what, seconds, len(joined), moved, operators))


@dataclass(frozen=True)
class Layer:
    """A layer in the graph with what joins it."""

    plan: SkinnyPlan
    node: fx.Node
    activations: list[fx.Node]
    tail: fx.Node
    """What the launch computes."""
    members: list[fx.Node]
    """Every node that the launch replaces, in graph order."""
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    gamma: fx.Node | None = None
    beta: fx.Node | None = None
    residual: fx.Node | None = None
    norm: fx.Node | None = None


def layer_of(rewriter: Rewriter, node: fx.Node) -> Layer | None:
    """The layer of a ``linear`` node; None for other nodes and where the kernel does not apply or pay."""
    if op_name(node) != "linear" or node.kwargs or node in fixed_nodes(rewriter):
        return None
    x_node, weight_node = node.args[:2]
    x, weight, out = tensor(x_node), tensor(weight_node), tensor(node)
    given = node.args[2] if len(node.args) > 2 else None
    bias = tensor(given)
    if x is None or weight is None or out is None or x.dim() < 2 or (given is not None and bias is None):
        return None
    if not isinstance(x_node, fx.Node) or not isinstance(weight_node, fx.Node):
        return None
    everything = [x, weight, out, *([bias] if bias is not None else [])]
    if any(value.dtype != torch.float32 for value in everything) or not out.is_contiguous():
        return None
    columns, k = weight.shape
    rows = x.numel() // k if k else 0
    fits = 0 < rows <= MAX_ROWS and k % 4 == 0 and k >= 32 and columns >= 8
    if not fits or columns * k > MAX_WEIGHTS or rows * columns * k > MAX_PRODUCTS:
        return None
    if not weight.is_contiguous() or weight.storage_offset() % 4 or (bias is not None and not bias.is_contiguous()):
        return None
    starts = row_starts(x)
    walk = fitted(starts) if starts is not None and x.storage_offset() % 4 == 0 else None
    if starts is None or walk is None or any(start % 4 for start in starts):
        return None
    chain = activations(node)
    plan = SkinnyPlan(
        *(rows, columns, k, walk),
        out=Walk(rows, 0, columns),
        bias=bias is not None,
        multiprocessors=rewriter.device.multiprocessors,
    )
    last = chain[-1] if chain else node
    members = [node, *chain]
    layer = Layer(plan, node, chain, last, members, x_node, weight_node, given if isinstance(given, fx.Node) else None)
    return with_norm(rewriter, with_residual(layer))


def with_residual(layer: Layer) -> Layer:
    """The layer with the addition of a tensor of the same shape behind it, through views that reorder its rows."""
    last = layer.tail
    views: list[fx.Node] = []
    while len(last.users) == 1 and op_name(next(iter(last.users))) in FOLLOWED and len(views) < 6:
        (last,) = last.users
        views.append(last)
    if len(last.users) != 1:
        return layer
    (total,) = last.users
    value = tensor(total)
    if op_name(total) != "add" or len(total.all_input_nodes) != 2 or total.kwargs.get("alpha", 1) != 1:
        return layer
    (other,) = [source for source in total.all_input_nodes if source is not last]
    added = tensor(other)
    if value is None or added is None or value.shape != added.shape or not value.is_contiguous():
        return layer
    same = all(n.meta.get("segment") == layer.node.meta.get("segment") for n in (*views, total))
    if added.dtype != torch.float32 or value.dtype != torch.float32 or not same:
        return layer
    rows, columns = layer.plan.rows, layer.plan.columns
    starts = row_starts(added)
    before = tensor(layer.tail)
    if value.shape[-1] != columns or starts is None or before is None:
        return layer
    places = torch.arange(rows * columns).view(before.shape)
    if views:
        places = run(views[-1], layer.tail, places)
    places = places.reshape(rows, columns)
    # places[i] are the elements of the layer's result that row i of the sum holds.
    order = (places[:, 0] // columns).tolist()
    if not torch.equal(places, torch.tensor(order).unsqueeze(1) * columns + torch.arange(columns)):
        return layer
    position = {row: i for i, row in enumerate(order)}
    out = fitted([position[row] * columns for row in range(rows)])
    residual = fitted([starts[position[row]] for row in range(rows)])
    if out is None or residual is None:
        return layer
    return replace(
        layer,
        plan=replace(layer.plan, out=out, residual=residual),
        tail=total,
        members=[*layer.members, *views, total],
        residual=other,
    )


def with_norm(rewriter: Rewriter, layer: Layer) -> Layer:
    """The layer with the LayerNorm whose result it reads, through views that choose or reorder rows."""
    norm = layer.x
    views: list[fx.Node] = []
    while op_name(norm) in FOLLOWED and len(norm.all_input_nodes) == 1 and len(norm.users) == 1 and len(views) < 6:
        views.append(norm)
        norm = norm.all_input_nodes[0]
    k, rows = layer.plan.k, layer.plan.rows
    if op_name(norm) != "layer_norm" or k > MAX_NORM or rows * k > MAX_NORM_ELEMENTS:
        return layer
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given: dict[str, Any] = dict(zip(names, norm.args, strict=False)) | dict(norm.kwargs)
    source, gamma, beta = given["input"], given.get("weight"), given.get("bias")
    value, before = tensor(norm), tensor(source)
    same = norm.meta.get("segment") == layer.node.meta.get("segment")
    if list(given["normalized_shape"]) != [k] or value is None or before is None or not same:
        return layer
    if before.dtype != torch.float32 or not value.is_contiguous() or before.storage_offset() % 4:
        return layer
    scales = [scale for scale in (tensor(gamma), tensor(beta)) if scale is not None]
    if any(s.dtype != torch.float32 or not s.is_contiguous() or s.storage_offset() % 4 for s in scales):
        return layer
    starts = row_starts(before)
    if starts is None or any(start % 4 for start in starts) or _reads(layer.residual, norm):
        return layer
    places = torch.arange(value.numel()).view(value.shape)
    if views:
        places = run(views[0], norm, places)
    places = places.reshape(rows, k)
    order = (places[:, 0] // k).tolist()
    if not torch.equal(places, torch.tensor(order).unsqueeze(1) * k + torch.arange(k)):
        return layer
    others = [user for user in norm.users if user not in [*views, layer.node]]
    if others and len(set(order)) != len(starts):
        return layer
    walk, keeps = fitted([starts[row] for row in order]), fitted([row * k for row in order])
    if walk is None or keeps is None:
        return layer
    details = Norm(
        float(given.get("eps", 1e-5)),
        gamma=gamma is not None,
        beta=beta is not None,
        keeps=keeps if others else None,
    )
    return replace(
        layer,
        plan=replace(layer.plan, x=walk, norm=details),
        members=[norm, *reversed(views), *layer.members],
        x=source,
        gamma=gamma,
        beta=beta,
        norm=norm,
    )


def _reads(node: fx.Node | None, source: fx.Node) -> bool:
    """The node depends on ``source``."""
    pending = [node] if node is not None else []
    seen: set[fx.Node] = set()
    while pending:
        here = pending.pop()
        if here is source:
            return True
        if here not in seen:
            seen.add(here)
            pending += here.all_input_nodes
    return False


def activations(node: fx.Node) -> list[fx.Node]:
    """The operators behind a layer that its result alone decides, each the only reader of the one before."""
    chain: list[fx.Node] = []
    last = node
    while len(last.users) == 1 and len(chain) < 4:
        (user,) = last.users
        value = tensor(user)
        plain = value is not None and value.dtype == torch.float32 and value.is_contiguous()
        same = user.meta.get("segment") == node.meta.get("segment")
        if not plain or not same or user.all_input_nodes != [last] or not is_pointwise(user, "cuda"):
            break
        if op_name(user) in ("copy_", "clone", "contiguous", "to", "_to_copy"):
            break
        chain.append(user)
        last = user
    return chain


def statements(node: fx.Node, chain: list[fx.Node]) -> list[str]:
    """C++ that returns the chain's value for the layer's value ``v``."""
    values: dict[fx.Node, Value] = {node: Value("float", "v")}
    write = Expressions(lambda source: values[source])
    for user in chain:
        values[user] = write.pointwise(user)
    lines: list[str] = []
    names: dict[int, str] = {id(values[node]): "v"}

    def visit(value: Value) -> str:
        if id(value) not in names:
            arguments = [visit(argument) for argument in value.args]
            text = value.text.format(*arguments)
            if not value.args:
                names[id(value)] = text
            else:
                names[id(value)] = f"v{len(lines)}"
                lines.append(f"const {value.ctype} {names[id(value)]} = {text};")
        return names[id(value)]

    last = visit(values[chain[-1] if chain else node])
    return [*lines, f"return {last};"]
