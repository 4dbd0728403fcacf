"""Turn a reduction over everything and what joined it into a kernel, and replace them by a launcher call."""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING

import torch
from torch import fx

from stitchcuda.program.model import Launcher
from stitchcuda.recipes.base import CallArgument, New, Rewriter, Workspace, argument
from stitchcuda.recipes.full_cpu import full_cpu
from stitchcuda.recipes.full_cuda import full_cuda
from stitchcuda.recipes.full_kernel import FullKernel
from stitchcuda.recipes.kernel import Buffer, Kernel, Load, Store, collapse
from stitchcuda.recipes.losses import finish, terms
from stitchcuda.recipes.lower import prelude
from stitchcuda.recipes.normalise import op_name, tensor
from stitchcuda.recipes.rowwise import reduce, row_length, rowwise, trailing
from stitchcuda.recipes.scalar import CTYPES, Expressions, Value

if TYPE_CHECKING:
    from stitchcuda.recipes.full_group import FullGroup


def lower_full(rewriter: Rewriter, group: FullGroup) -> bool:
    """Replace the group by one launcher call; False when the kernel cannot be written."""
    lowering = _Lowering(rewriter, group)
    full = lowering.kernel()
    return full is not None and lowering.replace(full)


class _Lowering:
    def __init__(self, rewriter: Rewriter, group: FullGroup) -> None:
        self.rewriter = rewriter
        self.group = group
        self.values: dict[fx.Node, Value] = {}
        self.loads: dict[tuple[fx.Node, bool], Value] = {}
        """By the tensor and whether it has a value per row, without the dimensions that are reduced."""
        self.scalars: dict[fx.Node, Value] = {}
        self.write = Expressions(lambda node: self._read(node, flat=False))
        self.per_row = Expressions(lambda node: self._read(node, flat=True))

    def _read(self, node: fx.Node, *, flat: bool) -> Value:
        if node in self.values:
            return self.values[node]
        if (node, flat) not in self.loads:
            self.loads[node, flat] = _load(node)
        return self.loads[node, flat]

    def _read_single(self, node: fx.Node) -> Value:
        if node in self.values:
            return self.values[node]
        if node not in self.scalars:
            self.scalars[node] = _load(node)
        return self.scalars[node]

    def kernel(self) -> FullKernel | None:
        """The kernel without a name; None when its memory cannot be walked in one space."""
        group = self.group
        for node in group.producers:
            if group.inner is not None and trailing(node) == group.inner:
                self.values[node] = rowwise(node, self.write, row_length(group.shape, group.inner))
            else:
                self.values[node] = (self.per_row if node in group.flat else self.write).pointwise(node)
        found = terms(group.reduction, self.per_row if group.terms_are_flat else self.write, self.per_row)
        if group.inner is not None and group.reach.inner is None and group.reach.shape == group.shape:
            found = [(kind, reduce(kind, value)) for kind, value in found]
        space = self._space()
        if space is None:
            return None
        shape, steps = space
        buffers = [self._buffer(node, i, steps[i]) for i, (node, _) in enumerate(self.loads)]
        stores = [Store(_single(f"term{i}", torch.float32), value) for i, (_, value) in enumerate(found)]
        for store in stores:
            store.buffer.strides = (0,) * len(shape)
        loads = [Load(buffer, value) for buffer, value in zip(buffers, self.loads.values(), strict=True)]
        kernel = Kernel("KERNEL", shape[:-1], shape[-1], group.inner is not None, buffers, loads, stores)
        totals = [Value(value.ctype, weight=0) for _, value in found]
        count = math.prod(group.reach.shape[: -group.reach.inner] if group.reach.inner else group.reach.shape)
        self.values[group.reduction] = finish(group.reduction, totals, count)
        tail = Expressions(self._read_single)
        for node in group.tail:
            self.values[node] = tail.pointwise(node)
        scalars = [
            Load(_single(f"scalar{i}", _dtype(node), "input"), value)
            for i, (node, value) in enumerate(self.scalars.items())
        ]
        results = [Store(_single(f"out{i}", _dtype(n)), self.values[n]) for i, n in enumerate(group.results)]
        return FullKernel(kernel, [kind for kind, _ in found], totals, scalars, results)

    def _space(self) -> tuple[tuple[int, ...], list[tuple[int, ...]]] | None:
        """The collapsed space and each load's strides over it."""
        group = self.group
        walks = []
        for node, flat in self.loads:
            value = tensor(node)
            assert value is not None
            walk = _walk(value, group.shape, group.inner if flat else 0)
            if walk is None:
                return None
            walks.append(walk)
        if group.inner is not None:
            return collapse(group.shape, walks, group.inner)
        full = [w for w in walks if all(step or n == 1 for step, n in zip(w, group.shape, strict=True))]
        lead = full[0] if full else tuple(-dim for dim in range(len(group.shape)))
        dims = sorted(range(len(group.shape)), key=lambda dim: (-lead[dim], dim))
        return collapse(tuple(group.shape[dim] for dim in dims), [tuple(w[dim] for dim in dims) for w in walks], None)

    def _buffer(self, node: fx.Node, index: int, steps: tuple[int, ...]) -> Buffer:
        value = tensor(node)
        assert value is not None
        offset = int(value.storage_offset()) * value.dtype.itemsize
        return Buffer(f"in{index}", value.dtype, "input", steps, value.is_contiguous(), offset % 16 == 0)

    def replace(self, full: FullKernel) -> bool:
        """Add the source, put the call into the graph and let users of the results read its outputs."""
        rewriter, group = self.rewriter, self.group
        scratch: list[Workspace] = []
        if rewriter.target == "cuda":
            text, blocks = full_cuda(full, rewriter.device.multiprocessors)
            scratch = [Workspace((len(full.kinds) * blocks,), torch.float64), Workspace((1,), torch.int32)]
        else:
            text = full_cpu(full)
        names = [re.sub(r"[^a-z0-9]", "", op_name(node)) for node in group.nodes]
        digest = hashlib.sha256(text.encode()).hexdigest()[:6]
        name = "_".join(["full", *dict.fromkeys(names[-4:]), digest])
        width = full.kernel.vector if rewriter.target == "cuda" else 1
        declared = [
            argument(
                buffer.name,
                buffer.dtype,
                layout="contiguous" if buffer.contiguous else "any",
                alignment=min(16, width * buffer.dtype.itemsize) if buffer.strides[-1] == 1 else None,
            )
            for buffer in full.kernel.buffers
        ]
        declared += [argument(load.buffer.name, load.buffer.dtype) for load in full.scalars]
        declared += [argument(store.buffer.name, store.buffer.dtype, "output") for store in full.results]
        if scratch:
            declared += [argument("partials", torch.float64, "inout"), argument("done", torch.int32, "inout")]
        name = rewriter.launcher_name(name, declared)
        if name in rewriter.disabled:
            return False
        path = f"{name}.{'cu' if rewriter.target == 'cuda' else 'cpp'}"
        rewriter.add_source(path, prelude(rewriter.target) + "\n" + text.replace("KERNEL", name) + "\n")
        given: list[CallArgument] = [*(node for node, _ in self.loads), *self.scalars]
        for node in group.results:
            value = tensor(node)
            assert value is not None
            given.append(New(tuple(value.shape), value.dtype))
        launcher = Launcher(name=name, source=path, arguments=declared)
        outputs = rewriter.launch(launcher, [*given, *scratch], before=group.reduction, name=name)
        for node, item in zip(group.results, outputs, strict=False):
            node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in group.nodes)
        for node in reversed(group.nodes):
            rewriter.graph.erase_node(node)
        return True


def _load(node: fx.Node) -> Value:
    return Value(CTYPES[_dtype(node)], source=node, weight=0)


def _dtype(node: fx.Node) -> torch.dtype:
    value = tensor(node)
    assert value is not None
    return value.dtype


def _single(name: str, dtype: torch.dtype, role: str = "output") -> Buffer:
    return Buffer(name, dtype, "input" if role == "input" else "output", (0,), contiguous=True, aligned=False)


def _walk(value: torch.Tensor, shape: tuple[int, ...], missing: int | None) -> tuple[int, ...] | None:
    """A tensor's strides over a space, 0 where it is broadcast; ``missing`` trailing dimensions are not its own."""
    sizes, strides = tuple(value.shape) + (1,) * (missing or 0), tuple(value.stride()) + (0,) * (missing or 0)
    absent = len(shape) - len(sizes)
    if absent < 0:
        return None
    found = [0] * absent
    for size, step, whole in zip(sizes, strides, shape[absent:], strict=True):
        if size not in (whole, 1):
            return None
        found.append(0 if size == 1 else step)
    return tuple(found)
