"""Recipe: losses that reduce each row before they reduce the rows (triplets, cosines, divergences of softmaxes)."""

from __future__ import annotations

from typing import ClassVar

from stitchcuda.recipes.base import Recipe, Rewriter
from stitchcuda.recipes.full_group import fuse_full


class RowLosses(Recipe):
    """Applies to a reduction over everything whose terms come from reductions of rows: one kernel for both.

    A row is read once; its value joins the total where it was computed, so that no tensor of rows is written.
    """

    name: ClassVar[str] = "row_losses"
    title: ClassVar[str] = "Reduce rows and then the rows' losses in one pass"
    order: ClassVar[int] = 57
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every loss that pays."""
        fuse_full(rewriter, self.name, rows=True)
