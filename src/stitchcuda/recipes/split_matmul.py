"""Recipe: large float32 products of two tensors on the tensor cores, both split into float16 parts at every call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import CallArgument, Gain, New, Recipe, Rewriter, TargetKind, Workspace, argument
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.product_shapes import Product, product_of
from stitchcuda.recipes.split_gemm import REACHED, STOCK_TILE, rates
from stitchcuda.recipes.split_gemm_kernel import TILE, Tiling, tiles, tiling
from stitchcuda.recipes.split_matmul_kernel import KEPT, name, notes, parts, passes, source, supported

WORTH = 1.25
"""Predicted speedup of a product below which the library keeps it."""

RAMP = 3
"""Tiles of K that a block's start and end cost."""

TRIANGLES = {"tril": "lower", "triu": "upper"}


@dataclass(frozen=True)
class Found:
    """A product of the graph, and the triangle of it that is kept."""

    product: Product
    tail: fx.Node
    kept: str = "all"
    diagonal: int = 0


class SplitMatmul(Recipe):
    """Applies to float32 products of tensors that change at every call: mm, bmm, matmul, einsum of two operands.

    Operands are read where they lie, transposed or not. A triangle taken of the product joins it: what lies beyond it
    is not computed. Ranges of K where an operand is zero are left out. Errors stay those of float32.
    """

    name: ClassVar[str] = "split_matmul"
    title: ClassVar[str] = "Run large float32 matrix products on the tensor cores as split float16"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 31

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every product that should gain."""
        if rewriter.precision != "fp32":
            return
        chosen = tiling(rewriter.device.target.arch, rewriter.device.shared_memory_per_block)
        if chosen is None or name(chosen) in rewriter.disabled:
            return
        for node in list(rewriter.graph.nodes):
            product = product_of(node)
            if product is None or not supported(product.batches, product.m, product.n, product.k):
                continue
            found = _with_triangle(product)
            stock, own = seconds(found, rewriter.device, chosen)
            if own * WORTH <= stock:
                _rewrite(rewriter, found, chosen, stock - own)


def _with_triangle(product: Product) -> Found:
    node = product.node
    plain = Found(product, node)
    if len(node.users) != 1:
        return plain
    user = next(iter(node.users))
    if op_name(user) not in TRIANGLES or user.meta.get("segment") != node.meta.get("segment") or user.kwargs:
        return plain
    diagonal = user.args[1] if len(user.args) > 1 else 0
    value = tensor(node)
    assert value is not None
    whole = tuple(value.shape[-2:]) == (product.m, product.n)
    if not isinstance(diagonal, int) or abs(diagonal) >= 2**30 or not whole:
        return plain
    return Found(product, user, TRIANGLES[op_name(user)], diagonal)


def seconds(found: Found, device: Device, chosen: Tiling) -> tuple[float, float]:
    """Predicted time of the library's float32 product and of the split one; infinite where rates are not known."""
    known = rates(device)
    if known is None:
        return 0.0, math.inf
    single, half, bandwidth = known
    p = found.product
    rows, columns = (size if size < 16 else -(-size // STOCK_TILE) * STOCK_TILE for size in (p.m, p.n))
    left, right = 4 * p.a.batches * p.m * p.k, 4 * p.b.batches * p.n * p.k
    images = left * passes(p.k, p.a.k_step == 1) + right * passes(p.k, p.b.k_step == 1)
    out = 4 * p.batches * p.m * p.n
    memory = (left + right + out) / bandwidth
    stock = max(2 * p.batches * rows * columns * p.k / single, memory) + 5e-6
    masked = found.kept != "all"
    if masked:
        stock += 2 * out / bandwidth + 3e-6
    cut = parts(p.batches, p.m, p.n, p.k, device.multiprocessors, chosen)
    blocks = p.batches * tiles(p.m) * tiles(p.n) * cut
    # Half of the tiles of a triangle are left out, but for those on its edge.
    blocks = -(-blocks * 55 // 100) if masked else blocks
    waves = -(-blocks // device.multiprocessors)
    steps = -(-p.k // (cut * chosen.k_tile)) + RAMP
    flop = 6 * waves * device.multiprocessors * TILE * TILE * steps * chosen.k_tile
    multiplied = flop / (REACHED[chosen.wgmma] * half)
    own = images / bandwidth + max(multiplied, memory) + 2 * (cut > 1) * cut * out / bandwidth + 15e-6
    return stock, own


def _rewrite(rewriter: Rewriter, found: Found, chosen: Tiling, saved: float) -> None:
    product = found.product
    launcher = launcher_of(chosen)
    rewriter.add_source(launcher.source, source(chosen))
    b, m, n, k = product.batches, product.m, product.n, product.k
    left, right = product.a, product.b
    cut = parts(b, m, n, k, rewriter.device.multiprocessors, chosen)
    out = tensor(found.tail)
    assert out is not None
    noted = notes(left.batches, m, k, chosen) + notes(right.batches, n, k, chosen)
    given: list[CallArgument] = [
        left.node,
        right.node,
        New(tuple(out.shape)),
        Workspace((left.batches * chosen.image_halfs(m, k),), torch.float16),
        Workspace((right.batches * chosen.image_halfs(n, k),), torch.float16),
        Workspace((noted,), torch.int32),
        Workspace((cut, b, m, n)) if cut > 1 else None,
        b,
        m,
        n,
        k,
        *(left.batch_step, left.row_step, left.k_step),
        *(right.batch_step, right.k_step, right.row_step),
        cut,
        KEPT[found.kept],
        found.diagonal,
    ]
    (result,) = rewriter.launch(launcher, given, before=found.tail, name="split_matmul")
    found.tail.replace_all_uses_with(result)
    for node in dict.fromkeys((found.tail, product.node)):
        rewriter.graph.erase_node(node)
    what = "float32 matrix products as split float16 products on the tensor cores"
    fused = int(found.tail is not product.node)
    rewriter.add_gain(Gain(SplitMatmul.name, what, saved, fused - 2, 0, (op_name(product.node),)))


def launcher_of(chosen: Tiling) -> Launcher:
    """The manifest entry of a tiling."""

    single, half = torch.float32, torch.float16
    arguments = [
        argument("a", single),
        argument("b", single),
        argument("out", single, "output", alignment=16),
        argument("a_image", half, "inout", alignment=16),
        argument("b_image", half, "inout", alignment=16),
        argument("notes", torch.int32, "inout"),
        argument("partials", single, "inout", alignment=16, optional=True),
    ]
    numbers = (
        "batches", "m", "n", "k", "a_batch_step", "a_row_step", "a_k_step", "b_batch_step", "b_k_step",
        "b_column_step", "splits", "kept", "diagonal",
    )  # fmt: skip
    arguments += [argument(label, "int64", scalar=True) for label in numbers]
    return Launcher(name=name(chosen), source=f"{name(chosen)}.cu", arguments=arguments)
