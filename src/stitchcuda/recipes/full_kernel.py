"""A kernel that reduces everything to single values, before it is printed for a target.

Its ``kernel`` stores are the terms: nothing is written for them, they are reduced over the whole space. Each total is
kept in double precision from a few terms on, in an order that the launch alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stitchcuda.recipes.kernel import Kernel, Load, Store
from stitchcuda.recipes.scalar import Reduction, Value

IDENTITY = {"sum": "0.0", "max": "-INFINITY", "min": "INFINITY"}


@dataclass
class FullKernel:
    """Everything the generators print; terms, kinds and totals belong together by position."""

    kernel: Kernel
    kinds: list[Reduction]
    totals: list[Value]
    """Leaves that stand for the terms' totals in ``results``."""
    scalars: list[Load]
    """Single values that the tail reads."""
    results: list[Store]
    order: list[Value] = field(default_factory=list)
    """Values of the tail, arguments before users."""

    def __post_init__(self) -> None:
        seen = {id(value) for value in (*self.totals, *(load.value for load in self.scalars))}

        def visit(value: Value) -> None:
            if id(value) not in seen:
                seen.add(id(value))
                for argument in value.args:
                    visit(argument)
                self.order.append(value)

        for store in self.results:
            visit(store.value)

    @property
    def terms(self) -> list[Value]:
        """What is reduced over everything."""
        return [store.value for store in self.kernel.stores]

    def tail(self) -> list[str]:
        """Statements from the doubles ``whole0``, ``whole1``, ... to the results in memory."""
        names: dict[int, str] = {}
        lines = []
        for i, total in enumerate(self.totals):
            names[id(total)] = f"total{i}"
            lines.append(f"const {total.ctype} total{i} = static_cast<{total.ctype}>(whole{i});")
        for load in self.scalars:
            name = f"value_{load.buffer.name}"
            names[id(load.value)] = name
            lines.append(f"const {load.value.ctype} {name} = own::load({load.buffer.name}[0]);")
        for i, value in enumerate(self.order):
            names[id(value)] = f"end{i}"
            text = value.text.format(*(names[id(argument)] for argument in value.args))
            lines.append(f"const {value.ctype} end{i} = {text};")
        for store in self.results:
            lines.append(f"{store.buffer.name}[0] = own::store<{store.buffer.storage}>({names[id(store.value)]});")
        return lines
