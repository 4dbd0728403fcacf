"""What the requests of a model learn of its server, for those beside and after them. Known to this process alone."""

from __future__ import annotations

import asyncio
import random
import threading
import time

SPREAD = 0.25
"""By how much of a pause those that wait for its end are spread out after it, so that they do not all ask at once."""


class Server:
    """One model at one address. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longest_reply: int | None = None
        self._not_before = 0.0

    def leave_alone(self, seconds: float) -> None:
        """It is busy: nobody asks it anything for so long."""
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + seconds)

    async def ready(self) -> bool:
        """Returns when it may be asked; whether that took waiting."""
        waited = False
        while (seconds := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(spread(seconds))
            waited = True
        return waited

    def grants(self, longest: int) -> None:
        """It gave a reply of at most so many tokens, and none of more, whatever the prompt."""
        with self._lock:
            self._longest_reply = min(longest, self._longest_reply or longest)

    def granted(self, tokens: int) -> int:
        """Of a reply of so many tokens at most, how many it gives as far as is known."""
        return min(tokens, self._longest_reply or tokens)


def spread(seconds: float) -> float:
    """A pause of that length or somewhat longer, by chance."""
    return seconds * random.uniform(1.0, 1.0 + SPREAD)


_KNOWN: dict[tuple[str, str], Server] = {}


def server_of(model: str, address: str) -> Server:
    """The same for all who ask it: what a server grants, it grants to an account, not to one run or one branch."""
    return _KNOWN.setdefault((model, address), Server())
