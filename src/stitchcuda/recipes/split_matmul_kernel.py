"""Writes the split-float16 product of two operands that change at every call: prints the CUDA source.

For ``recipes.split_matmul``, which decides where it applies. The multiplication itself is the linear layer's, with
batches and a range of K for each block; tilings are chosen there too. Standard library only.
"""

from __future__ import annotations

import math
from pathlib import Path

from stitchcuda.recipes.split_gemm_kernel import MOST_IN_GRID, TEMPLATE, Tiling, settings, splits, tiles

OWN_TEMPLATE = Path(__file__).parent / "templates" / "split_matmul.cu"

KEPT = {"all": 0, "lower": 1, "upper": 2}
"""The launcher's codes for the triangle of the output that is not zero."""

MOST_CHUNKS, LEAST_CHUNK = 64, 512
"""How K is cut where the largest magnitudes are found, as the source has it."""

WHOLE_K = 1024
"""Sums up to which an operand is read once, as the source has it."""

ADAPTED = (
    (
        "  const int first = (int)((long long)k_tiles * blockIdx.z / p.splits);\n"
        "  const int last = (int)((long long)k_tiles * (blockIdx.z + 1) / p.splits);\n",
        "  const Work work = work_of(p, k_tiles);\n  const int first = work.first, last = work.last;\n",
    ),
    (
        "      const int b_tiles = (p.n + TILE - 1) / TILE;\n"
        "      const int b_tile = (int)blockIdx.y < b_tiles ? (int)blockIdx.y : b_tiles - 1;\n",
        "",
    ),
    ("(long long)blockIdx.x * k_tiles", "work.a_tile * k_tiles"),
    ("(long long)b_tile * k_tiles", "work.b_tile * k_tiles"),
    ("(long long)blockIdx.y * k_tiles", "work.b_tile * k_tiles"),
    ("blockIdx.x * TILE", "work.row"),
    ("blockIdx.y * TILE", "work.column"),
    ("store_pair(p, blockIdx.z, ", "store_pair(p, work, "),
    ("split_multiply(const Gemm p)", "split_multiply(const __grid_constant__ Gemm p)"),
)
"""What the multiplication of the linear layer's kernel says about its block, and what it says here."""


def name(chosen: Tiling) -> str:
    """The launcher of a tiling."""
    return f"split_matmul_{chosen.key}"


def supported(batches: int, m: int, n: int, k: int) -> bool:
    """Whether the kernel is written for products of [m, k] and [k, n]."""
    fits = max(m, n, k) < 2**30 and batches * 16 <= MOST_IN_GRID and tiles(n) < MOST_IN_GRID
    return fits and min(batches, m, n, k) >= 1 and batches * max(m * n, m * k, n * k) < 2**37


def parts(batches: int, m: int, n: int, k: int, multiprocessors: int, chosen: Tiling) -> int:
    """In how many parts K is cut; 1 wherever there are several batches, whose blocks fill the device."""
    return splits(m, n, k, multiprocessors, chosen) if batches == 1 else 1


def passes(k: int, along: bool) -> int:
    """How often an operand goes through memory before it is multiplied; ``along``: neighbours along K are neighbours in
    memory."""
    return 2 if k <= WHOLE_K and (along or k > WHOLE_K // 2) else 3


def notes(batches: int, rows: int, k: int, chosen: Tiling) -> int:
    """int32 values that the launcher notes about an operand of ``rows`` by ``k``."""
    least = math.ceil(math.ceil(k / MOST_CHUNKS) / chosen.k_tile) * chosen.k_tile
    chunks = math.ceil(k / max(LEAST_CHUNK, least))
    return batches * (rows * (1 + chunks) + tiles(rows) * math.ceil(k / chosen.k_tile))


def source(chosen: Tiling) -> str:
    """The CUDA source with the launcher.

    ``matmul(a, b, out, a_image, b_image, notes, partials, batches, m, n, k, a_batch_step, a_row_step, a_k_step,
    b_batch_step, b_k_step, b_column_step, splits, kept, diagonal)`` is a · b. Scratch: ``a_image`` and ``b_image``
    hold ``image_halfs`` float16 values a batch (one batch where the step is 0), ``notes`` as many int32 values as
    ``notes()`` says for both, ``partials`` ``splits * batches * m * n`` floats (null when splits is 1).
    """
    text = TEMPLATE.read_text()
    head = _between(text, "#include <cuda_fp16.h>", "struct Split {")
    head += _between(text, "static __device__ __forceinline__ uint32_t packed", "// One block a row")
    multiply = _between(text, "#if SPLIT_GEMM_WGMMA", "static int split(const Split& split")
    for there, here in ADAPTED:
        if there not in multiply:
            raise ValueError(f"the linear layer's kernel no longer says {there.strip()!r}; adapt it anew")
        multiply = multiply.replace(there, here)
    own = OWN_TEMPLATE.read_text().replace("// @HEAD@", head.rstrip()).replace("// @MULTIPLY@", multiply.rstrip())
    return own.replace("// @CONFIG@", settings(chosen)).replace("@MATMUL@", name(chosen))


def _between(text: str, start: str, end: str) -> str:
    """The text from ``start`` up to ``end``."""
    first = text.index(start)
    return text[first : text.index(end, first)]
