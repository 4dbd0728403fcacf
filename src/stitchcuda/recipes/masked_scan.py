"""Recipe: running sums along the last dimension, with the mask in front of them, in one pass over memory."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import DTYPES, Gain, New, Recipe, Rewriter, TargetKind, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.normalise import op_name, tensor

TEMPLATE = Path(__file__).parent / "templates" / "masked_scan.cu"


class MaskedScan(Recipe):
    """Applies to float32 ``cumsum`` over a last dimension of 512 or more, of ``x`` or of ``x * mask``.

    A multiplication by a mask of bool or bytes is a read of its own in front of the library's scan, and a generated
    scan of a long row is bound by its own barriers; here a row is read once, scanned in registers and written once.
    """

    name: ClassVar[str] = "masked_scan"
    title: ClassVar[str] = "Scan masked rows in registers, in one pass over memory"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 35
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every running sum that has a kernel."""
        for node in list(rewriter.graph.nodes):
            if not _is_row_scan(node):
                continue
            value = tensor(node)
            assert value is not None
            length = value.shape[-1]
            rows = value.numel() // length
            if length < 512 or length % 4 or rows >= 2**31 or rows < rewriter.device.multiprocessors:
                continue
            x, mask = _operands(node)
            first = tensor(x)
            if first is None or not dense(first) or first.shape != value.shape:
                continue
            self._rewrite(rewriter, node, x, mask, rows, length)

    def _rewrite(
        self, rewriter: Rewriter, node: fx.Node, x: fx.Node, mask: fx.Node | None, rows: int, length: int
    ) -> None:
        text = source(rows, length, masked=mask is not None)
        name = f"masked_scan_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        if name in rewriter.disabled:
            return
        flags = tensor(mask)
        kind = DTYPES[flags.dtype] if flags is not None else "bool"
        launcher = Launcher(
            name=name,
            source=f"{name}.cu",
            arguments=[
                argument("x", alignment=16),
                argument("mask", kind, alignment=4, optional=True),
                argument("out", role="output", alignment=16),
            ],
        )
        rewriter.add_source(launcher.source, text.replace("@NAME@", name))
        value = tensor(node)
        assert value is not None
        (result,) = rewriter.launch(launcher, [x, mask, New(tuple(value.shape))], before=node, name=name)
        product = node.args[0]
        rewriter.replace(node, result)
        if mask is not None and isinstance(product, fx.Node) and not product.users:
            rewriter.graph.erase_node(product)
        saved = 2 * 4 * value.numel() if mask is not None else value.numel()
        what = "running sums of masked rows in one pass" if mask is not None else "running sums of rows in one pass"
        gain = Gain(self.name, what, saved / rewriter.bandwidth, int(mask is not None), saved, ("mul", "cumsum"))
        rewriter.add_gain(gain)


def source(rows: int, length: int, *, masked: bool) -> str:
    """The CUDA source of ``@NAME@(x, mask, out, stream)`` on x, out [rows, length] and a mask of bytes or null."""
    threads = 512 if length > 4096 else 128
    config = [f"constexpr int LENGTH = {length};", f"constexpr int THREADS = {threads};"]
    config.append(f"constexpr bool MASKED = {str(masked).lower()};")
    text = TEMPLATE.read_text().replace("// @CONFIG@", "\n".join(config))
    return text.replace("@ROWS@", str(rows)).replace("@THREADS@", str(threads))


def _is_row_scan(node: fx.Node) -> bool:
    value = tensor(node)
    if op_name(node) != "cumsum" or value is None or value.dtype != torch.float32 or value.dim() == 0:
        return False
    before, dim = tensor(node.args[0]), node.args[1]
    given: Any = node.kwargs.get("dtype", node.args[2] if len(node.args) > 2 else None)
    plain = before is not None and before.dtype == torch.float32 and given in (None, torch.float32)
    sized = value.numel() > 0 and math.prod(value.shape) > 0
    return plain and sized and dim in (-1, value.dim() - 1)


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """What is summed, and the mask that it is multiplied by: bool, of the same shape, read by nobody else."""
    product = node.args[0]
    assert isinstance(product, fx.Node)
    same = product.meta.get("segment") == node.meta.get("segment")
    if op_name(product) != "mul" or len(product.users) != 1 or product.kwargs or not same:
        return product, None
    left, right = product.args[:2]
    for x, mask in ((left, right), (right, left)):
        first, flags = tensor(x), tensor(mask)
        if first is None or flags is None or not isinstance(x, fx.Node) or not isinstance(mask, fx.Node):
            continue
        if first.dtype == torch.float32 and flags.dtype == torch.bool and flags.shape == first.shape and dense(flags):
            return x, mask
    return product, None
