"""A worker on a spool: claims jobs for the devices of its machine, keeps their leases, and writes what came of them. It
needs torch and pydantic, no network, and no trust in what it finds in the folder; killed at any moment it loses
nothing, since its leases run out."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stitchcuda.compute.hiding import why_not
from stitchcuda.compute.model import JobFailure, Outcome, Versions
from stitchcuda.compute.process import TimeLimit, WorkerDied, WorkerProcess
from stitchcuda.compute.spool_entry import Entry
from stitchcuda.compute.spool_files import BadFile, read_regular
from stitchcuda.compute.spool_folder import LARGEST, Registered, SpoolFolder
from stitchcuda.errors import ComputeError, InfrastructureError
from stitchcuda.hardware.model import Device

IDLE_SHARE = 0.05
"""An idle worker looks again after this share of the time since it last had work: late by 5 % at most."""
LEAST_WAIT, MOST_WAIT = 0.02, 1.0
LISTED_SECONDS = 1.0
"""How long a listing of jobs is used, for workers take them from under each other."""
PAUSE_SECONDS = 0.2
"""Before a new process takes the place of one that died."""
END_SECONDS = 10.0
"""For the lanes to put their jobs back when the worker is stopped."""
GONE_SECONDS = 120.0
"""How long the folder may be out of reach before the worker ends."""
FULL_TRIES = 5
FULL_SECONDS = 5.0


def wait_after(idle: float) -> float:
    """Seconds to wait before looking again, ``idle`` seconds after something last happened."""
    return min(max(idle * IDLE_SHARE, LEAST_WAIT), MOST_WAIT)


@dataclass
class Stop:
    """Why and when a worker ends."""

    once: bool = False
    until_empty: bool = False
    idle: float | None = None
    """So long without a job on any device, and none is waited for."""
    seconds: float | None = None
    """No job is begun after so long."""
    asked: threading.Event = field(default_factory=threading.Event)
    """Set: end as soon as possible; a running job is put back."""
    began: float = field(default_factory=time.monotonic)
    _working: int = 0
    _rested: float = field(default_factory=time.monotonic)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def no_more(self) -> bool:
        """No further job may begin."""
        late = self.seconds is not None and time.monotonic() - self.began > self.seconds
        return late or self.asked.is_set()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While a device has a job, no other is idle in vain: the machine is held anyway."""
        with self._guard:
            self._working += 1
        try:
            yield
        finally:
            with self._guard:
                self._working -= 1
                self._rested = time.monotonic()

    def idled(self) -> bool:
        """Whether jobs were waited for long enough."""
        with self._guard:
            return self.idle is not None and not self._working and time.monotonic() - self._rested > self.idle


class SpoolLane:
    """One device's share of a worker."""

    def __init__(
        self,
        folder: SpoolFolder,
        device: Device,
        *,
        cache: Path,
        name: str,
        environment: Mapping[str, str],
        stop: Stop,
        log: Callable[[str], None],
        hidden: bool,
    ) -> None:
        self.folder, self.device, self.cache, self.stop, self.log = folder, device, cache, stop, log
        self.hidden = folder.path if hidden else None
        self.name = name
        self.environment = dict(os.environ) | dict(environment)
        self.process: WorkerProcess | None = None
        self.claimed: Entry | None = None
        self.lost = False
        self.done = 0
        self.foreign = 0
        self.problem: InfrastructureError | None = None
        self.ended = threading.Event()
        """Waited for instead of the thread: a signal during ``Thread.join`` makes Python 3.11 take it for ended."""
        self._listed: list[Entry] = []
        self._listed_at = float("-inf")
        self._guard = threading.Lock()

    def work(self) -> None:
        """Take jobs until there is a reason to stop; ``problem`` says if that was a fault of the spool."""
        try:
            self.folder.register(self._registration())
            self._loop()
        except Exception as error:
            if not isinstance(error, InfrastructureError):
                error = InfrastructureError(f"{type(error).__name__}: {error}")
            self.problem = error
            self.stop.asked.set()
        finally:
            if self.process is not None:
                self.process.close()
            with contextlib.suppress(OSError):
                self.folder.leave(self.name)
            self.ended.set()

    def _loop(self) -> None:
        active = reached = time.monotonic()
        while not self.stop.no_more():
            try:
                claimed = self._claim()
                if claimed is None and self._enough():
                    return
                reached = time.monotonic()
            except InfrastructureError as error:
                if time.monotonic() - reached > GONE_SECONDS:
                    raise
                self.log(f"{error}; trying again")
                self.stop.asked.wait(MOST_WAIT)
                continue
            if claimed is None:
                self.stop.asked.wait(wait_after(time.monotonic() - active))
                continue
            with self.stop.at_work():
                self._do(claimed)
            active = time.monotonic()
            if self.stop.once:
                return

    def _claim(self) -> Entry | None:
        while True:
            if not self._listed or time.monotonic() - self._listed_at > LISTED_SECONDS:
                entries = self.folder.listed("jobs")
                series = Versions().series
                self.foreign = sum(entry.series != series for entry in entries)
                self._listed = [entry for entry in entries if entry.suits(self.device)]
                self._listed.reverse()
                self._listed_at = time.monotonic()
            if not self._listed:
                return None
            claimed = self.folder.claim(self._listed.pop(), self.name)
            if claimed is not None:
                return claimed

    def _enough(self) -> bool:
        """Whether to end where no job is to be had now."""
        return self.stop.once or self.stop.idled() or (self.stop.until_empty and not self._may_come())

    def _may_come(self) -> bool:
        """Whether another worker's job may still come back to the queue."""
        self.folder.expire()
        return any(entry.suits(self.device) for entry in self.folder.listed("claimed") + self.folder.listed("jobs"))

    def _do(self, claimed: Entry) -> None:
        if self.folder.finished(claimed.id):
            (self.folder.path / "claimed" / claimed.name).unlink(missing_ok=True)
            return
        try:
            job = self.folder.read(claimed)
        except FileNotFoundError:
            return
        except BadFile as problem:
            self.log(f"{claimed.name}: {problem}; moved to failed/")
            self.folder.give_up(claimed, JobFailure(reason="bad_job", message=str(problem)))
            return
        except OSError as error:
            raise InfrastructureError(f"the spool {self.folder.path} cannot be used: {error}") from None
        with self._guard:
            self.claimed, self.lost = claimed, False
        # Not in the spool, which what does the job must not see.
        with tempfile.TemporaryDirectory(prefix="stitchcuda-files-") as files:
            try:
                outcome = self._open_process().run(job, artifacts=Path(files))
            except TimeLimit as limit:
                failure = JobFailure(reason="time_limit", message=str(limit))
                outcome = Outcome(job=job.id, kind=job.kind, failure=failure)
            except WorkerDied as death:
                self._died(claimed, death)
                return
            finally:
                with self._guard:
                    self.claimed = None
            self._settle(claimed, outcome, Path(files))

    def _died(self, claimed: Entry, death: WorkerDied) -> None:
        if self.lost:
            self.log(f"{claimed.id}: the lease ran out, so the job is another worker's now")
        elif self.stop.asked.is_set():
            self.folder.release(claimed, counted=False)
        else:
            self.log(f"{claimed.id}: {death} (attempt {claimed.attempt} of {claimed.attempts})")
            self.folder.release(claimed, counted=True)
            self.stop.asked.wait(PAUSE_SECONDS)

    def _settle(self, claimed: Entry, outcome: Outcome, files: Path) -> None:
        place = f"{claimed.id}~{claimed.attempt}~{self.name}"
        found = self._keep(files, place)
        submitted = int(claimed.order.partition("-")[2], 16) / 1e9
        outcome = outcome.model_copy(
            update={
                "attempts": claimed.attempt,
                "queue_seconds": max(0.0, time.time() - submitted - outcome.run_seconds),
                "artifacts": {name: f"{place}/{name}" for name in found},
            }
        )
        for attempt in range(FULL_TRIES):
            try:
                first = self.folder.finish(outcome, claimed)
                break
            except InfrastructureError as error:
                if attempt + 1 == FULL_TRIES:
                    self.folder.release(claimed, counted=False)
                    raise
                self.log(str(error))
                self.folder.renew(claimed)
                self.stop.asked.wait(min(FULL_SECONDS, self.folder.lease_s / 4))
        self.done += 1
        failure = f" ({outcome.failure.reason}: {outcome.failure.message})" if outcome.failure else ""
        late = "" if first else ", too late: another worker's result stands"
        self.log(f"{claimed.id}: {outcome.kind} in {outcome.run_seconds:.1f} s{failure}{late}")

    def _keep(self, files: Path, place: str) -> list[str]:
        """Bring further files into the spool; the names of those that it takes."""
        kept = []
        for path in sorted(files.iterdir()):
            try:
                self.folder.keep(place, path.name, read_regular(path, LARGEST))
            except (BadFile, OSError, InfrastructureError) as problem:
                self.log(f"{place}/{path.name} is left out: {problem}")
            else:
                kept.append(path.name)
        return kept

    def keep(self) -> None:
        """Renew what this lane holds; called from the heartbeat's thread."""
        self.folder.beat(self.name)
        with self._guard:
            claimed = self.claimed
            if claimed is None or self.folder.renew(claimed):
                return
            if not self.folder.finished(claimed.id):
                self.lost = True
                if self.process is not None:
                    self.process.process.kill()

    def interrupt(self) -> None:
        """End a running job, which is put back."""
        with self._guard:
            if self.process is not None and self.claimed is not None:
                self.process.process.kill()

    def _open_process(self) -> WorkerProcess:
        if self.process is None or not self.process.alive():
            if self.process is not None:
                self.process.close()
            self.process = WorkerProcess(self.cache, name=self.name, environment=self.environment, hidden=self.hidden)
        return self.process

    def _registration(self) -> Registered:
        return Registered(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=self.device.name,
            kind=self.device.target.kind,
            facts=self.device,
        )


class SpoolWorker:
    """All lanes of one worker, and the heartbeat that keeps their leases."""

    def __init__(
        self,
        spool: Path,
        *,
        cache: Path,
        devices: Sequence[tuple[Device, Mapping[str, str]]],
        stop: Stop,
        name: str = "",
        log: Callable[[str], None] = lambda text: None,
        hidden: bool = True,
    ) -> None:
        """Makes the spool where there is none. ``hidden``: programs do not see it; raises ComputeError where this
        machine cannot hide it."""
        self.folder = SpoolFolder(spool)
        problem = why_not(self.folder.path) if hidden else ""
        if problem:
            self.folder.close()
            raise ComputeError(
                f"this machine cannot hide {spool} from the programs that are measured ({problem}), and whoever can "
                "write there can write results; let the worker run as root or where user namespaces are allowed, or "
                "say --unhidden if you trust every program"
            )
        self.stop, self.log = stop, log
        base = re.sub(r"[^A-Za-z0-9.-]", "-", name or f"{socket.gethostname()}-{os.getpid()}")[:60]
        self.lanes = [
            SpoolLane(
                self.folder,
                device,
                cache=cache,
                # With this worker's own mark, since a claim is known by it, and names may be given twice.
                name=f"{base}-{device.target.kind}{index}.{self.folder.me[:6]}",
                environment=environment,
                stop=stop,
                log=log,
                hidden=hidden,
            )
            for index, (device, environment) in enumerate(devices)
        ]

    @property
    def done(self) -> int:
        """Jobs that came to an end here."""
        return sum(lane.done for lane in self.lanes)

    @property
    def foreign(self) -> int:
        """Jobs in the queue that another version submitted."""
        return max((lane.foreign for lane in self.lanes), default=0)

    def run(self) -> None:
        """Work until there is a reason to stop. Raises InfrastructureError when the spool cannot be used."""
        for lane in self.lanes:
            threading.Thread(target=lane.work, name=lane.name, daemon=True).start()
        try:
            self._keep()
        except BaseException:
            self.stop.asked.set()
            deadline = time.monotonic() + END_SECONDS
            while time.monotonic() < deadline and not all(lane.ended.is_set() for lane in self.lanes):
                # Again and again, since a lane may only now be starting its process.
                for lane in self.lanes:
                    lane.interrupt()
                time.sleep(LEAST_WAIT)
            raise
        finally:
            self.folder.close()
        for lane in self.lanes:
            if lane.problem is not None:
                raise lane.problem

    def _keep(self) -> None:
        """Renew leases and take back those of others that ran out, until every lane has ended."""
        expired = time.monotonic()
        while True:
            if self.stop.asked.is_set():
                for lane in self.lanes:
                    lane.interrupt()
            going = [lane for lane in self.lanes if not lane.ended.is_set()]
            if not going:
                return
            going[0].ended.wait(LEAST_WAIT if self.stop.asked.is_set() else self.folder.lease_s / 6)
            with contextlib.suppress(OSError, InfrastructureError):
                for lane in going:
                    lane.keep()
                if time.monotonic() - expired > self.folder.lease_s / 2:
                    self.folder.expire()
                    expired = time.monotonic()
