"""Recipe: chains of pointwise operators become one pass over memory."""

from __future__ import annotations

from typing import ClassVar

from stitchcuda.recipes.base import Recipe, Rewriter
from stitchcuda.recipes.fuse import fuse


class Pointwise(Recipe):
    """Applies to two or more pointwise operators over one shape, with any broadcast and strided inputs.

    Saves a read and a write of memory and a launch for every operator after the first. A lone operator is left
    to eager, which already does it in one pass.
    """

    name: ClassVar[str] = "pointwise"
    title: ClassVar[str] = "Fuse chains of pointwise operators into one kernel each"
    order: ClassVar[int] = 62
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Fuse every chain that pays."""
        fuse(rewriter, self.name, rows=False)
