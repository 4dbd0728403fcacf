"""Recipe: sums, means, extremes and norms over all elements, and losses of elements, in one pass over their inputs."""

from __future__ import annotations

from typing import ClassVar

from stitchcuda.recipes.base import Recipe, Rewriter
from stitchcuda.recipes.full_group import fuse_full


class FullReduction(Recipe):
    """Applies to a pointwise chain that ends in a reduction over everything, and to losses with their own formula.

    What eager writes between its operators is never written, and what follows on the single value is computed by the
    block that finishes last. A lone reduction, which eager does in one pass too, is left alone.
    """

    name: ClassVar[str] = "full_reduction"
    title: ClassVar[str] = "Reduce pointwise chains and losses over everything in one pass"
    order: ClassVar[int] = 58
    severable: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Replace every reduction that pays."""
        fuse_full(rewriter, self.name, rows=False)
