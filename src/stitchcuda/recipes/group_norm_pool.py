"""Recipe: group normalisation whose result is only pooled, in one kernel that never writes what is normalised."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import CallArgument, Gain, New, Recipe, Rewriter, TargetKind, argument
from stitchcuda.recipes.group_norm import LARGE, Norm, bias_of, chain_of, joined_after, norm_of
from stitchcuda.recipes.group_norm_kernel import Chain, chain_function
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.normalise import op_name, tensor

TEMPLATE = Path(__file__).parent / "templates" / "group_norm_pool.cu"
THREADS = 1024
"""One block on a multiprocessor, so that the groups in work stay in the cache between their two passes."""
CACHED_SHARE = 0.75
"""Part of the device's cache that those groups may take."""
SHORTEST_GROUP = 4096
"""Elements that keep a block's threads busy."""


class GroupNormPool(Recipe):
    """Applies to large float32 ``group_norm`` or ``instance_norm`` that a max or average pool alone reads, pointwise
    operators between and around them included.

    The windows must not overlap. Memory is read once and only the pooled result is written; the second reading of
    a group is served by the cache.
    """

    name: ClassVar[str] = "group_norm_pool"
    title: ClassVar[str] = "Normalise groups and pool them without writing what is between"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 25
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every pair that has a kernel."""
        for node in list(rewriter.graph.nodes):
            norm = norm_of(node, pooled=True)
            if norm is not None:
                self._rewrite(rewriter, norm)

    def _rewrite(self, rewriter: Rewriter, norm: Norm) -> None:
        value = tensor(norm.node)
        pool = next(iter((norm.after or [norm.node])[-1].users))
        window = window_of(pool)
        assert value is not None
        if window is None or value.dim() != 4:
            return
        channels, height, width = value.shape[1:]
        row = channels // norm.groups * height * width
        held = 4 * row * rewriter.device.multiprocessors
        if 4 * value.numel() < LARGE or row < SHORTEST_GROUP or held > CACHED_SHARE * rewriter.device.cache_bytes:
            return
        alone = norm.source.users.keys() == {(norm.before or [norm.node])[0]}
        steady = norm.source.meta.get("segment") == norm.node.meta.get("segment")
        bias = bias_of(norm.source) if alone and steady else None
        behind = joined_after(pool)
        before, one = chain_of(norm.before, norm.source, "a", bias)
        after, two = chain_of(norm.after, norm.node, "b", None)
        last, three = chain_of(behind, pool, "c", None)
        affine = (norm.weight is not None, norm.bias is not None)
        shape = (value.shape[0], norm.groups, channels // norm.groups, height, width)
        text = source(shape, window, op_name(pool).startswith("max"), norm.eps, affine, (before, after, last))
        name = f"group_norm_pool_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        if name in rewriter.disabled:
            return
        names = (*before.operands, *after.operands, *last.operands)
        declared = [
            argument("x", alignment=16),
            argument("gamma", optional=True),
            argument("beta", optional=True),
            argument("out", role="output"),
            *(argument(each) for each in names),
        ]
        launcher = Launcher(name=name, source=f"{name}.cu", arguments=declared)
        rewriter.add_source(launcher.source, text.replace("@NAME@", name))
        if bias is not None:
            norm.source.args = (*norm.source.args[:2], None, *norm.source.args[3:])
        end = (behind or [pool])[-1]
        out = tensor(end)
        assert out is not None
        given: list[CallArgument] = [norm.source, norm.weight, norm.bias, New(tuple(out.shape)), *one, *two, *three]
        (result,) = rewriter.launch(launcher, given, before=end, name=name)
        end.replace_all_uses_with(result)
        members = [*norm.before, norm.node, *norm.after, pool, *behind]
        for member in reversed(members):
            rewriter.graph.erase_node(member)
        passes = 3 + 2 * (len(norm.before) + len(norm.after)) + (2 if bias is not None else 0)
        saved = passes * 4 * value.numel()
        seconds = saved / rewriter.bandwidth + (len(members) - 1) * rewriter.launch_seconds
        what = "group normalisation and the pool behind it in one kernel"
        operators = tuple(op_name(member) for member in (norm.node, pool))
        rewriter.add_gain(Gain(self.name, what, seconds, len(members) - 1, saved, operators))


def window_of(pool: fx.Node) -> tuple[int, int] | None:
    """Height and width of a two-dimensional pool's windows, which lie side by side; None for other pools."""
    before, after = tensor(pool.args[0]), tensor(pool)
    if op_name(pool) not in ("max_pool2d", "avg_pool2d") or before is None or after is None or pool.kwargs:
        return None
    kernel, *rest = ([int(n) for n in _pair(each)] if _is_pair(each) else each for each in pool.args[1:])
    stride = rest[0] if rest and rest[0] != [] else kernel
    if not isinstance(kernel, list) or stride != kernel or any(rest[1:] and _odd(op_name(pool), rest[1:])):
        return None
    if after.dtype != torch.float32 or not after.is_contiguous():
        return None
    if tuple(after.shape[2:]) != (before.shape[2] // kernel[0], before.shape[3] // kernel[1]):
        return None
    return (kernel[0], kernel[1]) if kernel[0] * kernel[1] <= 64 else None


def _is_pair(given: Any) -> bool:
    return isinstance(given, list | tuple) and len(given) in (1, 2)


def _pair(given: Any) -> list[int]:
    return list(given) * 2 if len(given) == 1 else list(given)


def _odd(name: str, rest: list[Any]) -> list[bool]:
    """Padding, dilation (of max pools), rounding up, divisors: whether each differs from the default."""
    plain: list[Any] = [[0, 0], [1, 1], False] if name == "max_pool2d" else [[0, 0], False, True, None]
    return [given != usual for given, usual in zip(rest, plain, strict=False)]


def source(
    shape: tuple[int, ...],
    window: tuple[int, int],
    largest: bool,
    eps: float,
    affine: tuple[bool, bool],
    chains: tuple[Chain, Chain, Chain],
) -> str:
    """The CUDA source of ``@NAME@(x, gamma, beta, out, operands..., stream)``.

    ``shape`` is [batch, groups, channels of a group, height, width]; ``chains`` are what comes before the
    normalisation, between it and the pool, and behind the pool.
    """
    batch, groups, group_channels, height, width = shape
    wide = next(n for n in (4, 2, 1) if window[1] % n == 0 and width % n == 0)
    config = {
        "GROUPS": groups,
        "GROUP_CHANNELS": group_channels,
        "HEIGHT": height,
        "WIDTH": width,
        "POOL_HEIGHT": window[0],
        "POOL_WIDTH": window[1],
        "OUT_HEIGHT": height // window[0],
        "OUT_WIDTH": width // window[1],
        "WIDE": wide,
        "THREADS": THREADS,
    }
    flags = {"LARGEST": largest, "GAMMA": affine[0], "BETA": affine[1]}
    lines = [f"constexpr int {name} = {number};" for name, number in config.items()]
    lines += [f"constexpr bool {name} = {str(flag).lower()};" for name, flag in flags.items()]
    lines.append(f"constexpr float EPSILON = {eps!r}f;")
    names = [name for chain in chains for name in chain.operands]
    members = "".join(f"  const float* {name};\n" for name in names)
    functions = [f"struct Operands {{\n{members}}};\n"]
    functions += [
        chain_function(name, name.capitalize(), chain)
        for name, chain in zip(("before", "after", "behind"), chains, strict=True)
    ]
    text = prelude("cuda") + "\n" + TEMPLATE.read_text().replace("// @CONFIG@", "\n".join(lines))
    text = text.replace("// @OPERANDS@", "\n".join(functions)).replace("@BLOCKS@", str(batch * groups))
    text = text.replace("@PARAMETERS@", "".join(f", const float* {name}" for name in names))
    return text.replace("@NAMES@", ", ".join(names)).replace("@THREADS@", str(THREADS))
