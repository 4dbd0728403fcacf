"""Recipe: softmax, LayerNorm, RMSNorm and means over trailing dimensions, with their pointwise neighbours."""

from __future__ import annotations

from typing import ClassVar

from stitchcuda.recipes.base import Recipe, Rewriter
from stitchcuda.recipes.fuse import fuse


class RowReduction(Recipe):
    """Applies to reductions over trailing dimensions together with producers and consumers of the same rows.

    One row stays in registers (cuda) or cache (cpu) between the passes, so that memory is read and written once.
    A lone reduction that eager does in one kernel is left alone.
    """

    name: ClassVar[str] = "row_reduction"
    title: ClassVar[str] = "Fuse row reductions (softmax, LayerNorm, RMSNorm, means) with their pointwise neighbours"
    order: ClassVar[int] = 60
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Fuse every group with a reduction that pays."""
        fuse(rewriter, self.name, rows=True)
