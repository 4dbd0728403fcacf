"""Recipe: sums, means and positions of extremes over a dimension that is not the last one."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import Gain, New, Recipe, Rewriter, TargetKind, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.normalise import op_name, tensor

TEMPLATE = Path(__file__).parent / "templates" / "column_reduction.cu"
COLUMNS, PARTS = 64, 4
"""Neighbouring columns of a block, and the parts that it cuts their rows in."""
LARGE = 2**27
"""Bytes of input from which the rate of reading decides."""
SAVED_SHARE = {"argmax": 0.3, "argmin": 0.3, "sum": 0.1, "mean": 0.1}
"""Part of the library's time that should go: its strided reductions read at 70 to 90 percent of the bandwidth."""


class ColumnReduction(Recipe):
    """Applies to large float32 ``sum``, ``mean``, ``argmax`` and ``argmin`` over one dimension with others behind it.

    Neighbouring threads read neighbouring columns, so that every access is coalesced, and hold sixteen loads each:
    reading is bound by memory alone. It is for tensors that fill the device with columns.
    """

    name: ClassVar[str] = "column_reduction"
    title: ClassVar[str] = "Reduce strided dimensions in coalesced columns"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 37
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every reduction that has a kernel."""
        for node in list(rewriter.graph.nodes):
            dim = reduced(node)
            x = tensor(node.args[0]) if dim is not None else None
            if dim is None or x is None or 4 * x.numel() < LARGE:
                continue
            planes, length, inner = math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])
            filled = planes * inner * PARTS >= 1024 * rewriter.device.multiprocessors
            blocks = planes * -(-inner // COLUMNS)
            if length < 8 * PARTS or inner < COLUMNS or not filled or blocks >= 2**31 or length * inner >= 2**40:
                continue
            self._rewrite(rewriter, node, planes, length, inner)

    def _rewrite(self, rewriter: Rewriter, node: fx.Node, planes: int, length: int, inner: int) -> None:
        kind = op_name(node)
        text = source(kind, planes, length, inner)
        name = f"column_{kind}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        out, x = tensor(node), node.args[0]
        assert out is not None
        assert isinstance(x, fx.Node)
        if name in rewriter.disabled:
            return
        arguments = [argument("x"), argument("out", out.dtype, "output")]
        launcher = Launcher(name=name, source=f"{name}.cu", arguments=arguments)
        rewriter.add_source(launcher.source, text.replace("@NAME@", name))
        (result,) = rewriter.launch(launcher, [x, New(tuple(out.shape), out.dtype)], before=node, name=name)
        rewriter.replace(node, result)
        seconds = SAVED_SHARE[kind] * 4 * planes * length * inner / rewriter.bandwidth
        rewriter.add_gain(Gain(self.name, f"{kind} over a strided dimension in columns", seconds, 0, 0, (kind,)))


def reduced(node: fx.Node) -> int | None:
    """The one dimension, not the last, that a float32 reduction runs over; None for other operators."""
    kind, out = op_name(node), tensor(node)
    x = tensor(node.args[0]) if node.args else None
    if kind not in SAVED_SHARE or x is None or out is None or x.dtype != torch.float32 or not dense(x):
        return None
    if len(node.args) < 2 or set(node.kwargs) - {"keepdim"} or not out.is_contiguous() or x.numel() == 0:
        return None
    expected = torch.int64 if kind.startswith("arg") else torch.float32
    dims: Any = node.args[1]
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    if out.dtype != expected or len(dims) != 1:
        return None
    dim = int(dims[0]) % x.dim()
    return dim if dim < x.dim() - 1 else None


def source(kind: str, planes: int, length: int, inner: int) -> str:
    """The CUDA source of ``@NAME@(x, out, stream)``: x [planes, length, inner], out [planes, inner]."""
    index = kind.startswith("arg")
    config = {"LENGTH": length, "INNER": inner, "COLUMNS": COLUMNS, "PARTS": PARTS}
    lines = [f"constexpr int {name} = {value};" for name, value in config.items()]
    lines.append(f"constexpr bool INDEX = {str(index).lower()};")
    lines.append(f"constexpr bool LARGEST = {str(kind != 'argmin').lower()};")
    lines.append(f"constexpr float DIVISOR = {length if kind == 'mean' else 1}.f;")
    text = TEMPLATE.read_text().replace("// @CONFIG@", "\n".join(lines))
    text = text.replace("@OUT@", "int64_t" if index else "float")
    blocks = planes * -(-inner // COLUMNS)
    return text.replace("@BLOCKS@", str(blocks)).replace("@THREADS@", str(COLUMNS * PARTS))
