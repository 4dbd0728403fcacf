"""Recipe: the parts of a concatenation are written where they belong, so that nothing is copied together."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import fx

from stitchcuda.recipes.base import Recipe, Rewriter, joined
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.rowwise import trailing
from stitchcuda.recipes.scalar import is_pointwise

aten = torch.ops.aten


class Concat(Recipe):
    """Applies to ``cat`` when most of its bytes come from pointwise operators or row reductions read by it alone.

    Each part becomes a write into a slice of one buffer; the kernels that compute the parts then take the slice
    as their output. Saves a read and a write of everything.
    """

    name: ClassVar[str] = "concat"
    title: ClassVar[str] = "Write the parts of concatenations straight into their slices"
    order: ClassVar[int] = 50

    def apply(self, rewriter: Rewriter) -> None:
        """Rewrite every concatenation that pays."""
        for node in list(rewriter.graph.nodes):
            out = tensor(node)
            if op_name(node) != "cat" or out is None or not out.is_contiguous():
                continue
            parts: Any = node.args[0]
            dim = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % out.dim()
            values = [tensor(part) for part in parts]
            if any(value is None or value.dtype != out.dtype or value.dim() != out.dim() for value in values):
                continue
            own = sum(
                value.numel()
                for part, value in zip(parts, values, strict=True)
                if value is not None and self._computed(rewriter, part)
            )
            if 2 * own >= out.numel() and len(set(parts)) == len(parts):
                self._rewrite(rewriter, node, parts, dim)

    def _computed(self, rewriter: Rewriter, part: fx.Node) -> bool:
        if len(part.users) != 1 or op_name(part) in ("copy_", "clone", "contiguous"):
            return False
        return is_pointwise(part, rewriter.target) or trailing(part) is not None

    def _rewrite(self, rewriter: Rewriter, node: fx.Node, parts: list[fx.Node], dim: int) -> None:
        out = tensor(node)
        assert out is not None
        buffer = rewriter.aten(
            aten.empty.memory_format,
            list(out.shape),
            dtype=out.dtype,
            device=torch.device("cpu") if rewriter.captured.device == "cpu" else out.device,
            before=node,
        )
        written = []
        start = 0
        for part in parts:
            value = tensor(part)
            assert value is not None
            stop = start + value.shape[dim]
            place = rewriter.aten(aten.slice.Tensor, buffer, dim, start, stop, before=node)
            written.append(rewriter.aten(aten.copy_.default, place, part, before=node))
            start = stop
        with rewriter.graph.inserting_before(node):
            whole = rewriter.graph.call_function(joined, (buffer, *written))
        whole.meta |= {"val": node.meta["val"], "segment": node.meta.get("segment", 0)}
        rewriter.replace(node, whole)
