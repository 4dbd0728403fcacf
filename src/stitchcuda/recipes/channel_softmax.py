"""Recipe: softmax over channels with the pointwise operators around it, a thread for each pixel's channels."""

from __future__ import annotations

import hashlib
import math
from typing import ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import CallArgument, Gain, New, Recipe, Rewriter, TargetKind, argument
from stitchcuda.recipes.batch_norm_train import dense
from stitchcuda.recipes.group_norm import chain_of, joined_after, joined_before
from stitchcuda.recipes.group_norm_kernel import Chain, chain_function
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.normalise import op_name, tensor

THREADS = 128
MAX_CHANNELS = 96
"""Values of a pixel: they stay in a thread's registers."""
LARGE = 2**24
"""Bytes of the input from which memory decides."""

KERNEL = """
constexpr int CHANNELS = @CHANNELS@;
constexpr int AREA = @AREA@;

@FUNCTIONS@
// One thread for the channels of one pixel: neighbouring threads read neighbouring pixels.
__global__ void __launch_bounds__(@THREADS@) @NAME@_kernel(
    const float* __restrict__ x, float* __restrict__ out, const Operands given) {
  const uint32_t item = blockIdx.x * @THREADS@u + threadIdx.x;
  if (item >= @ITEMS@u) return;
  const uint64_t start = static_cast<uint64_t>(item / AREA) * CHANNELS * AREA + item % AREA;
  float value[CHANNELS];
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) value[c] = x[start + static_cast<uint64_t>(c) * AREA];
  float top = -INFINITY, sum = 0.f;
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
    value[c] = before(value[c], before_of(given, c));
    top = value[c] > top ? value[c] : top;
  }
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
    value[c] = own::exp(value[c] - top);
    sum += value[c];
  }
#pragma unroll
  for (int c = 0; c < CHANNELS; ++c) {
    out[start + static_cast<uint64_t>(c) * AREA] = after(value[c] / sum, after_of(given, c));
  }
}

extern "C" int @NAME@(const float* x, float* out@PARAMETERS@, void* stream) {
  Operands given = {@NAMES@};
  @NAME@_kernel<<<@BLOCKS@, @THREADS@, 0, static_cast<cudaStream_t>(stream)>>>(x, out, given);
  return static_cast<int>(cudaGetLastError());
}
"""


class ChannelSoftmax(Recipe):
    """Applies to large float32 ``softmax(x, 1)`` over up to 96 channels with at least one pointwise neighbour.

    Eager makes a pass for each operator; here a pixel's channels are read once into registers and written once.
    """

    name: ClassVar[str] = "channel_softmax"
    title: ClassVar[str] = "Fuse softmax over channels with its pointwise neighbours"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 46
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every softmax that has a kernel and neighbours to join."""
        for node in list(rewriter.graph.nodes):
            value = tensor(node)
            if op_name(node) != "softmax" or value is None or value.dim() < 3 or value.dtype != torch.float32:
                continue
            if node.args[1] not in (1, 1 - value.dim()) or not dense(value) or 4 * value.numel() < LARGE:
                continue
            area = math.prod(value.shape[2:])
            fits = value.shape[1] <= MAX_CHANNELS and 32 <= area < 2**31 and value.shape[0] * area < 2**31
            source = node.args[0]
            if not fits or not isinstance(source, fx.Node) or tensor(source).dtype != torch.float32:  # type: ignore[union-attr]
                continue
            first, before = joined_before(source, node)
            after = joined_after(node)
            start = tensor(first)
            if (before or after) and start is not None and dense(start):
                self._rewrite(rewriter, node, first, before, after)

    def _rewrite(
        self, rewriter: Rewriter, node: fx.Node, first: fx.Node, before: list[fx.Node], after: list[fx.Node]
    ) -> None:
        value = tensor(node)
        assert value is not None
        one, read_before = chain_of(before, first, "a", None)
        two, read_after = chain_of(after, node, "b", None)
        text = source(tuple(value.shape), one, two)
        name = f"channel_softmax_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        if name in rewriter.disabled:
            return
        names = (*one.operands, *two.operands)
        arguments = [argument("x"), argument("out", role="output"), *(argument(each) for each in names)]
        launcher = Launcher(name=name, source=f"{name}.cu", arguments=arguments)
        rewriter.add_source(launcher.source, text.replace("@NAME@", name))
        last = (after or [node])[-1]
        given: list[CallArgument] = [first, New(tuple(value.shape)), *read_before, *read_after]
        (result,) = rewriter.launch(launcher, given, before=last, name=name)
        last.replace_all_uses_with(result)
        for member in reversed([*before, node, *after]):
            rewriter.graph.erase_node(member)
        joined = len(before) + len(after)
        saved = 2 * joined * 4 * value.numel()
        seconds = saved / rewriter.bandwidth + joined * rewriter.launch_seconds
        what = "softmax over channels with the operators around it"
        rewriter.add_gain(Gain(self.name, what, seconds, joined, saved, ("softmax",)))


def source(shape: tuple[int, ...], before: Chain, after: Chain) -> str:
    """The CUDA source of ``@NAME@(x, out, operands..., stream)`` over [batch, channels, ...]."""
    names = (*before.operands, *after.operands)
    members = "".join(f"  const float* {name};\n" for name in names)
    functions = f"struct Operands {{\n{members}}};\n\n" + chain_function("before", "Before", before)
    functions += "\n" + chain_function("after", "After", after)
    area = math.prod(shape[2:])
    values = {
        "CHANNELS": shape[1],
        "AREA": area,
        "ITEMS": shape[0] * area,
        "BLOCKS": -(-shape[0] * area // THREADS),
        "THREADS": THREADS,
        "FUNCTIONS": functions,
        "PARAMETERS": "".join(f", const float* {name}" for name in names),
        "NAMES": ", ".join(names),
    }
    text = prelude("cuda") + KERNEL
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    return text
