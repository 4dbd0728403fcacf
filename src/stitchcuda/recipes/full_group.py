"""Find what joins a reduction over everything: producers of its terms, reductions of rows, and the tail on its result.

A group becomes one kernel (``full_lower``) that reads its inputs once and writes single values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import fx

from stitchcuda.recipes.base import Gain, Rewriter
from stitchcuda.recipes.full_lower import lower_full
from stitchcuda.recipes.fuse import LAYOUT_VARIES, MAX_TENSORS, reorder, tensor_bytes
from stitchcuda.recipes.losses import ELEMENTS, ROWS, Reach, reach
from stitchcuda.recipes.normalise import op_name, storage_roots, tensor
from stitchcuda.recipes.reuse import fixed_nodes
from stitchcuda.recipes.rowwise import eager_reads, trailing
from stitchcuda.recipes.scalar import is_pointwise

LONGEST_ROW = 16384
"""Elements of a row from which there must be enough rows to fill the device."""


@dataclass
class FullGroup:
    """One reduction over everything with what joins it, in graph order."""

    reduction: fx.Node
    reach: Reach
    shape: tuple[int, ...]
    """The space whose elements are read."""
    inner: int | None = None
    """Trailing dimensions that are reduced to a value per row first."""
    producers: list[fx.Node] = field(default_factory=list)
    flat: set[fx.Node] = field(default_factory=set)
    """Producers with a value per row and without the dimensions that were reduced."""
    tail: list[fx.Node] = field(default_factory=list)

    @property
    def nodes(self) -> list[fx.Node]:
        """All that the kernel replaces."""
        return [*self.producers, self.reduction, *self.tail]

    @property
    def terms_are_flat(self) -> bool:
        """The reduction's operand is without the dimensions that were reduced."""
        return self.inner is not None and len(self.reach.shape) < len(self.shape)

    @property
    def inputs(self) -> set[fx.Node]:
        """Tensors that the kernel reads."""
        members = set(self.nodes)
        return {source for node in self.nodes for source in node.all_input_nodes} - members

    @property
    def results(self) -> list[fx.Node]:
        """Single values that others read."""
        members = set(self.nodes)
        return [node for node in (self.reduction, *self.tail) if any(user not in members for user in node.users)]


def fuse_full(rewriter: Rewriter, recipe: str, *, rows: bool) -> None:
    """Replace every reduction that pays; with ``rows`` those that reduce rows first, else the others."""
    for node in [node for node in rewriter.graph.nodes if reach(node) is not None]:
        found = reach(node) if node in set(rewriter.graph.nodes) else None
        if found is None or (found.inner is not None and not rows):
            continue
        group = _grown(rewriter, node, found, rows=rows)
        if group is None or (group.inner is not None) != rows:
            continue
        gain = _worth(rewriter, group, recipe)
        if gain is not None and lower_full(rewriter, group):
            reorder(rewriter.graph)
            rewriter.add_gain(gain)


def _grown(rewriter: Rewriter, reduction: fx.Node, found: Reach, *, rows: bool) -> FullGroup | None:
    """The group around one reduction; None where its memory cannot be read."""
    nodes = list(rewriter.graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    fixed = fixed_nodes(rewriter)
    roots = storage_roots(rewriter.graph)
    segment = reduction.meta.get("segment", 0)
    if reduction in fixed:
        return None
    group = FullGroup(reduction, found, found.shape, found.inner)
    members = {reduction}
    for node in reversed(nodes[: position[reduction]]):
        if node.op != "call_function" or node in fixed or node.meta.get("segment", 0) != segment:
            continue
        if node.users and all(user in members for user in node.users) and _joins(rewriter, group, node, rows=rows):
            members.add(node)
            group.producers.insert(0, node)
    for node in nodes[position[reduction] + 1 :]:
        value, out = tensor(node), tensor(reduction)
        if value is None or out is None or value.shape != out.shape or node.meta.get("segment", 0) != segment:
            continue
        outside = [source for source in node.all_input_nodes if source not in members]
        ready = all(position[source] < position[reduction] and _is_single(source) for source in outside)
        reads = len(outside) < len(node.all_input_nodes)
        if ready and reads and is_pointwise(node, rewriter.target) and op_name(node) != "copy_":
            members.add(node)
            group.tail.append(node)
    if any(op_name(roots[source]) in LAYOUT_VARIES for source in group.inputs):
        return None
    return group if len(group.inputs) + len(group.results) + 2 <= MAX_TENSORS else None


def _is_single(node: fx.Node) -> bool:
    value = tensor(node)
    return value is not None and value.numel() == 1


def _joins(rewriter: Rewriter, group: FullGroup, node: fx.Node, *, rows: bool) -> bool:
    """The node is computed in the group's space; a first reduction of rows makes the space one of rows."""
    value = tensor(node)
    if value is None:
        return False
    shape = tuple(value.shape)
    count = trailing(node) if rows else None
    if count is not None and reach(node) is None:
        before = tensor(node.args[0])
        assert before is not None
        return _row_reduction(group, node, shape, tuple(before.shape), count)
    if not is_pointwise(node, rewriter.target) or op_name(node) == "copy_":
        return False
    if shape == group.shape:
        return not _read_flat(group, node)
    if group.inner is None:
        return False
    if shape == group.shape[: -group.inner] + (1,) * group.inner:
        return not _read_flat(group, node)
    if shape == group.shape[: -group.inner] and _read_flat_only(group, node):
        group.flat.add(node)
        return True
    return False


def _row_reduction(
    group: FullGroup, node: fx.Node, shape: tuple[int, ...], before: tuple[int, ...], count: int
) -> bool:
    """Whether a reduction of trailing dimensions joins; the first one sets what a row is."""
    if math.prod(before[-count:]) < 2:
        return False
    if group.inner is None:
        if shape != group.shape:
            return False
        if before != shape:
            group.flat |= {each for each in group.producers if len(shape) < len(before)}
        group.shape, group.inner = before, count
    elif before != group.shape or count != group.inner:
        return False
    if len(shape) == len(before):
        return not _read_flat(group, node)
    if not _read_flat_only(group, node):
        return False
    group.flat.add(node)
    return True


def _reads_flat(group: FullGroup, user: fx.Node, node: fx.Node) -> bool:
    """How ``user`` reads ``node``: as a value per row without the reduced dimensions."""
    if user is group.reduction:
        return group.terms_are_flat or node in group.reach.per_row
    return user in group.flat and trailing(user) != group.inner


def _read_flat(group: FullGroup, node: fx.Node) -> bool:
    return any(_reads_flat(group, user, node) for user in node.users)


def _read_flat_only(group: FullGroup, node: fx.Node) -> bool:
    return all(_reads_flat(group, user, node) for user in node.users)


def _worth(rewriter: Rewriter, group: FullGroup, recipe: str) -> Gain | None:
    """The predicted gain over eager's operators; None when it does not pay."""
    moved = launches = 0
    for node in (*group.producers, *group.tail):
        moved += sum(tensor_bytes(s) for s in node.all_input_nodes) * eager_reads(node) + tensor_bytes(node)
        launches += eager_reads(node)
    name = op_name(group.reduction)
    if name in ELEMENTS or name in ROWS:
        passes, more = (ELEMENTS | ROWS)[name]
        width = max(value.dtype.itemsize for s in group.reach.operands if (value := tensor(s)) is not None)
        moved += passes * math.prod(group.reach.shape) * width
        launches += more
    else:
        moved += sum(tensor_bytes(source) for source in group.reduction.all_input_nodes)
        launches += 1
    saved = moved - sum(tensor_bytes(source) for source in group.inputs)
    lone = not group.producers and launches - len(group.tail) < 2
    if lone or saved <= 0:
        return None
    if group.inner is not None and not _parallel(rewriter, group):
        return None
    seconds = saved / rewriter.bandwidth + (launches - 1) * rewriter.launch_seconds
    names = [op_name(node) for node in group.nodes]
    shown = ", ".join(names) if len(names) <= 8 else ", ".join(names[:7]) + f" and {len(names) - 7} more"
    what = f"one pass for {shown} over everything"
    return Gain(recipe, what, seconds, launches - 1, saved, tuple(names))


def _parallel(rewriter: Rewriter, group: FullGroup) -> bool:
    """A few long rows would leave the device idle."""
    assert group.inner is not None
    rows, length = math.prod(group.shape[: -group.inner]), math.prod(group.shape[-group.inner :])
    return length <= LONGEST_ROW or rows >= rewriter.device.multiprocessors
