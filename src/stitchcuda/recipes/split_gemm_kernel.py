"""Writes the split-float16 matrix product: chooses the tiling for an architecture and prints the CUDA source.

For ``recipes.split_gemm``, which decides where it applies. Standard library only, so that a machine with nothing but
a compiler can check the kernels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

TEMPLATE = Path(__file__).parent / "templates" / "split_gemm.cu"

TILE = 128
"""Rows of x and of w in a block's tile."""

MOST_IN_GRID = 65535
"""Blocks along the grid's second and third dimension."""

ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}
"""The launcher's codes."""


@dataclass(frozen=True)
class Tiling:
    """How the product is cut: the same source serves every size."""

    wgmma: bool
    """Hopper's warpgroup instructions with the bulk copy engine (sm_90a only); else mma.sync with cp.async (sm_80+)."""
    stages: int
    """Tiles of K in flight, in shared memory."""
    k_tile: int = 64
    """Columns of x and w in a tile: 64 or 32."""
    promote: int = 64
    """Columns summed by mma.sync before an addition that rounds; a multiple of ``k_tile``. wgmma adds every tile."""
    cluster: int = 1
    """Blocks that share their tile of x: 1, 2 or 4; wgmma only."""
    round: int = 1
    """Tiles of K between drains of the tensor cores' queue; wgmma only."""
    stream: bool = False
    """Weights that are read once leave L2 first; wgmma only."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        stage = 2 * 2 * TILE * self.k_tile * 2
        return self.stages * stage + (1024 + 16 * self.stages if self.wgmma else 0)

    @property
    def key(self) -> str:
        """Distinguishes the names of tilings' launchers."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:6]

    @property
    def pack(self) -> str:
        """The launcher that splits a weight."""
        return f"split_pack_{self.key}"

    @property
    def linear(self) -> str:
        """The launcher of the product."""
        return f"split_linear_{self.key}"

    def image_halfs(self, rows: int, columns: int) -> int:
        """float16 values of a split operand, hi and lo, padded to tiles."""
        return tiles(rows) * TILE * -(-columns // self.k_tile) * self.k_tile * 2


def tiles(rows: int) -> int:
    """Tiles over rows of an operand."""
    return -(-rows // TILE)


def supported(m: int, n: int, k: int) -> bool:
    """Whether the kernel is written for a product of [m, k] and [n, k]."""
    fits = max(m, n, k, m * n) < 2**31 and tiles(n) < MOST_IN_GRID
    return fits and m >= 1 and n >= 2 and n % 2 == 0 and k >= 8 and k % 8 == 0


def tiling(arch: str, shared_memory: int) -> Tiling | None:
    """The tiling for an architecture such as ``sm_90`` and its shared memory per block in bytes; None if none fits."""
    number = "".join(c for c in arch if c.isdigit())
    if not number or int(number) < 80:
        return None
    if number == "90":
        choice = Tiling(wgmma=True, stages=3, cluster=2)
        if choice.shared_bytes <= shared_memory:
            return choice
    for stages in (6, 5, 4, 3):
        choice = Tiling(wgmma=False, stages=stages, k_tile=32)
        if choice.shared_bytes <= shared_memory:
            return choice
    return None


def splits(m: int, n: int, k: int, multiprocessors: int, chosen: Tiling) -> int:
    """In how many parts K is cut so that the blocks fill the device, one on each multiprocessor at a time."""
    blocks = tiles(m) * tiles(n)
    k_tiles = -(-k // chosen.k_tile)

    def clocks(parts: int) -> float:
        waves = -(-blocks * parts // multiprocessors)
        # A wave costs its tiles and a ramp of about eight; parts are written and read once more.
        return waves * (-(-k_tiles // parts) + 8) + (0 if parts == 1 else parts * m * n / (multiprocessors * 8192) + 8)

    return min((parts for parts in range(1, 17) if parts * 8 <= k_tiles or parts == 1), key=clocks)


def settings(chosen: Tiling) -> str:
    """The constants of a tiling, as the source defines them."""
    config = {"K_TILE": chosen.k_tile, "STAGES": chosen.stages, "CLUSTER": chosen.cluster}
    config |= {"ROUND": chosen.round} if chosen.wgmma else {"PROMOTE_TILES": max(1, chosen.promote // chosen.k_tile)}
    lines = [f"#define SPLIT_GEMM_WGMMA {int(chosen.wgmma)}"]
    if chosen.wgmma:
        lines.append(f"constexpr bool STREAM_WEIGHTS = {str(chosen.stream).lower()};")
    lines += [f"constexpr int {name} = {value};" for name, value in config.items()]
    return "\n".join(lines)


def source(chosen: Tiling) -> str:
    """The CUDA source with both launchers.

    ``pack(w, image, exponents, rows, columns)`` splits a [rows, columns] weight: ``image`` holds
    ``image_halfs(rows, columns)`` float16 values, ``exponents`` ``tiles(rows) * TILE`` int32.
    ``linear(x, w_image, w_exponents, bias, out, x_image, x_rows, partials, m, n, k, splits, activation)`` is
    ``activation(x · wᵀ + bias)`` with scratch ``x_image`` (as above), ``x_rows`` (``2 * tiles(m) * TILE`` int32) and
    ``partials`` (``splits * m * n`` floats, null when splits is 1).
    """
    text = TEMPLATE.read_text().replace("// @CONFIG@", settings(chosen))
    return text.replace("@PACK@", chosen.pack).replace("@LINEAR@", chosen.linear)
