"""What all items of a sweep share: tokens a minute, dollars, and the word to stop."""

from __future__ import annotations

import threading
import time

from stitchcuda.agents.roles import ReplyRecord, RequestKey
from stitchcuda.agents.spending import Spend
from stitchcuda.errors import SweepSpent
from stitchcuda.workflow.journal import Journal

USUAL_TOKENS = 6_000
"""Held back for a request whose size is not known yet, until some were seen."""


class Stopped(BaseException):
    """The sweep was asked to stop; the item can be gone on with."""


class Governor:
    """Safe to use from several threads."""

    def __init__(self, *, tokens_per_minute: int | None = None, usd: float | None = None, spent: float = 0.0) -> None:
        """``usd``: of the whole sweep, of which ``spent`` are gone already."""
        self.tokens_per_minute, self.usd, self.spent = tokens_per_minute, usd, spent
        self.stop = threading.Event()
        self._guard = threading.Lock()
        self._room = float(tokens_per_minute or 0)
        self._filled = time.monotonic()
        self._usual = float(USUAL_TOKENS)

    def check(self) -> None:
        """Raise Stopped when that was asked."""
        if self.stop.is_set():
            raise Stopped

    @property
    def out_of_money(self) -> bool:
        """No further item is begun."""
        return self.usd is not None and self.spent >= self.usd

    def admit(self) -> float:
        """Wait until a request may be made; gives the tokens that are taken for it, until it is known what it took.

        Raises SweepSpent when the sweep's dollars are used, so that the item stays open instead of counting as it
        stands; Stopped when it is asked to stop. What a request that fails has taken flows back with time.
        """
        while True:
            self.check()
            if self.out_of_money:
                raise SweepSpent(f"${self.spent:.2f} of the sweep's ${self.usd or 0:.2f} used")
            with self._guard:
                if self.tokens_per_minute is None:
                    return 0.0
                self._fill()
                wanted = min(self._usual, float(self.tokens_per_minute))
                if self._room >= wanted:
                    self._room -= wanted
                    return wanted
                wait = (wanted - self._room) * 60 / self.tokens_per_minute
            self.stop.wait(min(wait, 5.0))

    def settle(self, taken: float, tokens: int, usd: float) -> None:
        """A request took ``tokens`` where ``taken`` were thought."""
        with self._guard:
            self.spent += usd
            self._usual += 0.2 * (tokens - self._usual)
            if self.tokens_per_minute is not None:
                self._fill()
                self._room += taken - tokens

    def _fill(self) -> None:
        now = time.monotonic()
        rate = float(self.tokens_per_minute or 0)
        self._room = min(rate, self._room + (now - self._filled) * rate / 60)
        self._filled = now

    def over(self, journal: Journal) -> Paced:
        """The journal of a run whose requests keep to these limits."""
        return Paced(self, journal)


class Paced:
    """A ``ReplyLog`` between a run's model and its journal; requests may go side by side."""

    def __init__(self, governor: Governor, journal: Journal) -> None:
        self._governor, self._journal = governor, journal
        self._taken: dict[RequestKey, float] = {}

    @property
    def node(self) -> str:
        """See ``ReplyLog``."""
        return self._journal.node

    def spent(self) -> Spend:
        """See ``agents.llm.SpendingLog``."""
        return self._journal.spent()

    def worked(self) -> float:
        """See ``agents.llm.TimedLog``."""
        return self._journal.worked()

    def find(self, key: RequestKey) -> ReplyRecord | None:
        """A reply that is there, or leave to ask for it; the wait for that uses up none of the run's own time."""
        found = self._journal.find(key)
        if found is None:
            began = time.monotonic()
            self._taken[key] = self._governor.admit()
            self._journal.leave_out(time.monotonic() - began)
        return found

    def append(self, record: ReplyRecord) -> None:
        """Journal it, and count it."""
        try:
            self._journal.append(record)
        finally:
            tokens = record.input_tokens + record.output_tokens
            self._governor.settle(self._taken.pop(record.key, 0.0), tokens, record.usd)
