"""Find groups of nodes that become one kernel, judge whether they pay, and put the launcher calls in the graph.

A group shares one iteration space; it may hold reductions over the trailing dimensions. Merging follows producer
to consumer edges and never makes a cycle. What a kernel looks like is in ``kernel``, ``emit_cpu`` and ``emit_cuda``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

from stitchcuda.recipes.base import Gain, Rewriter
from stitchcuda.recipes.lower import lower
from stitchcuda.recipes.normalise import op_name, storage_roots, tensor
from stitchcuda.recipes.reuse import fixed_nodes
from stitchcuda.recipes.rowwise import eager_reads, trailing
from stitchcuda.recipes.scalar import is_pointwise

MAX_TENSORS = 14
"""Tensor arguments of one kernel."""

LAYOUT_VARIES = {"scaled_dot_product_attention"}
"""The result's strides depend on the backend that the device picks, so no kernel can be generated to read it."""


@dataclass(eq=False)
class Group:
    """Nodes that become one kernel: ``shape`` is the iteration space, the last ``inner`` dimensions are rows."""

    nodes: list[fx.Node]
    shape: tuple[int, ...]
    inner: int | None
    segment: int

    def fits(self, node: fx.Node) -> bool:
        """A pointwise node of this shape can be computed in the group's space."""
        value = tensor(node)
        assert value is not None
        shape = tuple(value.shape)
        return shape == self.shape or (self.inner is not None and shape == row_shape(self.shape, self.inner))


def row_shape(shape: tuple[int, ...], inner: int) -> tuple[int, ...]:
    """The shape of one value per row, reduced dimensions kept as 1."""
    return shape[:-inner] + (1,) * inner


def fuse(rewriter: Rewriter, recipe: str, *, rows: bool) -> None:
    """Fuse every group that pays; with ``rows`` only those that hold a reduction, else only those that hold none."""
    for group in find_groups(rewriter, rows=rows):
        if (group.inner is not None) != rows:
            continue
        gain = worth(rewriter, group, recipe)
        if gain is None:
            continue
        if lower(rewriter, group.nodes, group.shape, group.inner):
            reorder(rewriter.graph)
            rewriter.add_gain(gain)


def find_groups(rewriter: Rewriter, *, rows: bool) -> list[Group]:
    """Greedy groups in topological order; what depends on state alone is left to ``prepare()``."""
    nodes = list(rewriter.graph.nodes)
    finder = _Finder(nodes)
    fixed = fixed_nodes(rewriter)
    roots = storage_roots(rewriter.graph)
    for node in nodes:
        if node.op != "call_function" or not node.all_input_nodes or node in fixed:
            continue
        if any(op_name(roots[source]) in LAYOUT_VARIES for source in node.all_input_nodes):
            continue
        inner = trailing(node) if rows else None
        value = tensor(node)
        if inner is not None and value is not None:
            before = tensor(node.args[0])
            assert before is not None
            shape = tuple(before.shape)
            if shape[-inner:].count(1) == inner:
                continue
            finder.add(Group([node], shape, inner, node.meta.get("segment", 0)))
        elif is_pointwise(node, rewriter.target):
            assert value is not None
            finder.add(Group([node], tuple(value.shape), None, node.meta.get("segment", 0)))
    return finder.groups()


class _Finder:
    """Groups so far, and the graph with each group contracted to one unit."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        self.position = {node: i for i, node in enumerate(nodes)}
        self.group_of: dict[fx.Node, Group] = {}

    def groups(self) -> list[Group]:
        unique = {id(group): group for group in self.group_of.values()}
        for group in unique.values():
            group.nodes.sort(key=lambda node: self.position[node])
        return sorted(unique.values(), key=lambda group: self.position[group.nodes[-1]])

    def add(self, new: Group) -> None:
        """Add a one-node group and merge it with the groups of its producers where that is possible."""
        node = new.nodes[0]
        self.group_of[node] = new
        for source in node.all_input_nodes:
            other = self.group_of.get(source)
            mine = self.group_of[node]
            if other is None or other is mine:
                continue
            merged = self._merge(other, mine)
            if merged is not None and self._acyclic(merged):
                for member in merged.nodes:
                    self.group_of[member] = merged

    def _merge(self, first: Group, second: Group) -> Group | None:
        if first.segment != second.segment:
            return None
        if first.inner is None and second.inner is None:
            shape, inner = first.shape, None
        elif first.inner is not None and second.inner is not None:
            if first.shape != second.shape or first.inner != second.inner:
                return None
            shape, inner = first.shape, first.inner
        else:
            leader = first if first.inner is not None else second
            shape, inner = leader.shape, leader.inner
        merged = Group(first.nodes + second.nodes, shape, inner, first.segment)
        for group in (first, second):
            if group.inner is None and not all(merged.fits(member) for member in group.nodes):
                return None
        if inner is not None and not self._placed(merged):
            return None
        outside = {source for member in merged.nodes for source in member.all_input_nodes} - set(merged.nodes)
        results = [m for m in merged.nodes if any(user not in merged.nodes for user in m.users)]
        return merged if len(outside) + len(results) <= MAX_TENSORS else None

    def _placed(self, group: Group) -> bool:
        """A reduction without kept dimensions is read inside the group by nobody: its shape does not align."""
        members = set(group.nodes)
        for node in group.nodes:
            value = tensor(node)
            assert value is not None
            if value.dim() != len(group.shape) and any(user in members for user in node.users):
                return False
        return True

    def _acyclic(self, merged: Group) -> bool:
        """No path leaves the merged group and comes back."""
        members = set(merged.nodes)
        seen: set[fx.Node] = set()
        pending = [user for node in merged.nodes for user in node.users if user not in members]
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            unit: Iterable[fx.Node] = self.group_of[node].nodes if node in self.group_of else (node,)
            for member in unit:
                seen.add(member)
                for user in member.users:
                    if user in members:
                        return False
                    if user not in seen:
                        pending.append(user)
        return True


def worth(rewriter: Rewriter, group: Group, recipe: str) -> Gain | None:
    """The predicted gain of one kernel over eager's operators; None when it does not pay."""
    members = set(group.nodes)
    eager_bytes = eager_launches = 0
    for node in group.nodes:
        result = tensor_bytes(node)
        reads = sum(tensor_bytes(source) for source in node.all_input_nodes)
        if op_name(node) == "copy_":
            reads -= tensor_bytes(node.all_input_nodes[0])
        eager_bytes += reads * eager_reads(node) + result
        eager_launches += eager_reads(node)
    places = {node.args[0] for node in group.nodes if op_name(node) == "copy_"}
    sources = {source for node in group.nodes for source in node.all_input_nodes} - members - places
    results = [node for node in group.nodes if any(user not in members for user in node.users)]
    own_bytes = sum(tensor_bytes(node) for node in results) + sum(tensor_bytes(source) for source in sources)
    saved = eager_bytes - own_bytes
    launches = eager_launches - 1
    if launches < 1 or saved <= 0:
        return None
    if group.inner is not None and not _parallel(rewriter, group):
        return None
    seconds = saved / rewriter.bandwidth + launches * rewriter.launch_seconds
    names = [op_name(node).rstrip("_") for node in group.nodes]
    return Gain(recipe, f"one kernel for {_summary(names)}", seconds, launches, saved, tuple(names))


def _parallel(rewriter: Rewriter, group: Group) -> bool:
    """Rows are the parallel dimension: a few long rows would leave the device idle."""
    assert group.inner is not None
    rows = 1
    for size in group.shape[: -group.inner]:
        rows *= size
    length = 1
    for size in group.shape[-group.inner :]:
        length *= size
    return length <= 16384 or rows >= rewriter.device.multiprocessors


def tensor_bytes(node: fx.Node) -> int:
    """Bytes that reading the whole tensor moves: broadcast dimensions count once."""
    value = tensor(node)
    if value is None:
        return 0
    count = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        count *= 1 if stride == 0 else size
    return count * value.dtype.itemsize


def _summary(names: list[str]) -> str:
    shown = [name for name in names if name != "copy"] or names
    return ", ".join(shown) if len(shown) <= 8 else ", ".join(shown[:7]) + f" and {len(shown) - 7} more"


def reorder(graph: fx.Graph) -> None:
    """Stable topological order within segments, after calls were inserted out of order."""
    nodes = list(graph.nodes)
    rank = {node: (node.op != "placeholder", node.meta.get("segment", 0), i) for i, node in enumerate(nodes)}
    output = nodes[-1]
    waiting = {node: len(node.all_input_nodes) for node in nodes}
    ready = [(rank[node], i, node) for i, node in enumerate(nodes) if waiting[node] == 0 and node is not output]
    heapq.heapify(ready)
    ordered: list[fx.Node] = []
    index = {node: i for i, node in enumerate(nodes)}
    while ready:
        _, _, node = heapq.heappop(ready)
        ordered.append(node)
        for user in node.users:
            waiting[user] -= 1
            if waiting[user] == 0 and user is not output:
                heapq.heappush(ready, (rank[user], index[user], user))
    if len(ordered) != len(nodes) - 1:
        raise AssertionError("fusing made a cycle in the graph")
    for node in ordered:
        output.prepend(node)
