"""Recipe: cross entropy over class indices in one launch that reads the logits once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import Gain, New, Recipe, Rewriter, TargetKind, Workspace, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.normalise import op_name, tensor

TEMPLATE = Path(__file__).parent / "templates" / "cross_entropy.cu"
MAX_ITEMS = 8
"""float4 of a thread: a row stays in registers, and the next one too."""
BLOCKS_PER_MULTIPROCESSOR = 4
MEAN, SUM = 1, 2
"""ATen's codes of reductions."""


class CrossEntropy(Recipe):
    """Applies to ``cross_entropy`` of float32 logits [rows, classes] and int64 classes, reduced by mean or sum.

    The library writes all log probabilities and gathers from them in further launches; of a row only the largest
    logit, the sum of exponentials and one logit matter, and the row stays in registers between the two.
    """

    name: ClassVar[str] = "cross_entropy"
    title: ClassVar[str] = "Reduce logits to their cross entropy in one pass"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 36
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every loss that has a kernel."""
        for node in list(rewriter.graph.nodes):
            if op_name(node) != "cross_entropy_loss" or node.kwargs:
                continue
            defaults: tuple[Any, ...] = (None, None, None, MEAN, -100, 0.0)
            given: tuple[Any, ...] = (*node.args, *defaults[len(node.args) :])
            weight, reduction, ignored, smoothing = given[2:6]
            x, target = tensor(node.args[0]), tensor(node.args[1])
            if weight is not None or reduction not in (MEAN, SUM) or smoothing:
                continue
            if x is None or target is None or x.dim() != 2 or x.dtype != torch.float32 or not dense(x):
                continue
            if target.dtype != torch.int64 or target.dim() != 1 or not target.is_contiguous():
                continue
            rows, classes = x.shape
            if not 64 <= classes <= MAX_ITEMS * 4 * 256 or classes % 4 or rows < rewriter.device.multiprocessors:
                continue
            self._rewrite(rewriter, node, rows, classes, int(ignored), mean=reduction == MEAN)

    def _rewrite(self, rewriter: Rewriter, node: fx.Node, rows: int, classes: int, ignored: int, *, mean: bool) -> None:
        blocks = min(rows, BLOCKS_PER_MULTIPROCESSOR * rewriter.device.multiprocessors)
        text = source(rows, classes, blocks, ignored, mean=mean)
        name = f"cross_entropy_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        if name in rewriter.disabled:
            return
        launcher = Launcher(
            name=name,
            source=f"{name}.cu",
            arguments=[
                argument("x", alignment=16),
                argument("target", torch.int64),
                argument("out", role="output"),
                argument("partials", role="inout"),
                argument("done", torch.int32, "inout"),
            ],
        )
        rewriter.add_source(launcher.source, text.replace("@NAME@", name))
        x, target = node.args[:2]
        assert isinstance(x, fx.Node)
        assert isinstance(target, fx.Node)
        scratch = [Workspace((2 * blocks,)), Workspace((1,), torch.int32)]
        (result,) = rewriter.launch(launcher, [x, target, New(()), *scratch], before=node, name=name)
        rewriter.replace(node, result)
        saved = 2 * 4 * rows * classes
        seconds = saved / rewriter.bandwidth + 2 * rewriter.launch_seconds
        what = "cross entropy in one pass over the logits"
        rewriter.add_gain(Gain(self.name, what, seconds, 2, saved, ("cross_entropy_loss",)))


def source(rows: int, classes: int, blocks: int, ignored: int, *, mean: bool) -> str:
    """The CUDA source of ``@NAME@(x, target, out, partials, done, stream)``.

    ``partials`` has two floats for each block; ``done`` is an int32, zero before and after.
    """
    threads = 128 if classes <= 1024 else 256
    config = {
        "ROWS": rows,
        "CLASSES": classes,
        "BLOCKS": blocks,
        "THREADS": threads,
        "ITEMS": -(-classes // (4 * threads)),
    }
    lines = [f"constexpr int {name} = {value};" for name, value in config.items()]
    lines += [f"constexpr int64_t IGNORED = {ignored};", f"constexpr bool MEAN = {str(mean).lower()};"]
    text = TEMPLATE.read_text().replace("// @CONFIG@", "\n".join(lines))
    return text.replace("@BLOCKS@", str(blocks)).replace("@THREADS@", str(threads))
