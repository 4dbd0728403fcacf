"""What waits at an orchestrator: Jobs with their futures, by priority and in order, given to whoever can do them, best
to the worker that has the job's task open. Shared by the places that hand jobs out themselves (local and Ray); a
spool's queue is its folder."""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from stitchcuda.compute.executor import OPEN_TASKS
from stitchcuda.compute.model import FailureReason, Job, JobFailure, Outcome, Wanted

LOOK_AHEAD = 1000
"""So many of the jobs that a worker can do are looked at for one whose task is open."""
PASSED_OVER = 16
"""A job that was passed over so often for that, for each worker that there is, goes next."""
SETTLE_SECONDS = 0.1
"""A job whose task another worker has open is left to that one for so long: it may be about to take it, or jobs of
another task about to come."""


@dataclass
class Pending:
    """A Job on its way."""

    job: Job
    future: Future[Outcome]
    submitted: float = field(default_factory=time.monotonic)
    attempts: int = 0
    passed: int = 0
    queued: float = 0.0
    """When it came into the queue last, ``time.monotonic`` seconds."""
    task: str = field(init=False)
    """Digest of the task that must be open for it; "" where none must."""

    def __post_init__(self) -> None:
        self.task = self.job.opens

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
    """A queue that workers wait on. Safe for any number of threads.

    It remembers which tasks each worker was given jobs of last, as many as an Executor keeps open, so that few are
    opened twice.
    """

    def __init__(self) -> None:
        self._line: list[tuple[int, int, Pending]] = []
        """Sorted; no two have the same number."""
        self._order = itertools.count(1)
        self._early = itertools.count(-1, -1)
        self._open: dict[Hashable, OrderedDict[str, None]] = {}
        """By worker: tasks, the latest last."""
        self._changed = threading.Condition()
        self._closed = False

    def put(self, pending: Pending, *, first: bool = False) -> None:
        """Add one; ``first``: before all others of its priority, for a job whose worker died."""
        with self._changed:
            if not self._closed:
                pending.queued = time.monotonic()
                number = next(self._early) if first else next(self._order)
                bisect.insort(self._line, (pending.job.priority, number, pending))
                self._changed.notify_all()
                return
        pending.fail("cancelled", "the place was closed")

    def take(self, fits: Callable[[Job], bool], *, worker: Hashable, wait: float, steal: bool = True) -> Pending | None:
        """The next for ``worker`` that ``fits``, waiting at most ``wait`` seconds; None when there is none, or when the
        queue closed.

        Of equal priority, those whose task it has open go first; then those whose task nobody has open, or that need
        none; last, with ``steal``, those whose task another has open, of the task with the most that wait.
        """
        deadline = time.monotonic() + wait
        with self._changed:
            mine = self._open.setdefault(worker, OrderedDict())
            while not self._closed:
                place, settling = self._find(fits, mine, steal)
                if place is not None:
                    found = self._line.pop(place)[2]
                    if found.task:
                        mine[found.task] = None
                        mine.move_to_end(found.task)
                        if len(mine) > OPEN_TASKS:
                            mine.popitem(last=False)
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, SETTLE_SECONDS) if settling else left)
        return None

    def _find(self, fits: Callable[[Job], bool], mine: Mapping[str, None], steal: bool) -> tuple[int | None, bool]:
        """The place in the line of the next; whether one may be stolen a moment later."""
        fitting = (place for place, entry in enumerate(self._line) if fits(entry[2].job))
        places = list(itertools.islice(fitting, LOOK_AHEAD))
        if not places:
            return None, False
        priority, _, first = self._line[places[0]]
        if first.passed >= PASSED_OVER * len(self._open):
            return places[0], False
        equal = [(place, self._line[place][2]) for place in places if self._line[place][0] == priority]
        elsewhere = {task for tasks in self._open.values() if tasks is not mine for task in tasks}
        choice = next((place for place, pending in equal if pending.task in mine), None)
        if choice is None:
            choice = next((place for place, pending in equal if pending.task not in elsewhere), None)
        if choice is None and steal:
            settled = time.monotonic() - SETTLE_SECONDS
            tasks = Counter(pending.task for _, pending in equal if pending.queued <= settled)
            most = max(tasks, key=lambda task: tasks[task], default=None)
            choice = next((place for place, pending in equal if pending.task == most), None)
        if choice is None:
            return None, steal
        first.passed += choice != places[0]
        return choice, False

    def forget(self, worker: Hashable) -> None:
        """A worker has nothing open any more: it ended, or its process did."""
        with self._changed:
            self._open.pop(worker, None)
            self._changed.notify_all()

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
