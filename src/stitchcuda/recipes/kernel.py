"""A fused kernel before it is printed for a target: its iteration space, buffers, values, stages and stores.

The space is ``outer`` dimensions (collapsed as far as all buffers allow) and one ``inner`` dimension, in which
memory is walked. In a row kernel the inner dimension is what reductions run over; a value then belongs to an
element or to the row, and to a stage: the number of reductions that must be finished before it can be computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch

from stitchcuda.recipes.scalar import STORAGE, Value


@dataclass(eq=False)
class Buffer:
    """One tensor argument; strides are in elements, one per collapsed dimension, the inner one last."""

    name: str
    dtype: torch.dtype
    role: Literal["input", "output", "inout"]
    strides: tuple[int, ...]
    contiguous: bool
    """The tensor itself is contiguous, so that the binding can check it."""
    aligned: bool
    """The data pointer is a multiple of 16 bytes."""

    @property
    def storage(self) -> str:
        """The C++ type of its elements."""
        return STORAGE[self.dtype]

    @property
    def per_row(self) -> bool:
        """One element serves a whole inner run."""
        return self.strides[-1] == 0


@dataclass(eq=False)
class Load:
    """A value read from a buffer."""

    buffer: Buffer
    value: Value


@dataclass(eq=False)
class Store:
    """A value written to a buffer."""

    buffer: Buffer
    value: Value


@dataclass
class Kernel:
    """Everything the generators print."""

    name: str
    outer: tuple[int, ...]
    inner: int
    rows: bool
    buffers: list[Buffer]
    loads: list[Load]
    stores: list[Store]
    order: list[Value] = field(default_factory=list)
    """Every value, arguments before users."""

    def __post_init__(self) -> None:
        seen: set[int] = set()

        def visit(value: Value) -> None:
            if id(value) in seen:
                return
            seen.add(id(value))
            for argument in value.args:
                visit(argument)
            self.order.append(value)

        for store in self.stores:
            visit(store.value)
        self._load_of = {id(load.value): load for load in self.loads}
        self._row: dict[int, bool] = {}
        self._stage: dict[int, int] = {}
        for value in self.order:
            load = self._load_of.get(id(value))
            if value.reduction is not None:
                row, stage = True, self._stage[id(value.args[0])] + 1
            elif load is not None:
                row, stage = load.buffer.per_row, 0
            else:
                row = all(self._row[id(argument)] for argument in value.args)
                stage = max((self._stage[id(argument)] for argument in value.args), default=0)
            self._row[id(value)] = row
            self._stage[id(value)] = stage

    @property
    def outer_size(self) -> int:
        """Number of inner runs."""
        return math.prod(self.outer)

    @property
    def stages(self) -> int:
        """Passes over the inner dimension."""
        return max(self._stage[id(store.value)] for store in self.stores) + 1

    def load(self, value: Value) -> Load | None:
        """The load behind a value, None for computed ones."""
        return self._load_of.get(id(value))

    def is_row(self, value: Value) -> bool:
        """The value is the same for the whole inner run."""
        return self._row[id(value)]

    def stage(self, value: Value) -> int:
        """Reductions that must be finished before the value can be computed."""
        return self._stage[id(value)]

    def reductions(self, stage: int) -> list[Value]:
        """Reductions that a pass of this stage finishes."""
        return [value for value in self.order if value.reduction is not None and self.stage(value) == stage + 1]

    def element_stores(self, stage: int) -> list[Store]:
        """Stores of one element each in a pass of this stage."""
        return [s for s in self.stores if not self._store_per_row(s) and self.stage(s.value) == stage]

    def row_stores(self) -> list[Store]:
        """Stores once per inner run."""
        return [store for store in self.stores if self._store_per_row(store)]

    def _store_per_row(self, store: Store) -> bool:
        return self.rows and store.buffer.per_row

    def pass_values(self, stage: int, available: set[int]) -> list[Value]:
        """Element values that a pass of this stage needs, arguments first.

        ``available`` are values (by id) that an earlier pass kept: they are listed, their arguments are not.
        Row values are excluded.
        """
        needed: set[int] = set()
        pending = [store.value for store in self.element_stores(stage)]
        pending += [value.args[0] for value in self.reductions(stage)]
        while pending:
            value = pending.pop()
            if id(value) in needed or self.is_row(value):
                continue
            needed.add(id(value))
            if id(value) not in available:
                pending += value.args
        return [value for value in self.order if id(value) in needed]

    def frontier(self) -> list[Value]:
        """Element values that a later pass reads although an earlier one computed them: worth keeping."""
        computed: set[int] = set()
        crossing: set[int] = set()
        for stage in range(self.stages):
            values = {id(value) for value in self.pass_values(stage, computed)}
            crossing |= values & computed
            computed |= values
        return [value for value in self.order if id(value) in crossing]

    @property
    def vector(self) -> int:
        """Elements that one 16-byte access can move in the inner dimension for every buffer; 1 when it cannot."""
        widest = max(buffer.dtype.itemsize for buffer in self.buffers)
        for width in (16 // widest, 8 // widest, 4 // widest):
            if width > 1 and self.inner % width == 0 and all(_fits(buffer, width) for buffer in self.buffers):
                return width
        return 1


def _fits(buffer: Buffer, width: int) -> bool:
    if buffer.strides[-1] == 0:
        return True
    return buffer.aligned and buffer.strides[-1] == 1 and all(stride % width == 0 for stride in buffer.strides[:-1])


def collapse(
    shape: tuple[int, ...], strides: list[tuple[int, ...]], inner: int | None
) -> tuple[tuple[int, ...], list[tuple[int, ...]]] | None:
    """Merge neighbouring dimensions where every buffer walks them as one.

    ``strides`` has one tuple per buffer, over ``shape``. ``inner`` is the number of trailing dimensions that must
    become one last dimension and stay apart from the others (None: no such demand). Dimensions of size 1 go.
    Returns the new shape and strides, or None when the trailing dimensions cannot become one.
    """

    def merge(dims: list[int]) -> list[tuple[int, list[int]]]:
        groups: list[tuple[int, list[int]]] = []
        for dim in dims:
            if shape[dim] == 1:
                continue
            here = [stride[dim] for stride in strides]
            if groups:
                size, before = groups[-1]
                if all(b == h * shape[dim] for b, h in zip(before, here, strict=True)):
                    groups[-1] = (size * shape[dim], here)
                    continue
            groups.append((shape[dim], here))
        return groups

    count = len(shape)
    if inner is None:
        groups = merge(list(range(count)))
    else:
        tail = merge(list(range(count - inner, count)))
        if len(tail) > 1:
            return None
        groups = merge(list(range(count - inner))) + (tail or [(1, [0] * len(strides))])
    if not groups:
        groups = [(1, [0] * len(strides))]
    return tuple(size for size, _ in groups), [tuple(steps[i] for _, steps in groups) for i in range(len(strides))]
