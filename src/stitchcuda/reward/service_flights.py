"""One piece of work for all who ask for the same thing at once. Nothing is remembered once it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class Flights(Generic[T]):
    """Work in progress by key; for one event loop.

    Whoever asks for a key that is being worked on waits for the same result, or the same exception. One caller that is
    cancelled does not take it from the others; the work itself is cancelled when nobody waits any longer.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def run(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of ``work()``, or of what is being done for ``key`` already."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.get_running_loop().create_task(work()))
            self._flights[key] = flight
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if flight.task.done() or flight.waiting == 0:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                flight.task.cancel()
