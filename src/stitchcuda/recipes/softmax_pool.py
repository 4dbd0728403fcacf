"""Recipe: softmax over channels with the max pools behind it, without writing what is between."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import Gain, New, Recipe, Rewriter, TargetKind, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.epilogue import CONVOLUTIONS, is_batched
from stitchcuda.recipes.normalise import op_name, tensor

TEMPLATE = Path(__file__).parent / "templates" / "softmax_pool.cu"
THREADS = 128
MAX_VALUES = 80
"""Floats of a window's row in all channels: they are in registers at once."""
LARGE = 2**24
"""Bytes of input from which memory decides."""


@dataclass(frozen=True)
class Windows:
    """Softmax over the channels of [batch, channels, *size], then maxima over disjoint windows; three dimensions."""

    batch: int
    channels: int
    size: tuple[int, int, int]
    window: tuple[int, int, int]

    @property
    def supported(self) -> bool:
        """The rows of a window are neighbouring lanes of a warp, and a row's channels fit registers."""
        lanes = 32 % self.window[1] == 0
        fits = self.channels * self.window[2] <= MAX_VALUES and self.channels * math.prod(self.size) < 2**31
        return lanes and fits and min(self.out) > 0 and self.items < 2**31

    @property
    def out(self) -> tuple[int, ...]:
        """Windows in each dimension; what is left over at the ends is dropped."""
        return tuple(size // window for size, window in zip(self.size, self.window, strict=True))

    @property
    def items(self) -> int:
        """Threads."""
        return self.batch * math.prod(self.out) * self.window[1]

    @property
    def read(self) -> int:
        """Floats of one access."""
        return next(width for width in (4, 2, 1) if self.size[2] % width == 0 and self.window[2] % width == 0)

    def source(self) -> str:
        """The CUDA source of ``@NAME@(x, bias, out, stream)``; bias has a value for each channel, or is null."""
        config = {"BATCH": self.batch, "CHANNELS": self.channels, "READ": self.read, "THREADS": THREADS}
        config |= dict(zip(("DEPTH", "HEIGHT", "WIDTH"), self.size, strict=True))
        config |= dict(zip(("WINDOW_D", "WINDOW_H", "WINDOW_W"), self.window, strict=True))
        lines = "\n".join(f"constexpr int {name} = {value};" for name, value in config.items())
        text = TEMPLATE.read_text().replace("// @CONFIG@", lines)
        return text.replace("@BLOCKS@", str(-(-self.items // THREADS))).replace("@THREADS@", str(THREADS))


class SoftmaxPool(Recipe):
    """Applies to large float32 ``max_pool(softmax(x, 1))``, pools of pools included, with windows that do not overlap.

    Pools of pools are one pool with larger windows. The library writes the softmax, and a pool writes the places of
    its maxima too; here x is read once and only the last pool's result is written.
    """

    name: ClassVar[str] = "softmax_pool"
    title: ClassVar[str] = "Pool a softmax over channels without writing it"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 38
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every softmax that is only pooled."""
        for node in list(rewriter.graph.nodes):
            x = tensor(node.args[0]) if node.args else None
            if op_name(node) != "softmax" or x is None or x.dim() not in (4, 5) or len(node.args) < 2:
                continue
            typed = x.dtype == torch.float32 and tensor(node).dtype == torch.float32 and dense(x)  # type: ignore[union-attr]
            if not typed or node.args[1] not in (1, 1 - x.dim()) or 4 * x.numel() < LARGE:
                continue
            pools, window = _pools(node, x.dim() - 2)
            if pools:
                size, full = ([1] * (5 - x.dim()) + list(values) for values in (x.shape[2:], window))
                plan = Windows(x.shape[0], x.shape[1], (size[0], size[1], size[2]), (full[0], full[1], full[2]))
                if plan.supported:
                    self._rewrite(rewriter, node, pools, plan)

    def _rewrite(self, rewriter: Rewriter, node: fx.Node, pools: list[fx.Node], plan: Windows) -> None:
        text = plan.source()
        name = f"softmax_pool_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        x, out = node.args[0], tensor(pools[-1])
        assert isinstance(x, fx.Node)
        assert out is not None
        if name in rewriter.disabled:
            return
        bias = None
        alone = x.users.keys() == {node} and x.meta.get("segment") == node.meta.get("segment")
        if op_name(x) in CONVOLUTIONS and alone and not x.kwargs and len(x.args) > 2 and is_batched(x):
            bias = x.args[2]
            x.args = (*x.args[:2], None, *x.args[3:])
        arguments = [
            argument("x", alignment=4 * plan.read),
            argument("bias", optional=True),
            argument("out", role="output"),
        ]
        launcher = Launcher(name=name, source=f"{name}.cu", arguments=arguments)
        rewriter.add_source(launcher.source, text.replace("@NAME@", name))
        given: list[Any] = [x, bias, New(tuple(out.shape))]
        (result,) = rewriter.launch(launcher, given, before=pools[-1], name=name)
        pools[-1].replace_all_uses_with(result)
        for member in reversed([node, *pools]):
            rewriter.graph.erase_node(member)
        size = 4 * plan.batch * plan.channels * math.prod(plan.size)
        saved = 2 * size + (2 * size if bias is not None else 0)
        seconds = saved / rewriter.bandwidth + len(pools) * rewriter.launch_seconds
        what = "softmax over channels and the max pools behind it in one kernel"
        rewriter.add_gain(Gain(self.name, what, seconds, len(pools), saved, ("softmax", op_name(pools[0]))))


def _pools(node: fx.Node, rank: int) -> tuple[list[fx.Node], list[int]]:
    """The max pools of disjoint windows that alone read each other and the node, and their windows' product."""
    pools: list[fx.Node] = []
    window = [1] * rank
    here = node
    while len(here.users) == 1:
        user = next(iter(here.users))
        kernel = _window(user, rank)
        if kernel is None or user.meta.get("segment") != node.meta.get("segment"):
            break
        pools.append(user)
        window = [a * b for a, b in zip(window, kernel, strict=True)]
        here = user
    return pools, window


def _window(node: fx.Node, rank: int) -> list[int] | None:
    """The window of a max pool without padding whose stride is its window; None for anything else."""
    if op_name(node) != f"max_pool{rank}d" or node.kwargs:
        return None
    defaults: tuple[Any, ...] = (None, None, [], [0], [1], False)
    given: tuple[Any, ...] = (*node.args, *defaults[len(node.args) :])
    kernel, stride, padding, dilation = ([part] if isinstance(part, int) else list(part) for part in given[1:5])
    kernel *= rank // len(kernel)
    stride = stride * (rank // len(stride)) if stride else kernel
    plain = set(padding) == {0} and set(dilation) == {1} and not given[5]
    return kernel if plain and kernel == stride else None
