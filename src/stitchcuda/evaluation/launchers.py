"""A Program's own launchers inside the runner: put out of action, or counted. torch and the standard library only; the
runner loads it by path. What is counted is telemetry, which only ever lowers a verdict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType

PREFIX = "_c_"
"""Before the names of the C functions in the generated bindings."""

Counts = dict[str, list[int]]
"""By launcher: how often it said that all is well, and how often not."""


def knock_out(bindings: ModuleType) -> None:
    """Put launchers that do nothing in place of the Program's, before it can take hold of them."""
    for name in _names(bindings):
        setattr(bindings, name, lambda *_: 0)


def count(bindings: ModuleType | None) -> Counts:
    """Count launches from now on, before the Program can take hold of its launchers: no call looks different from any
    other to it. Costs a launch a tenth of a microsecond or two."""
    counts: Counts = {}

    def counting(name: str, launch: Callable[..., int]) -> Callable[..., int]:
        count = counts.setdefault(name.removeprefix(PREFIX), [0, 0])

        def call(*arguments: object) -> int:
            code = launch(*arguments)
            count[bool(code)] += 1
            return code

        return call

    for name in _names(bindings):
        setattr(bindings, name, counting(name, getattr(bindings, name)))
    return counts


@contextlib.contextmanager
def counted(bindings: ModuleType | None) -> Iterator[Counts]:
    """Count launches for a while."""
    before = {name: getattr(bindings, name) for name in _names(bindings)}
    try:
        yield count(bindings)
    finally:
        for name, launch in before.items():
            setattr(bindings, name, launch)


RARELY = 0.25
"""Share of the timed calls below which a launcher that a trace shows is looked for in the call before the trace."""


class Launches:
    """What a Program launches in its calls. The call before a trace has the trace's inputs: what it does not launch is
    not launched for these inputs, unless calls take turns."""

    def __init__(self) -> None:
        self.counts: Counts = {}
        self.before: dict[str, int] = {}
        self.last: set[str] = set()
        """Launched in the last call."""
        self.calls = 0
        self.used: dict[str, int] = {}
        """Of that many counted calls, in how many each was launched."""

    def watch(self, bindings: ModuleType) -> None:
        """Count from now on."""
        self.counts = count(bindings)

    def begin(self) -> None:
        """A call begins."""
        self.before = totals(self.counts)

    def end(self, *, counted: bool) -> None:
        """It has ended."""
        self.last = launched(self.counts, self.before)
        if counted:
            self.calls += 1
            for name in self.last:
                self.used[name] = self.used.get(name, 0) + 1

    def only_in(self, traced: set[str]) -> list[str]:
        """Those of the launchers in a trace that hardly any counted call launches, nor the call before the trace."""
        if not self.calls or not self.counts:
            return []
        return sorted(name for name in traced - self.last if self.used.get(name, 0) < RARELY * self.calls)


def totals(counts: Counts) -> dict[str, int]:
    """How often each was called so far."""
    return {name: sum(count) for name, count in counts.items()}


def launched(counts: Counts, since: dict[str, int] | None = None) -> set[str]:
    """Those that were called at all, or since there were the ``totals`` given."""
    before = since or {}
    return {name for name, total in totals(counts).items() if total > before.get(name, 0)}


def failing(counts: Counts) -> list[str]:
    """Those that were called and never said that all is well."""
    return [name for name, (good, bad) in counts.items() if bad and not good]


def _names(bindings: ModuleType | None) -> list[str]:
    return [name for name in vars(bindings) if name.startswith(PREFIX)] if bindings is not None else []
