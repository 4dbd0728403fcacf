"""Recipe: chains of pointwise operators become one pass over memory."""

from __future__ import annotations

from typing import ClassVar

from stitchcuda.recipes.base import Gain, Recipe, Rewriter
from stitchcuda.recipes.fuse import find_groups, fuse, reorder
from stitchcuda.recipes.lower import lower
from stitchcuda.recipes.normalise import op_name


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


class LonePointwise(Recipe):
    """Applies to pointwise operators that stand alone: one pass over memory, as eager has it, so that the program has a
    kernel of its own that is no slower."""

    name: ClassVar[str] = "lone_pointwise"
    title: ClassVar[str] = "Write pointwise operators that stand alone as kernels of their own"
    order: ClassVar[int] = 63
    severable: ClassVar[bool] = True
    last_resort: ClassVar[bool] = True

    def apply(self, rewriter: Rewriter) -> None:
        """Write a kernel for every group of pointwise operators, one of a single operator too."""
        for group in find_groups(rewriter, rows=False):
            names = tuple(op_name(node).rstrip("_") for node in group.nodes)
            if lower(rewriter, group.nodes, group.shape, group.inner):
                reorder(rewriter.graph)
                rewriter.add_gain(Gain(self.name, f"a kernel for {', '.join(names)}", 0.0, 0, 0, names))
