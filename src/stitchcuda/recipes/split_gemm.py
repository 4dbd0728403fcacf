"""Recipe: large float32 linear layers on the tensor cores, each operand split into two float16 parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import fx

from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Argument, Launcher
from stitchcuda.recipes.base import CallArgument, Gain, New, Recipe, Rewriter, TargetKind, Workspace, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.normalise import op_name, storage_roots, tensor
from stitchcuda.recipes.reuse import fixed_nodes
from stitchcuda.recipes.split_gemm_kernel import ACTIVATIONS, TILE, Tiling, source, splits, supported, tiles, tiling

RATES: dict[str, tuple[float, float]] = {"80": (16e12, 250e12), "90": (50e12, 850e12)}
"""Library float32 and peak float16 matrix rates, FLOP/s, where none were measured, by architecture."""

REACHED = {True: 0.58, False: 0.43}
"""Part of the float16 rate that the kernel reaches: with wgmma, and without. Measured on an H200."""

STOCK_TILE = 64
"""Rows that the library's float32 kernels compute at least, from 16 on; measured times are those of 64 to 128."""

WORTH = 1.25
"""Predicted speedup of a layer below which the library keeps it."""


@dataclass(frozen=True)
class Layer:
    """A linear layer of the graph with the activation that joins it."""

    node: fx.Node
    tail: fx.Node
    activation: str
    m: int
    n: int
    k: int


class SplitGemm(Recipe):
    """Applies to float32 linear layers, [m, k] by constant weights [n, k], that are bound by the float32 pipe.

    Weights are split once, in ``prepare()``, into as many bytes as they had; activations at every call. Bias and a
    ReLU or GELU behind the layer join it. Errors stay those of float32; see the kernel's notes.
    """

    name: ClassVar[str] = "split_gemm"
    title: ClassVar[str] = "Run large float32 linear layers on the tensor cores as split float16"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 30

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every linear layer that should gain."""
        if rewriter.precision != "fp32":
            return
        chosen = tiling(rewriter.device.target.arch, rewriter.device.shared_memory_per_block)
        if chosen is None or chosen.linear in rewriter.disabled or chosen.pack in rewriter.disabled:
            return
        for node in list(rewriter.graph.nodes):
            layer = layer_of(rewriter, node)
            if layer is None:
                continue
            stock, own = seconds(layer, rewriter.device, chosen)
            if own * WORTH <= stock:
                _rewrite(rewriter, layer, chosen, stock - own)


def layer_of(rewriter: Rewriter, node: fx.Node) -> Layer | None:
    """The layer at a linear node; None if the kernel does not compute it or its weight is not constant."""
    if op_name(node) != "linear" or node.kwargs:
        return None
    x, w, out = tensor(node.args[0]), tensor(node.args[1]), tensor(node)
    bias = node.args[2] if len(node.args) > 2 else None
    values = [x, w, out] if bias is None else [x, w, out, tensor(bias)]
    if any(value is None or value.dtype != torch.float32 for value in values):
        return None
    assert x is not None
    assert w is not None
    if w.dim() != 2 or x.dim() < 2 or any(value is None or not dense(value) for value in values):
        return None
    weight = node.args[1]
    assert isinstance(weight, fx.Node)
    roots = storage_roots(rewriter.graph)
    written = {roots[target] for other in rewriter.graph.nodes for target in other.meta.get("writes", ())}
    changes = {roots[state] for state in rewriter.captured.mutated} | written
    if weight not in fixed_nodes(rewriter) or roots[weight] in changes:
        return None
    n, k = w.shape
    m = x.numel() // k
    # A bias of one value would be broadcast; the kernel reads one a column.
    if not supported(m, n, k) or (bias is not None and tuple(values[-1].shape) != (n,)):  # type: ignore[union-attr]
        return None
    tail, activation = _activated(node)
    return Layer(node, tail, activation, m, n, k)


def _activated(node: fx.Node) -> tuple[fx.Node, str]:
    if len(node.users) != 1:
        return node, "none"
    user = next(iter(node.users))
    if user.meta.get("segment") != node.meta.get("segment") or len(user.args) != 1:
        return node, "none"
    if op_name(user) == "relu":
        return user, "relu"
    if op_name(user) == "gelu" and user.kwargs.get("approximate", "none") == "none":
        return user, "gelu"
    return node, "none"


def seconds(layer: Layer, device: Device, chosen: Tiling) -> tuple[float, float]:
    """Predicted time of the library's float32 product and of the split one; infinite where rates are not known."""
    known = rates(device)
    if known is None:
        return 0.0, math.inf
    single, half, bandwidth = known
    m, n, k = layer.m, layer.n, layer.k
    memory = 4 * (m * k + n * k + m * n) / bandwidth
    rows = m if m < 16 else -(-m // STOCK_TILE) * STOCK_TILE
    stock = max(2 * rows * n * k / single, memory) + 5e-6
    padded = tiles(m) * tiles(n) * TILE * TILE * k
    parts = splits(m, n, k, device.multiprocessors, chosen)
    waves = tiles(m) * tiles(n) * parts / device.multiprocessors
    idle = -(-tiles(m) * tiles(n) * parts // device.multiprocessors) / waves
    own = max(6 * padded * idle / (REACHED[chosen.wgmma] * half), memory) + 8 * m * k / bandwidth + 12e-6
    return stock, own


def rates(device: Device) -> tuple[float, float, float] | None:
    """Library float32 and peak float16 FLOP/s, and bytes per second; None where they are not known."""
    number = "".join(c for c in device.target.arch if c.isdigit())
    if device.ceilings is not None and {"fp32", "fp16"} <= device.ceilings.flops_per_second.keys():
        single, half = (device.ceilings.flops_per_second[key] for key in ("fp32", "fp16"))
        return single, half, device.ceilings.copy_bytes_per_second
    if number not in RATES:
        return None
    return *RATES[number], 4e12 if number == "90" else 1.3e12


@dataclass(frozen=True)
class Kernels:
    """The source and the manifest entries that a layer is rewritten with."""

    text: str
    pack: Launcher
    linear: Launcher
    more: Mapping[str, fx.Node] = field(default_factory=dict)
    """Arguments of ``linear`` beyond those of every layer."""


def rewrite_layer(rewriter: Rewriter, layer: Layer, chosen: Tiling, kernels: Kernels) -> None:
    """Let the layer's split weight, made once, and one launcher call take its place and its tail's."""
    m, n, k = layer.m, layer.n, layer.k
    weight = layer.node.args[1]
    rewriter.add_source(kernels.pack.source, kernels.text)
    image, exponents = rewriter.launch(
        kernels.pack,
        [
            weight,  # type: ignore[list-item]
            New((chosen.image_halfs(n, k),), torch.float16),
            New((tiles(n) * TILE,), torch.int32),
            n,
            k,
        ],
        before=layer.node,
        name="split_weight",
    )
    parts = splits(m, n, k, rewriter.device.multiprocessors, chosen)
    out = tensor(layer.tail)
    assert out is not None
    values: dict[str, Any] = {
        "x": layer.node.args[0],
        "w_image": image,
        "w_exponents": exponents,
        "bias": layer.node.args[2] if len(layer.node.args) > 2 else None,
        "out": New(tuple(out.shape)),
        "x_image": Workspace((chosen.image_halfs(m, k),), torch.float16),
        "x_rows": Workspace((2 * tiles(m) * TILE,), torch.int32),
        "partials": Workspace((parts, m, n)) if parts > 1 else None,
        "m": m,
        "n": n,
        "k": k,
        "splits": parts,
        "activation": ACTIVATIONS[layer.activation],
        **kernels.more,
    }
    given: list[CallArgument] = [values[declared.name] for declared in kernels.linear.arguments]
    (result,) = rewriter.launch(kernels.linear, given, before=layer.tail, name="split_linear")
    layer.tail.replace_all_uses_with(result)


def _rewrite(rewriter: Rewriter, layer: Layer, chosen: Tiling, saved: float) -> None:
    rewrite_layer(rewriter, layer, chosen, Kernels(source(chosen), *launchers(chosen)))
    for node in dict.fromkeys((layer.tail, layer.node)):
        rewriter.graph.erase_node(node)
    fused = layer.tail is not layer.node
    what = "float32 linear layers as split float16 products on the tensor cores"
    passes = 8 * layer.m * layer.n if fused else 0
    saved += passes / rewriter.bandwidth
    rewriter.add_gain(Gain(SplitGemm.name, what, saved, int(fused) - 1, passes, ("linear",)))


def launchers(chosen: Tiling) -> tuple[Launcher, Launcher]:
    """The manifest entries of a tiling: the split of a weight, and the product."""
    path = f"split_gemm_{chosen.key}.cu"

    def size(name: str) -> Argument:
        return argument(name, "int64", scalar=True)

    def wide(
        name: str, dtype: torch.dtype, role: Literal["input", "output", "inout"], *, optional: bool = False
    ) -> Argument:
        return argument(name, dtype, role, alignment=16, optional=optional)

    single, half, whole = torch.float32, torch.float16, torch.int32
    pack = [
        wide("w", single, "input"),
        wide("image", half, "output"),
        argument("exponents", whole, "output"),
        size("rows"),
        size("columns"),
    ]
    linear = [
        wide("x", single, "input"),
        wide("w_image", half, "input"),
        argument("w_exponents", whole),
        argument("bias", single, optional=True),
        wide("out", single, "output"),
        wide("x_image", half, "inout"),
        argument("x_rows", whole, "inout"),
        wide("partials", single, "inout", optional=True),
        *map(size, ("m", "n", "k", "splits", "activation")),
    ]
    return Launcher(name=chosen.pack, source=path, arguments=pack), Launcher(
        name=chosen.linear, source=path, arguments=linear
    )
