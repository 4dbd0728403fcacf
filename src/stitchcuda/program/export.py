"""A Program as others can use it: one KernelBench-style file, or a folder that imports without this package."""

from __future__ import annotations

from stitchcuda.program.export_file import to_kernelbench
from stitchcuda.program.export_package import to_package

__all__ = ["to_kernelbench", "to_package"]
