"""Recipe: attention over short sequences, read where the projections wrote and written as the next layer reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import Gain, New, Recipe, Rewriter, TargetKind, argument
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.places import Operand, place_of
from stitchcuda.recipes.scalar import literal

SOURCE = "small_attention.cu"

MAX_KEYS = 64
SHARED_BYTES = 46 * 1024
"""Shared memory that a block may declare statically, with a margin."""
BLOCKS_PER_MULTIPROCESSOR = 4
"""Heads and samples beyond which the library's tiles use the device better."""
STOCK_SECONDS = 7.7e-6
"""The library's float32 attention over two positions on an H200."""
OWN_SECONDS = 2.5e-6


@dataclass(frozen=True)
class AttentionPlan:
    """Sizes and memory layout of one attention."""

    samples: int
    heads: int
    queries: int
    keys: int
    size: int
    causal: bool
    scale: float
    operands: tuple[Operand, Operand, Operand]
    out: tuple[int, int, int]
    """Strides of the result over sample, head and position."""

    @property
    def threads(self) -> int:
        """One warp for each query, up to four."""
        return 32 * min(4, self.queries)

    @property
    def shared_bytes(self) -> int:
        """Keys, padded, values and queries."""
        return 4 * (self.keys * (2 * self.size + 4) + self.queries * self.size)

    def text(self, name: str) -> str:
        """The plan as C++ and its launcher."""
        lines = [
            f"struct {name}_plan {{",
            f"  static constexpr int SAMPLES = {self.samples}, HEADS = {self.heads}, QUERIES = {self.queries};",
            f"  static constexpr int KEYS = {self.keys}, SIZE = {self.size}, THREADS = {self.threads};",
            f"  static constexpr bool CAUSAL = {'true' if self.causal else 'false'};",
        ]
        for letter, operand in zip("QKV", self.operands, strict=True):
            lines.append(
                f"  static constexpr int {letter}_OFFSET = {operand.offset}, {letter}_SAMPLE = {operand.sample},"
                f" {letter}_HEAD = {operand.head}, {letter}_STEP = {operand.step};"
            )
        sample, head, step = self.out
        lines += [
            f"  static constexpr int O_SAMPLE = {sample}, O_HEAD = {head}, O_STEP = {step};",
            f"  static __device__ __forceinline__ float scale() {{ return {literal(self.scale, 'float')}; }}",
            "};",
            f'extern "C" int {name}(const float* q, const float* k, const float* v, float* out, void* stream) {{',
            f"  return run_small_attention<{name}_plan>(q, k, v, out, stream);",
            "}",
        ]
        return "\n".join(lines)


class SmallAttention(Recipe):
    """Applies to float32 attention without mask or dropout over at most 64 keys, for few heads and samples.

    Permutations and copies between the packed projection and the attention disappear: queries, keys and values are
    read where the projection wrote them, and the result lies as the output projection reads it.
    """

    name: ClassVar[str] = "small_attention"
    title: ClassVar[str] = "Compute attention over short sequences in one kernel without permuting copies"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 38
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every attention that pays."""
        for node in list(rewriter.graph.nodes):
            plan = plan_of(rewriter, node)
            if plan is not None:
                self._rewrite(rewriter, node, plan)

    def _rewrite(self, rewriter: Rewriter, node: fx.Node, plan: AttentionPlan) -> None:
        digest = hashlib.sha256(plan.text("").encode()).hexdigest()[:6]
        name = f"small_attention_{plan.queries}x{plan.keys}x{plan.size}_{digest}"
        if name in rewriter.disabled:
            return
        if name not in rewriter.launchers:
            kernel = files("stitchcuda.recipes").joinpath("templates", SOURCE).read_text()
            text = rewriter.sources.get(SOURCE) or prelude("cuda") + "\n" + kernel
            rewriter.sources[SOURCE] = text + "\n" + plan.text(name) + "\n"
        layouts = []
        for operand in plan.operands:
            value = tensor(operand.base)
            assert value is not None
            layouts.append("contiguous" if value.is_contiguous() else "any")
        inputs = [
            argument(letter, layout=layout, alignment=16)  # type: ignore[arg-type]
            for letter, layout in zip("qkv", layouts, strict=True)
        ]
        launcher = Launcher(name=name, source=SOURCE, arguments=[*inputs, argument("out", role="output", layout="any")])
        shape = (plan.samples, plan.heads, plan.queries, plan.size)
        out = New(shape, torch.float32, (*plan.out, 1))
        bases = [operand.base for operand in plan.operands]
        (result,) = rewriter.launch(launcher, [*bases, out], before=node, name=name)
        copies = _copies_between(node, bases)
        rewriter.replace(node, result)
        moved = sum(8 * value.numel() for copy in copies if (value := tensor(copy)) is not None)
        seconds = STOCK_SECONDS - OWN_SECONDS + len(copies) * rewriter.launch_seconds + moved / rewriter.bandwidth
        what = "attention over a short sequence, without copies around it"
        operators = ("scaled_dot_product_attention", *(op_name(copy) for copy in copies))
        rewriter.add_gain(Gain(self.name, what, seconds, len(copies), moved, operators))


def plan_of(rewriter: Rewriter, node: fx.Node) -> AttentionPlan | None:
    """The plan for an attention node; None for other nodes and where the kernel does not apply or pay."""
    if op_name(node) != "scaled_dot_product_attention":
        return None
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    q, k, v = (tensor(given[name]) for name in names[:3])
    if q is None or k is None or v is None or q.dim() != 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2]:
        return None
    if any(value.dtype != torch.float32 for value in (q, k, v)) or given.get("attn_mask") is not None:
        return None
    if given.get("dropout_p") or given.get("enable_gqa") or q.shape[3] != k.shape[3]:
        return None
    samples, heads, queries, size = q.shape
    keys, causal = k.shape[2], bool(given.get("is_causal"))
    blocks = samples * heads
    small = 0 < keys <= MAX_KEYS and 0 < queries <= MAX_KEYS and 0 < size <= 128 and size % 4 == 0
    if not small or not 0 < blocks <= BLOCKS_PER_MULTIPROCESSOR * rewriter.device.multiprocessors:
        return None
    operands = tuple(place_of(given[name]) for name in names[:3])
    if any(operand is None for operand in operands):
        return None
    scale = given.get("scale")
    plan = AttentionPlan(
        *(samples, heads, queries, keys, size, causal),
        scale=size**-0.5 if scale is None else float(scale),
        operands=operands,  # type: ignore[arg-type]
        out=_out_strides(node, (samples, heads, queries, size)),
    )
    return plan if plan.shared_bytes <= SHARED_BYTES else None


def _out_strides(node: fx.Node, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The layout in which the permutation behind the attention is contiguous, if there is one."""
    order = [0, 1, 2, 3]
    if len(node.users) == 1:
        (user,) = node.users
        if op_name(user) == "permute":
            order = [int(dim) % 4 for dim in user.args[1]]  # type: ignore[union-attr, arg-type]
        elif op_name(user) in ("transpose", "swapaxes"):
            first, second = (int(dim) % 4 for dim in user.args[1:3])  # type: ignore[arg-type]
            order[first], order[second] = order[second], order[first]
    if order[3] != 3:
        order = [0, 1, 2, 3]
    strides = [0, 0, 0, 0]
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return strides[0], strides[1], strides[2]


def _copies_between(node: fx.Node, bases: list[fx.Node]) -> set[fx.Node]:
    """Copying operators between the bases and the attention, which it alone needed."""
    found: set[fx.Node] = set()
    for source in node.all_input_nodes:
        here = source
        while here not in bases and isinstance(here.args[0], fx.Node):
            before, value = tensor(here.args[0]), tensor(here)
            if op_name(here) in ("clone", "contiguous") and before is not None and value is not None:
                found.add(here)
            here = here.args[0]
    return found
