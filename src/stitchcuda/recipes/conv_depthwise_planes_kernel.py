"""Writes the stride-1 depthwise convolution in which a thread slides a filter down four columns.

For ``recipes.conv_depthwise_planes``, which decides where it applies. Standard library only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

TEMPLATE = Path(__file__).parent / "templates" / "conv_depthwise_planes.cu"
THREADS = 128
COLUMNS = 4
"""Neighbouring outputs of a thread in a row."""


@dataclass(frozen=True)
class Planes:
    """One convolution of x [batch, channels, height, width] with a filter [channels, 1, taps]."""

    batch: int
    channels: int
    height: int
    width: int
    taps: tuple[int, int]
    padding: tuple[int, int]

    @property
    def out_height(self) -> int:
        """Rows of an output plane."""
        return self.height + 2 * self.padding[0] - self.taps[0] + 1

    @property
    def out_width(self) -> int:
        """Columns of an output plane."""
        return self.width + 2 * self.padding[1] - self.taps[1] + 1

    @property
    def bytes(self) -> int:
        """Memory that input and output take."""
        planes = self.batch * self.channels
        return 4 * planes * (self.height * self.width + self.out_height * self.out_width)

    @property
    def supported(self) -> bool:
        """The window of a thread fits its registers, and its items a 32-bit index."""
        fits = self.taps[0] * (self.taps[1] + COLUMNS - 1) <= 80 and max(self.taps) <= 11
        planes = max(self.height * self.width, self.out_height * self.out_width)
        return fits and min(self.out_height, self.out_width) > 0 and max(self.items + THREADS, planes) < 2**31

    @property
    def rows(self) -> int:
        """Output rows of a thread; more of them read fewer input rows twice."""
        tall = 16 if self.taps[0] * self.taps[1] <= 25 else 8
        return min(tall, self.out_height)

    @property
    def items(self) -> int:
        """Threads that have outputs."""
        return self.batch * self.channels * -(-self.out_height // self.rows) * -(-self.out_width // COLUMNS)

    @property
    def read(self) -> int:
        """Floats in one access to the input."""
        return 4 if self.width % 4 == 0 else 1

    @property
    def write(self) -> int:
        """Floats in one access to the output."""
        return next(width for width in (4, 2, 1) if self.out_width % width == 0)

    @property
    def launcher(self) -> str:
        """The launcher's name: equal kernels have the same."""
        return f"depthwise_planes_{hashlib.sha256(repr(self).encode()).hexdigest()[:6]}"

    def source(self) -> str:
        """The CUDA source with the launcher ``(x, filter, bias, out, stream)``; bias may be null."""
        config = {
            "PLANES": self.batch * self.channels,
            "CHANNELS": self.channels,
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "OUT_HEIGHT": self.out_height,
            "OUT_WIDTH": self.out_width,
            "TAPS_Y": self.taps[0],
            "TAPS_X": self.taps[1],
            "PAD_Y": self.padding[0],
            "PAD_X": self.padding[1],
            "ROWS": self.rows,
            "READ": self.read,
            "WRITE": self.write,
            "THREADS": THREADS,
            "RESIDENT": 5 if self.taps[0] * self.taps[1] <= 15 else 4 if self.taps[0] * self.taps[1] <= 21 else 1,
        }
        lines = "\n".join(f"constexpr int {name} = {value};" for name, value in config.items())
        text = TEMPLATE.read_text().replace("// @CONFIG@", lines).replace("@NAME@", self.launcher)
        return text.replace("@BLOCKS@", str(-(-self.items // THREADS))).replace("@THREADS@", str(THREADS))
