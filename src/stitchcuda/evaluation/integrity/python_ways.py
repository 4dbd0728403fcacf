"""What the ways through a function are made of: the sources of values, and how far a way has been followed.

The following itself is in ``python_paths``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from stitchcuda.evaluation.integrity.python_view import kept

INPUT, FACT, CONSTANT, NARROW = "input", "fact", "constant", "narrow"
COUNT, BEAT, CLOCK, CHANCE = "count", "beat", "clock", "chance"
EARLIER, CHOSEN, FRESH = "earlier:", "chosen:", "unwritten:"
"""What a value is made of: data of this call's inputs, their shapes, fill values, sixteen-bit numbers; a comparison of
a count of calls, its remainder, a clock, a random draw; what lay under a name when the call began, an entry of a
table picked by inputs, memory that nothing wrote."""

HIDDEN = frozenset({COUNT, BEAT, CLOCK, CHANCE})
"""What a call's place in time decides, not what it is given."""

Sources = frozenset[str]

MAX_WAYS = 48
"""More ways than these are followed as one."""

NOTHING: Sources = frozenset()


@dataclass(frozen=True)
class Way:
    """One way through the function, as far as it is followed: what names hold, what was asked, what was filled."""

    names: dict[str, Sources] = field(default_factory=dict)
    asked: Sources = NOTHING
    written: Sources = NOTHING
    lent: Sources = NOTHING
    """Fresh memory that lies under kept names, where a call may find and fill it."""
    read: bool = False
    """Whether anything but the shape and kind of an input was looked at."""
    stirred: bool = False
    """Whether a call may have used inputs that were put into kept memory, and filled other kept memory."""

    def key(self) -> tuple[object, ...]:
        """For telling equal ways."""
        return frozenset(self.names.items()), self.asked, self.written, self.lent, self.stirred, self.read


@dataclass(frozen=True)
class Answer:
    """What one way returns: the sources of each output, all that was asked on the way, and where."""

    node: ast.Return
    outputs: tuple[Sources, ...]
    asked: Sources
    read: bool
    """Whether anything but the shape and kind of an input was looked at."""


def fresh(held: Sources) -> Sources:
    """Those that are memory which nothing wrote when it was made."""
    return frozenset(token for token in held if token.startswith(FRESH))


def from_earlier(held: Sources) -> bool:
    """Whether something that an earlier call left is among them."""
    return any(token.startswith(EARLIER) for token in held)


def bounded(ways: list[Way]) -> list[Way]:
    """Equal ways once; too many as a single one that may be any of them."""
    distinct = list({way.key(): way for way in ways}.values())
    if len(distinct) <= MAX_WAYS:
        return distinct
    names: dict[str, Sources] = {}
    for way in distinct:
        for name, held in way.names.items():
            names[name] = names.get(name, NOTHING) | held
    for name in names:
        if kept(name) and any(name not in way.names for way in distinct):
            names[name] |= {EARLIER + name}
    asked = frozenset.union(*(way.asked for way in distinct))
    written = frozenset.union(*(way.written for way in distinct))
    lent = frozenset.union(*(way.lent for way in distinct))
    read, stirred = any(way.read for way in distinct), any(way.stirred for way in distinct)
    return [Way(names, asked, written, lent, read, stirred)]
