"""Recipe: linear layers over few rows with their bias and activation, in full float32."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import CallArgument, Gain, New, Recipe, Rewriter, TargetKind, Workspace, argument
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.reuse import fixed_nodes
from stitchcuda.recipes.scalar import Expressions, Value, is_pointwise

SOURCE = "skinny_linear.cu"

MAX_ROWS = 32
MAX_WEIGHTS = 4 * 2**20
"""Elements of the weight up to which the library's kernels, made for large products, leave the device waiting."""
MAX_PRODUCTS = 2**26
"""Multiplications beyond which throughput decides instead of latency."""
CHUNK = 128
"""Elements of a weight row that a warp reads at once."""
STOCK_SECONDS = 9e-6
"""What the library takes for such a layer (measured on an H200: 4.6 to 9.8 microseconds)."""
OWN_SECONDS = 3e-6


@dataclass(frozen=True)
class SkinnyPlan:
    """One layer: ``x [rows, k] · weight [columns, k]ᵀ``; row m of x starts at the m-th index over ``strides``."""

    rows: int
    columns: int
    k: int
    inner: int
    """Rows that follow each other with the second stride."""
    strides: tuple[int, int]
    bias: bool
    multiprocessors: int

    @property
    def chunks(self) -> int:
        """Parts of K that a warp reads at once."""
        return -(-self.k // CHUNK)

    @property
    def per_warp(self) -> int:
        """Columns of a warp: several share what is read of x, where enough warps are left."""
        for count in (4, 2):
            warps = -(-self.columns // count) * self.chunks
            if self.rows * count <= 64 and warps >= 4 * self.multiprocessors:
                return count
        return 1

    @property
    def k_warps(self) -> int:
        """Warps of a block that share a column's K."""
        return min(8, 1 << (self.chunks.bit_length() - 1))

    @property
    def n_warps(self) -> int:
        """Groups of columns in a block, while blocks for all multiprocessors are left."""
        groups = -(-self.columns // self.per_warp)
        count = 1
        while count * self.k_warps < 4 and groups // (2 * count) >= 2 * self.multiprocessors:
            count *= 2
        return count

    @property
    def blocks(self) -> int:
        """Column tiles."""
        return -(-self.columns // (self.per_warp * self.n_warps))

    @property
    def splits(self) -> int:
        """Blocks that share a column's K."""
        return max(1, min(-(-2 * self.multiprocessors // self.blocks), self.chunks // self.k_warps, 16))

    def text(self, name: str, finish: list[str]) -> str:
        """The plan as C++ and its launcher; ``finish`` are statements that end in a return of the activation of v."""
        outer, inner = self.strides
        place = f"m / {self.inner} * {outer} + m % {self.inner} * {inner}"
        lines = [
            f"struct {name}_plan {{",
            f"  static constexpr int M = {self.rows}, N = {self.columns}, K = {self.k};",
            f"  static constexpr int COLUMNS = {self.per_warp}, K_WARPS = {self.k_warps}, N_WARPS = {self.n_warps};",
            f"  static constexpr int SPLITS = {self.splits};",
            f"  static constexpr bool BIAS = {'true' if self.bias else 'false'};",
            f"  static __device__ __forceinline__ int row(int m) {{ return {place}; }}",
            "  static __device__ __forceinline__ float finish(float v) {",
            *(f"    {line}" for line in finish),
            "  }",
            "};",
            f'extern "C" int {name}(const float* x, const float* w, const float* bias, float* out, float* partials,'
            " int* arrived, void* stream) {",
            f"  return run_skinny_linear<{name}_plan>(x, w, bias, out, partials, arrived, stream);",
            "}",
        ]
        return "\n".join(lines)


class SkinnyLinear(Recipe):
    """Applies to float32 linear layers over at most 32 rows whose weights are small enough for latency to decide.

    The activation behind the layer joins it. Rows of x may be strided, so that transposed tokens are read in place.
    """

    name: ClassVar[str] = "skinny_linear"
    title: ClassVar[str] = "Compute linear layers over few rows with a kernel that spreads the weights over all warps"
    targets: ClassVar[frozenset[TargetKind]] = frozenset({"cuda"})
    order: ClassVar[int] = 40
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every layer that pays."""
        for node in list(rewriter.graph.nodes):
            plan = plan_of(rewriter, node)
            if plan is not None:
                self._rewrite(rewriter, node, plan)

    def _rewrite(self, rewriter: Rewriter, node: fx.Node, plan: SkinnyPlan) -> None:
        chain = activations(node)
        finish = statements(node, chain)
        digest = hashlib.sha256(plan.text("", finish).encode()).hexdigest()[:6]
        name = f"skinny_linear_{plan.rows}x{plan.columns}x{plan.k}_{digest}"
        if name in rewriter.disabled:
            return
        tail = chain[-1] if chain else node
        x, weight, bias = node.args[0], node.args[1], node.args[2] if plan.bias else None
        value, out = tensor(x), tensor(tail)
        assert isinstance(x, fx.Node)
        assert isinstance(weight, fx.Node)
        assert bias is None or isinstance(bias, fx.Node)
        assert value is not None
        assert out is not None
        if name not in rewriter.launchers:
            text = rewriter.sources.get(SOURCE) or prelude("cuda") + "\n" + template()
            rewriter.sources[SOURCE] = text + "\n" + plan.text(name, finish) + "\n"
        launcher = Launcher(
            name=name,
            source=SOURCE,
            arguments=[
                argument("x", layout="contiguous" if value.is_contiguous() else "any", alignment=16),
                argument("w", alignment=16),
                argument("bias", optional=True),
                argument("out", role="output"),
                argument("partials", role="inout", optional=True),
                argument("arrived", torch.int32, "inout", optional=True),
            ],
        )
        split = plan.splits > 1
        arguments: list[CallArgument] = [
            x,
            weight,
            bias,
            New(tuple(out.shape)),
            Workspace((plan.splits * plan.rows * plan.columns,)) if split else None,
            Workspace((plan.blocks,), torch.int32) if split else None,
        ]
        (result,) = rewriter.launch(launcher, arguments, before=tail, name=name)
        rewriter.replace(tail, result)
        for left in reversed([node, *chain[:-1]] if chain else []):
            rewriter.graph.erase_node(left)
        moved = 2 * 4 * out.numel() * len(chain)
        seconds = STOCK_SECONDS - OWN_SECONDS + len(chain) * rewriter.launch_seconds
        operators = ("linear", *(op_name(other) for other in chain))
        rewriter.add_gain(
            Gain(self.name, "linear layer over few rows, spread over all warps", seconds, len(chain), moved, operators)
        )


def template() -> str:
    """The kernel's source without plans."""
    return files("stitchcuda.recipes").joinpath("templates", SOURCE).read_text()


def plan_of(rewriter: Rewriter, node: fx.Node) -> SkinnyPlan | None:
    """The plan for a linear layer; None for other nodes and where the kernel does not apply or pay."""
    if op_name(node) != "linear" or node.kwargs or node in fixed_nodes(rewriter):
        return None
    x, weight, out = tensor(node.args[0]), tensor(node.args[1]), tensor(node)
    given = node.args[2] if len(node.args) > 2 else None
    bias = tensor(given)
    if x is None or weight is None or out is None or x.dim() < 2 or (given is not None and bias is None):
        return None
    everything = [x, weight, out, *([bias] if bias is not None else [])]
    if any(value.dtype != torch.float32 for value in everything) or not out.is_contiguous():
        return None
    columns, k = weight.shape
    rows = x.numel() // k if k else 0
    fits = 0 < rows <= MAX_ROWS and k % 4 == 0 and k >= 32 and columns >= 8
    if not fits or columns * k > MAX_WEIGHTS or rows * columns * k > MAX_PRODUCTS:
        return None
    if not weight.is_contiguous() or weight.storage_offset() % 4 or x.storage_offset() % 4:
        return None
    if bias is not None and not bias.is_contiguous():
        return None
    walk = row_strides(x)
    if walk is None:
        return None
    inner, strides = walk
    return SkinnyPlan(rows, columns, k, inner, strides, bias is not None, rewriter.device.multiprocessors)


def row_strides(x: torch.Tensor) -> tuple[int, tuple[int, int]] | None:
    """How rows of a tensor lie: (inner, (outer stride, inner stride)); None when two levels do not describe it."""
    if x.stride(-1) != 1:
        return None
    levels: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        if size == 1:
            continue
        if levels and levels[-1][1] == size * stride:
            levels[-1] = (levels[-1][0] * size, stride)
        else:
            levels.append((size, stride))
    if len(levels) > 2 or any(stride % 4 for _, stride in levels):
        return None
    while len(levels) < 2:
        levels.insert(0, (1, 0))
    return levels[1][0], (levels[0][1], levels[1][1])


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
