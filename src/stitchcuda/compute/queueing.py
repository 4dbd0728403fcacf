"""What waits at an orchestrator: Jobs with their futures, by priority and in order, given to whoever can do them.
Shared by the places that hand jobs out themselves (local and Ray); a spool's queue is its folder."""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from stitchcuda.compute.model import FailureReason, Job, JobFailure, Outcome, Wanted

LOOK_AHEAD = 32
"""Of the first so many jobs, one whose task a worker has open goes before the others."""
PASSED_OVER = 16
"""A job that was passed over so often for that goes next."""


@dataclass
class Pending:
    """A Job on its way."""

    job: Job
    future: Future[Outcome]
    submitted: float = field(default_factory=time.monotonic)
    attempts: int = 0
    passed: int = 0

    def begin(self) -> bool:
        """Count an attempt; False when the future was cancelled in the meantime."""
        if self.attempts == 0 and not self.future.set_running_or_notify_cancel():
            return False
        self.attempts += 1
        return True

    def settle(self, outcome: Outcome) -> None:
        """Give the Outcome, with what only the orchestrator knows."""
        waited = max(0.0, time.monotonic() - self.submitted - outcome.run_seconds)
        self._answer(outcome.model_copy(update={"attempts": max(1, self.attempts), "queue_seconds": waited}))

    def fail(self, reason: FailureReason, message: str) -> None:
        """Give a failure."""
        self.settle(Outcome(job=self.job.id, kind=self.job.kind, failure=JobFailure(reason=reason, message=message)))

    def _answer(self, outcome: Outcome) -> None:
        if self.attempts == 0 and not self.future.set_running_or_notify_cancel():
            return
        if not self.future.done():
            self.future.set_result(outcome)


class Waiting:
    """A queue that workers wait on. Safe for any number of threads."""

    def __init__(self) -> None:
        self._line: list[tuple[int, int, Pending]] = []
        """Sorted; no two have the same number."""
        self._order = itertools.count(1)
        self._early = itertools.count(-1, -1)
        self._changed = threading.Condition()
        self._closed = False

    def put(self, pending: Pending, *, first: bool = False) -> None:
        """Add one; ``first``: before all others of its priority, for a job whose worker died."""
        with self._changed:
            if not self._closed:
                number = next(self._early) if first else next(self._order)
                bisect.insort(self._line, (pending.job.priority, number, pending))
                self._changed.notify_all()
                return
        pending.fail("cancelled", "the place was closed")

    def take(
        self, fits: Callable[[Job], bool], *, near: Callable[[Job], bool] = lambda job: False, wait: float
    ) -> Pending | None:
        """The next that ``fits``, waiting at most ``wait`` seconds; None when there is none, or the queue closed.

        Among the first ones, those that are ``near`` (their task is open already) go before others.
        """
        deadline = time.monotonic() + wait
        with self._changed:
            while not self._closed:
                found = self._find(fits, near)
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
        return None

    def _find(self, fits: Callable[[Job], bool], near: Callable[[Job], bool]) -> Pending | None:
        places = [place for place, entry in enumerate(self._line[:LOOK_AHEAD]) if fits(entry[2].job)]
        if not places:
            beyond = range(LOOK_AHEAD, len(self._line))
            places = [place for place in beyond if fits(self._line[place][2].job)][:1]
        if not places:
            return None
        chosen = places[0]
        priority, _, first = self._line[chosen]
        if first.passed < PASSED_OVER and not near(first.job):
            others = (p for p in places if self._line[p][0] == priority and near(self._line[p][2].job))
            better = next(others, None)
            if better is not None:
                first.passed += 1
                chosen = better
        return self._line.pop(chosen)[2]

    def drop(self, matches: Callable[[Job], bool]) -> list[Pending]:
        """Take out all that match."""
        with self._changed:
            found = [entry for entry in self._line if matches(entry[2].job)]
            if found:
                self._line = [entry for entry in self._line if not matches(entry[2].job)]
        return [entry[2] for entry in found]

    def wanted(self) -> set[Wanted]:
        """What the waiting jobs ask for."""
        with self._changed:
            return {entry[2].job.wanted for entry in self._line}

    def close(self) -> list[Pending]:
        """Wake everybody, and give what was still waiting."""
        with self._changed:
            self._closed = True
            left, self._line = self._line, []
            self._changed.notify_all()
        return [entry[2] for entry in left]

    def __len__(self) -> int:
        with self._changed:
            return len(self._line)
