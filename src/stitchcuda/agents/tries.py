"""How often one request is tried, and after what pauses. What requests tell each other is in ``agents.server``."""

from __future__ import annotations

import time

from stitchcuda.agents.server import Server
from stitchcuda.agents.settings import Patience


class Tries:
    """Of one request. A server that fails is asked a number of times, one that is busy for a while."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.made = 0
        self._failed = 0
        self._wait = patience.first_wait_seconds
        self._busy_since: float | None = None

    async def next(self, server: Server) -> None:
        """Returns when ``server`` may be asked."""
        begun = time.monotonic()
        if await server.ready() and self._busy_since is None:
            self._busy_since = begun
        self.made += 1

    def pause(self, asked: float | None, *, busy: bool) -> float | None:
        """Seconds to wait at least, of which the server may have asked for some; None: there is no further try."""
        patience, now = self.patience, time.monotonic()
        pause = max(asked or 0.0, min(self._wait, patience.longest_wait_seconds))
        self._wait *= 2
        if (asked or 0.0) > patience.longest_retry_after_seconds:
            return None
        if busy:
            self._busy_since = now if self._busy_since is None else self._busy_since
            return pause if now + pause <= self._busy_since + patience.busy_seconds else None
        self._busy_since = None
        self._failed += 1
        return pause if self._failed < patience.attempts else None

    def left(self, *, busy: bool) -> str:
        """What there is of further tries, in words."""
        if busy:
            return f"for {self.patience.busy_seconds:.0f} s at most"
        return f"{self._failed + 1} of {self.patience.attempts}"
