"""What the requests of a model learn of its server, for those beside and after them. Known to this process alone."""

from __future__ import annotations

import threading


class Server:
    """One model at one address. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longest_reply: int | None = None

    def refused(self, longest: int) -> None:
        """It gives no reply of more than ``longest`` tokens, whatever the prompt."""
        with self._lock:
            self._longest_reply = min(longest, self._longest_reply or longest)

    def granted(self, tokens: int) -> int:
        """Of a reply of so many tokens at most, how many it gives as far as is known."""
        return min(tokens, self._longest_reply or tokens)


_KNOWN: dict[tuple[str, str], Server] = {}


def server_of(model: str, address: str) -> Server:
    """The same for all who ask it: what a server grants, it grants to an account, not to one run or one branch."""
    return _KNOWN.setdefault((model, address), Server())
