"""The orchestrator's end of a spool: puts jobs into the folder and waits for what comes of them. It holds no jobs in
memory, and killed at any moment it loses nothing: submitted again under the same ids, jobs give what was done
meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from stitchcuda.compute.model import Capacity, FailureReason, Job, JobFailure, Kind, Outcome, Versions, Wanted
from stitchcuda.compute.spool_entry import Entry
from stitchcuda.compute.spool_folder import Registered, SpoolFolder
from stitchcuda.errors import InfrastructureError

FEW = 200
"""Up to so many jobs are asked for one by one; beyond, the folder of results is listed."""
WAIT_SHARE, LEAST_WAIT, MOST_WAIT = 0.05, 0.005, 1.0
"""The next look comes after this share of the time since a result last came."""
LOOK_COST = 4.0
"""A look at a large folder takes time; at least so many times that passes before the next."""
KINDS: tuple[Literal["cuda", "cpu"], ...] = ("cuda", "cpu")
PATIENCE_SECONDS = 4.0
"""How long jobs wait for a worker before that is said."""
GONE_SECONDS = 120.0
"""How long the folder may be unreachable before the jobs are told so."""


@dataclass(slots=True)
class _Awaited:
    future: Future[Outcome]
    kind: Kind
    entry: Entry | None
    submitted: float
    placed: bool = False
    """What lies in done/ belongs to this submission, and is no failure of an earlier one."""


class SpoolCompute:
    """A spool, made where there is none. ``lease_s`` is for a new one: seconds without a sign of life after which a
    job goes to another worker. ``tell`` is told when jobs wait and nobody is there who would do them.

    The first device that answers a job of kind ``ceilings`` answers all of them that want the same: what this process
    measures, it measures on one kind of device."""

    def __init__(self, path: Path, *, lease_s: float | None = None, tell: Callable[[str], None] | None = None) -> None:
        self.folder = SpoolFolder(path, lease_s=lease_s)
        self._tell = tell or _on_stderr
        self._told: set[frozenset[str]] = set()
        """Devices that were there each time when it was said that others are missing."""
        self._ceilings: dict[Wanted, Future[Outcome]] = {}
        self._asking = threading.Lock()
        self._awaited: dict[str, _Awaited] = {}
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._present = {entry.id: entry for entry in self._listing()}
        self._thread = threading.Thread(target=self._watch, name="stitchcuda-spool", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, job: Job) -> Future[Outcome]:
        """See ``Compute``. A job whose id is in the spool already, waiting, begun or done, is not put there again; one
        that failed for want of a working machine is."""
        if job.kind != "ceilings":
            return self._submit(job)
        with self._asking:
            known = self._ceilings.get(job.wanted)
            if known is None or (known.done() and not _is_known(known)):
                known = self._ceilings[job.wanted] = self._submit(job)
        answer: Future[Outcome] = Future()
        known.add_done_callback(lambda done: _pass_on(done, answer, job.id))
        return answer

    def _submit(self, job: Job) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        with self._guard:
            if self._closed:
                raise InfrastructureError("the spool was closed here; no more jobs can be submitted")
            if job.id in self._awaited:
                raise InfrastructureError(f"job {job.id} is awaited already; every job needs an id of its own")
            entry = self._present.pop(job.id, None)
            awaited = self._awaited[job.id] = _Awaited(future, job.kind, entry, time.monotonic())
        try:
            if entry is None and not self._stands(job.id):
                awaited.entry = self.folder.submit(job)
            awaited.placed = True
        except BaseException:
            with self._guard:
                self._awaited.pop(job.id, None)
            raise
        self._wake.set()
        return future

    def capacity(self) -> Capacity:
        """See ``Compute``: workers that gave a sign of life lately."""
        workers = self.folder.workers()
        claimed = {entry.id for entry in self.folder.listed("claimed")}
        with self._guard:
            mine = set(self._awaited)
        kinds = {worker.kind for worker in workers}
        return Capacity(
            kinds=[kind for kind in KINDS if kind in kinds],
            devices=[worker.facts for worker in workers],
            workers=len(workers),
            queued=len(mine - claimed),
            running=len(mine & claimed),
        )

    def close(self) -> None:
        """See ``Compute``: jobs that wait or run stay in the spool; their futures here end as cancelled."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        self._wake.set()
        self._thread.join()
        self._fail(list(self._awaited), "cancelled", "the orchestrator ended; the job is still in the spool")
        self.folder.close()

    def _stands(self, job: str) -> bool:
        """Whether there is a result that counts."""
        if self.folder.stands(job):
            return True
        if self.folder.finished(job):
            self.folder.forget(job)
        return False

    def _listing(self) -> Iterable[Entry]:
        # A job may go either way between the two listings.
        waiting = self.folder.listed("jobs")
        return [*waiting, *self.folder.listed("claimed"), *self.folder.listed("jobs")]

    # ---- The thread that watches ----

    def _watch(self) -> None:
        news = looked_after = reached = looked_for = time.monotonic()
        while not self._closed:
            began = time.monotonic()
            try:
                if self._collect():
                    news = time.monotonic()
                if time.monotonic() - looked_after > self.folder.lease_s / 4:
                    self.folder.expire()
                    self._refuse()
                    looked_after = time.monotonic()
                if time.monotonic() - looked_for > PATIENCE_SECONDS:
                    self._say_who_is_missing()
                    looked_for = time.monotonic()
                reached = time.monotonic()
            except Exception as error:
                if time.monotonic() - reached > GONE_SECONDS:
                    self._fail(list(self._awaited), "infrastructure", f"the spool is out of reach: {error}")
            now = time.monotonic()
            wait = max((now - news) * WAIT_SHARE, (now - began) * LOOK_COST, LEAST_WAIT)
            if self._wake.wait(min(wait, MOST_WAIT) if self._awaited else MOST_WAIT):
                self._wake.clear()
                news = time.monotonic()

    def _collect(self) -> int:
        """Give the results that came."""
        with self._guard:
            names = [name for name, awaited in self._awaited.items() if awaited.placed]
        if len(names) > FEW:
            there = set(self.folder.results())
            names = [name for name in names if name in there or self._awaited[name].future.cancelled()]
        count = 0
        for name in names:
            awaited = self._awaited[name]
            if awaited.future.cancelled():
                if awaited.entry is not None:
                    self.folder.withdraw(awaited.entry)
            else:
                outcome = self.folder.result(name)
                if outcome is None:
                    continue
                self._give(awaited, outcome)
            with self._guard:
                self._awaited.pop(name, None)
            count += 1
        return count

    def _say_who_is_missing(self) -> None:
        """Where jobs have waited for a while and no worker is there that would take them: once, and once more when
        others are there that would not either."""
        late = time.monotonic() - PATIENCE_SECONDS
        with self._guard:
            entries = [a.entry for a in self._awaited.values() if a.entry is not None and a.submitted < late]
        if not entries:
            return
        workers = self.folder.workers()
        there = frozenset(worker.device for worker in workers)
        lost = [entry for entry in entries if not any(entry.suits(worker.facts) for worker in workers)]
        if lost and there not in self._told:
            self._told.add(there)
            self._tell(_waiting_for(self.folder.path, lost, workers))

    def _refuse(self) -> None:
        """Fail jobs that no worker will take, since all that are there run another version."""
        here = Versions()
        workers = self.folder.workers()
        for kind in KINDS:
            mine = [worker for worker in workers if worker.kind == kind]
            if not mine or any(worker.versions.goes_with(here) for worker in mine):
                continue
            late = time.monotonic() - self.folder.lease_s
            with self._guard:
                waiting = [
                    (name, awaited)
                    for name, awaited in self._awaited.items()
                    if awaited.entry is not None and awaited.entry.kind == kind and awaited.submitted < late
                ]
            names = [name for name, awaited in waiting if awaited.entry and self.folder.withdraw(awaited.entry)]
            self._fail(names, "version_mismatch", _mismatch(mine, here))

    def _fail(self, names: list[str], reason: FailureReason, message: str) -> None:
        for name in names:
            with self._guard:
                awaited = self._awaited.pop(name, None)
            if awaited is not None:
                failure = JobFailure(reason=reason, message=message)
                self._give(awaited, Outcome(job=name, kind=awaited.kind, failure=failure))

    def _give(self, awaited: _Awaited, outcome: Outcome) -> None:
        if awaited.future.set_running_or_notify_cancel():
            # Who gave a job up did not always read what kind it is.
            awaited.future.set_result(outcome.model_copy(update={"kind": awaited.kind}))


def _on_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _waiting_for(spool: Path, entries: list[Entry], workers: list[Registered]) -> str:
    kinds = " and ".join(sorted({entry.kind for entry in entries}, reverse=True))
    there = f"its workers have {', '.join(sorted({w.device for w in workers}))}" if workers else "nobody works on it"
    count = "1 job waits" if len(entries) == 1 else f"{len(entries)} jobs wait"
    return (
        f"{count} for {kinds} in {spool}, and {there}. Start a worker where the device is:\n"
        f"  stitchcuda worker --spool {spool}\n"
        "or, where no folder is shared, carry the jobs there and the results back:\n"
        f"  stitchcuda worker pack --spool {spool} --out jobs.tar.gz --no-results"
    )


def _is_known(done: Future[Outcome]) -> bool:
    return not done.cancelled() and done.exception() is None and done.result().ok


def _pass_on(done: Future[Outcome], answer: Future[Outcome], job: str) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    if done.cancelled():
        answer.set_exception(CancelledError())
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result().model_copy(update={"job": job}))


def _mismatch(workers: list[Registered], here: Versions) -> str:
    theirs = ", ".join(sorted({f"{w.name}: {w.versions.stitchcuda} (protocol {w.versions.protocol})" for w in workers}))
    return (
        f"this is stitchcuda {here.stitchcuda} (protocol {here.protocol}) and no worker on the spool is of its series "
        f"({theirs}); install one version on both sides"
    )
