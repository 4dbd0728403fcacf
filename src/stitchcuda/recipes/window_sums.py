"""Writes the kernel that sums one dimension over several windows while reading it once.

For ``recipes.conv_mean``, which decides where it applies. Standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

THREADS = 256
LATENCY = 6e-7
"""Seconds from a load to its value under load."""
MOST_SUMS = 96
"""Floats of a thread that are summed at once, in registers."""


@dataclass(frozen=True)
class Window:
    """Positions ``first``, ``first + step``, ... below ``end``."""

    first: int
    end: int
    step: int

    def condition(self, length: int) -> str:
        """C++ that is true where position ``i`` of ``length`` lies in the window."""
        parts = [f"i >= {self.first}"] if self.first > 0 else []
        parts += [f"i < {self.end}"] if self.end < length else []
        parts += [f"(i - {self.first}) % {self.step} == 0"] if self.step > 1 else []
        return " && ".join(parts) or "true"


@dataclass(frozen=True)
class WindowSums:
    """Float32 sums of x [outer, length, inner] into out [outer, windows, inner]."""

    outer: int
    length: int
    inner: int
    windows: tuple[Window, ...]

    @classmethod
    def supported(cls, disabled: Collection[str]) -> bool:
        """No launcher of this kind was wrong before."""
        return not any(name.startswith("window_sums") for name in disabled)

    @property
    def fits(self) -> bool:
        """A thread's sums fit its registers, and the threads a 32-bit index."""
        return len(self.windows) * self.vector <= MOST_SUMS and max(self.items, 2 * self.inner) < 2**32 - THREADS

    @property
    def items(self) -> int:
        """Threads: a warp for each row, or one for each pack of neighbouring columns."""
        return self.outer * 32 if self.inner == 1 else self.outer * (self.inner // self.vector)

    @property
    def bytes_per_second(self) -> float:
        """What the threads can read at most, by the bytes that each has on its way at once."""
        in_flight = 4 * 4 if self.inner == 1 else 8 * 4 * self.vector
        return self.items * in_flight / LATENCY

    @property
    def vector(self) -> int:
        """Floats in one access."""
        return next(width for width in (4, 2, 1) if self.inner % width == 0)

    @property
    def launcher(self) -> str:
        """The launcher's name: equal kernels have the same."""
        return f"window_sums_{hashlib.sha256(repr(self).encode()).hexdigest()[:6]}"

    def source(self) -> str:
        """The CUDA source of the kernel and its launcher ``(x, out, stream)``."""
        body = self._rows() if self.inner == 1 else self._columns()
        blocks = -(-self.items // THREADS)
        return "\n".join(
            [
                "#include <cuda_runtime.h>",
                "",
                "#include <cstdint>",
                "",
                f"// Sums of x [{self.outer}, {self.length}, {self.inner}] over windows of its second dimension.",
                f"struct alignas({4 * self.vector}) Pack {{ float at[{self.vector}]; }};",
                "",
                f"__global__ void __launch_bounds__({THREADS}) {self.launcher}_kernel("
                "const float* __restrict__ x, float* __restrict__ out) {",
                *(f"  {line}" if not line.startswith("#") else line for line in body),
                "}",
                "",
                f'extern "C" int {self.launcher}(const float* x, float* out, void* stream) {{',
                f"  {self.launcher}_kernel<<<{blocks}, {THREADS}, 0, static_cast<cudaStream_t>(stream)>>>(x, out);",
                "  return static_cast<int>(cudaGetLastError());",
                "}",
                "",
            ]
        )

    def _columns(self) -> list[str]:
        """A thread for each pack of neighbouring columns."""
        count, width = len(self.windows), self.vector
        per_plane = self.inner // width
        adds = [
            f"  if ({window.condition(self.length)}) sums[{k}][j] += pack.at[j];"
            for k, window in enumerate(self.windows)
            if window.first < window.end
        ]
        return [
            f"const uint32_t item = blockIdx.x * {THREADS}u + threadIdx.x;",
            f"if (item >= {self.outer * per_plane}u) return;",
            f"const uint32_t plane = item / {per_plane}u, column = item % {per_plane}u * {width}u;",
            f"const float* from = x + static_cast<uint64_t>(plane) * {self.length * self.inner}u + column;",
            f"float sums[{count}][{width}] = {{}};",
            "#pragma unroll" if self.length <= 64 else "#pragma unroll 8",
            f"for (int i = 0; i < {self.length}; ++i) {{",
            f"  const Pack pack = *reinterpret_cast<const Pack*>(from + static_cast<uint64_t>(i) * {self.inner}u);",
            "#pragma unroll",
            f"  for (int j = 0; j < {width}; ++j) {{",
            *(f"  {line}" for line in adds),
            "  }",
            "}",
            f"float* to = out + static_cast<uint64_t>(plane) * {count * self.inner}u + column;",
            "#pragma unroll",
            f"for (int k = 0; k < {count}; ++k) {{",
            "  Pack pack;",
            "#pragma unroll",
            f"  for (int j = 0; j < {width}; ++j) pack.at[j] = sums[k][j];",
            f"  *reinterpret_cast<Pack*>(to + static_cast<uint64_t>(k) * {self.inner}u) = pack;",
            "}",
        ]

    def _rows(self) -> list[str]:
        """A warp for each row."""
        count = len(self.windows)
        adds = [
            f"  if ({window.condition(self.length)}) sums[{k}] += value;"
            for k, window in enumerate(self.windows)
            if window.first < window.end
        ]
        return [
            f"const uint32_t row = (blockIdx.x * {THREADS}u + threadIdx.x) / 32u;",
            "const int lane = static_cast<int>(threadIdx.x % 32u);",
            f"if (row >= {self.outer}u) return;",
            f"const float* from = x + static_cast<uint64_t>(row) * {self.length}u;",
            f"float sums[{count}] = {{}};",
            "#pragma unroll 4",
            f"for (int i = lane; i < {self.length}; i += 32) {{",
            "  const float value = from[i];",
            *adds,
            "}",
            "#pragma unroll",
            f"for (int k = 0; k < {count}; ++k) {{",
            "#pragma unroll",
            "  for (int offset = 16; offset > 0; offset >>= 1) "
            "sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], offset);",
            f"  if (lane == 0) out[static_cast<uint64_t>(row) * {count}u + k] = sums[k];",
            "}",
        ]
