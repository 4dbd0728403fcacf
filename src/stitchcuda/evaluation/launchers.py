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


@contextlib.contextmanager
def counted(bindings: ModuleType | None) -> Iterator[Counts]:
    """Count launches for a while."""
    counts: Counts = {}
    before = {name: getattr(bindings, name) for name in _names(bindings)}

    def counting(name: str, launch: Callable[..., int]) -> Callable[..., int]:
        count = counts.setdefault(name.removeprefix(PREFIX), [0, 0])

        def call(*arguments: object) -> int:
            code = launch(*arguments)
            count[bool(code)] += 1
            return code

        return call

    try:
        for name, launch in before.items():
            setattr(bindings, name, counting(name, launch))
        yield counts
    finally:
        for name, launch in before.items():
            setattr(bindings, name, launch)


def launched(counts: Counts) -> set[str]:
    """Those that were called at all."""
    return {name for name, count in counts.items() if sum(count)}


def failing(counts: Counts) -> list[str]:
    """Those that were called and never said that all is well."""
    return [name for name, (good, bad) in counts.items() if bad and not good]


def _names(bindings: ModuleType | None) -> list[str]:
    return [name for name in vars(bindings) if name.startswith(PREFIX)] if bindings is not None else []
