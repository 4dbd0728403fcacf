"""Writes the kernel of linear layers over few rows: where rows lie, how the work is cut, and the CUDA source.

For ``recipes.skinny_linear``, which decides where it applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import torch

from stitchcuda.recipes.scalar import literal

SOURCE = "skinny_linear.cu"

CHUNK = 128
"""Elements of a weight row that a warp reads at once."""


@dataclass(frozen=True)
class Walk:
    """Where row m of a tensor starts, in elements: ``m / inner * outer_stride + m % inner * inner_stride``."""

    inner: int
    outer_stride: int
    inner_stride: int

    def __call__(self, m: int) -> int:
        return m // self.inner * self.outer_stride + m % self.inner * self.inner_stride

    def text(self, name: str) -> str:
        """A C++ member function."""
        place = f"m / {self.inner} * {self.outer_stride} + m % {self.inner} * {self.inner_stride}"
        return f"  static __device__ __forceinline__ int {name}(int m) {{ return {place}; }}"


@dataclass(frozen=True)
class Norm:
    """The LayerNorm of x's rows that the kernel computes first."""

    eps: float
    gamma: bool
    beta: bool
    keeps: Walk | None
    """Rows of the normalised tensor, where others read it too."""


@dataclass(frozen=True)
class SkinnyPlan:
    """One layer: ``x [rows, k] · weight [columns, k]ᵀ``."""

    rows: int
    columns: int
    k: int
    x: Walk
    out: Walk
    bias: bool
    multiprocessors: int
    residual: Walk | None = None
    norm: Norm | None = None

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
        """Groups of columns in a block, while blocks for all multiprocessors are left; four to share a LayerNorm."""
        groups = -(-self.columns // self.per_warp)
        least = 16 if self.norm else 2 * self.multiprocessors
        count = 1
        while count * self.k_warps < 4 and groups // (2 * count) >= least:
            count *= 2
        return count

    @property
    def blocks(self) -> int:
        """Column tiles."""
        return -(-self.columns // (self.per_warp * self.n_warps))

    @property
    def splits(self) -> int:
        """Blocks that share a column's K."""
        if self.norm:
            return 1
        return max(1, min(-(-2 * self.multiprocessors // self.blocks), self.chunks // self.k_warps, 16))

    def text(self, name: str, finish: list[str]) -> str:
        """The plan as C++ and its launcher; ``finish`` are statements that end in a return of the activation of v."""
        norm = self.norm or Norm(0.0, gamma=False, beta=False, keeps=None)
        flags = {
            "BIAS": self.bias,
            "RESIDUAL": self.residual is not None,
            "NORM": self.norm is not None,
            "GAMMA": norm.gamma,
            "BETA": norm.beta,
            "KEEPS": norm.keeps is not None,
        }
        still = Walk(1, 0, 0)
        tensors = "const float* x, const float* w, const float* bias, const float* gamma, const float* beta"
        lines = [
            f"struct {name}_plan {{",
            f"  static constexpr int M = {self.rows}, N = {self.columns}, K = {self.k};",
            f"  static constexpr int COLUMNS = {self.per_warp}, K_WARPS = {self.k_warps}, N_WARPS = {self.n_warps};",
            f"  static constexpr int SPLITS = {self.splits};",
            "  static constexpr bool " + ", ".join(f"{key} = {str(on).lower()}" for key, on in flags.items()) + ";",
            self.x.text("row"),
            self.out.text("out_row"),
            (self.residual or still).text("residual_row"),
            (norm.keeps or still).text("normal_row"),
            f"  static __device__ __forceinline__ float eps() {{ return {literal(norm.eps, 'float')}; }}",
            "  static __device__ __forceinline__ float finish(float v) {",
            *(f"    {line}" for line in finish),
            "  }",
            "};",
            f'extern "C" int {name}({tensors}, const float* residual, float* out, float* normal, float* partials,',
            "    int* arrived, void* stream) {",
            f"  return run_skinny_linear<{name}_plan>(x, w, bias, gamma, beta, residual, out, normal, partials,",
            "                                        arrived, stream);",
            "}",
        ]
        return "\n".join(lines)


def template() -> str:
    """The kernel's source without plans."""
    return files("stitchcuda.recipes").joinpath("templates", SOURCE).read_text()


def row_starts(x: torch.Tensor) -> list[int] | None:
    """Where each row of a tensor starts, in elements; None when the elements of a row do not follow each other."""
    if x.stride(-1) != 1 and x.shape[-1] != 1:
        return None
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return [int(place) for place in places.flatten()]


def fitted(starts: list[int]) -> Walk | None:
    """The walk that gives these places; None when two levels do not describe them."""
    rows = len(starts)
    for inner in (n for n in range(rows, 0, -1) if rows % n == 0):
        walk = Walk(inner, starts[inner] if inner < rows else 0, starts[1] if inner > 1 else 0)
        shifted = [start - starts[0] for start in starts]
        if starts[0] == 0 and shifted == [walk(m) for m in range(rows)]:
            return walk
    return None
