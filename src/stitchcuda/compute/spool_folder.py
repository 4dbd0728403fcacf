"""A spool on disk: the layout, the names, and the operations that are atomic on a local disk and over NFS alike. Who
does what and when is in ``spool`` (the orchestrator) and ``spool_worker``.

    spool.json  what both sides must agree on
    jobs/       PRIORITY-TIME~QUEUE~ID~1of3.json: waiting; claimed by renaming it to
    claimed/    the same name ~WORKER: a lease that lasts while the file's time is fresh
    done/       ID.json: an Outcome. The first one stands; later ones are kept beside it and not used
    failed/     what was given up, each with the reason beside it
    workers/    NAME.json: who is there; the file's time is its heartbeat
    artifacts/  further files of jobs

Times are compared as the file server tells them, so clocks of machines may differ. Names that start with a dot are
being written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from stitchcuda.compute.model import NAME, Job, JobFailure, Outcome, Versions, WorkerInfo
from stitchcuda.compute.spool_entry import Entry
from stitchcuda.compute.spool_files import BadFile, inside, link_once, read_regular, time_of
from stitchcuda.errors import ComputeError, InfrastructureError
from stitchcuda.hardware.model import Device

FORMAT = 1
LEASE_SECONDS = 60.0
"""A job whose worker gave no sign for so long goes to another; NFS clients may see times a few seconds late."""
LARGEST = 64 << 20
"""Bytes of a job or result that are still read."""
FOLDERS = ("jobs", "claimed", "done", "failed", "workers", "artifacts")
LEFTOVER_SECONDS = 3600.0
"""After which a file that was begun and not finished is removed."""


class Registered(WorkerInfo):
    """A worker's own file."""

    kind: Literal["cuda", "cpu"]
    facts: Device


class SpoolFolder:
    """The operations. Raises InfrastructureError, in a sentence, when the disk is full or the folder is gone."""

    def __init__(self, path: Path, *, create: bool = True, lease_s: float | None = None) -> None:
        """Open a spool, made where there is none. Raises ComputeError for a folder that is something else."""
        self.path = path.absolute()
        if create:
            self._create(lease_s or LEASE_SECONDS)
        try:
            agreed = json.loads(read_regular(self.path / "spool.json", 1 << 16))
            format_, self.lease_s = int(agreed["format"]), float(agreed["lease_s"])
        except (OSError, ValueError, KeyError, TypeError, BadFile):
            raise ComputeError(
                f"{path} is no spool: it has no readable spool.json; `--compute spool:DIR` makes one"
            ) from None
        if format_ != FORMAT:
            raise ComputeError(
                f"{path} is a spool of format {format_}, and this version works with {FORMAT}: "
                "use one version on both sides, or another folder"
            )
        if not 0.1 <= self.lease_s <= 86400:
            raise ComputeError(f"{path / 'spool.json'} says lease_s {self.lease_s:g}; it must be 0.1 to 86400 seconds")
        self.me = uuid.uuid4().hex[:12]

    def _create(self, lease_s: float) -> None:
        with self.told():
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / "spool.json").exists():
                if any(p.name not in FOLDERS and not p.name.startswith(".") for p in self.path.iterdir()):
                    raise ComputeError(f"{self.path} holds other files and no spool; give an empty folder or a new one")
                text = json.dumps({"format": FORMAT, "lease_s": lease_s, "stitchcuda": Versions().stitchcuda})
                self._publish(self.path / "spool.json", text.encode(), once=True)
            for name in FOLDERS:
                (self.path / name).mkdir(exist_ok=True)

    # ---- Jobs ----

    def submit(self, job: Job) -> Entry:
        """Put a job into the queue."""
        entry = Entry.of(job)
        with self.told():
            data = job.encode()
            if len(data) > LARGEST:
                raise InfrastructureError(f"job {job.id} has {len(data):,} bytes; a spool takes at most {LARGEST:,}")
            # Not forced to the disk: what a loss of power damages is refused, and can be submitted again.
            self._publish(self.path / "jobs" / entry.name, data, forced=False)
        return entry

    def listed(self, folder: Literal["jobs", "claimed"]) -> list[Entry]:
        """Jobs there, next one first; what is no job is moved to failed/."""
        entries = []
        with self.told():
            names = os.listdir(self.path / folder)
        for name in names:
            entry = Entry.parse(name)
            if entry is not None and bool(entry.worker) == (folder == "claimed"):
                entries.append(entry)
            elif not name.startswith("."):
                self.reject(self.path / folder / name, "the name is not that of a job")
        return sorted(entries, key=lambda e: e.order)

    def claim(self, entry: Entry, worker: str) -> Entry | None:
        """Take a waiting job; None when another was faster."""
        mine = replace(entry, worker=worker)
        source, destination = self.path / "jobs" / entry.name, self.path / "claimed" / mine.name
        with self.told():
            try:
                # First, so that the lease is fresh from the moment the claim is seen.
                os.utime(source, follow_symlinks=False)
                os.rename(source, destination)
            except FileNotFoundError:
                # A rename over NFS may be done and its answer lost; then the retry finds nothing.
                return mine if os.path.lexists(destination) else None
        return mine

    def read(self, claimed: Entry) -> Job:
        """The job of a claim. Raises BadFile, and FileNotFoundError when the claim was lost."""
        data = read_regular(self.path / "claimed" / claimed.name, LARGEST)
        try:
            job = Job.decode(data)
        except ValueError as error:
            raise BadFile(f"not a valid job: {str(error)[:500]}") from None
        if job.id != claimed.id:
            raise BadFile(f"the file's name says job {claimed.id} and its text {job.id}")
        return job

    def renew(self, claimed: Entry) -> bool:
        """Keep a lease; False when it was lost."""
        try:
            os.utime(self.path / "claimed" / claimed.name, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def release(self, claimed: Entry, *, counted: bool) -> None:
        """Put a claimed job back; ``counted``: the attempt is used up, and was the last one if there are no more."""
        attempt = claimed.attempt + (1 if counted else 0)
        source = self.path / "claimed" / claimed.name
        if attempt > claimed.attempts:
            message = f"{claimed.attempts} times a worker began the job and was lost, the last time {claimed.worker}"
            self.give_up(claimed, JobFailure(reason="worker_lost", message=message))
            return
        with contextlib.suppress(FileNotFoundError):
            os.rename(source, self.path / "jobs" / replace(claimed, worker="", attempt=attempt).name)

    def withdraw(self, entry: Entry) -> bool:
        """Take a waiting job out; False when it has begun."""
        for found in (entry, *(other for other in self.listed("jobs") if other.id == entry.id)):
            try:
                os.unlink(self.path / "jobs" / found.name)
            except FileNotFoundError:
                continue
            return True
        return False

    def expire(self) -> list[Entry]:
        """Put back or give up the jobs whose leases ran out; these."""
        found = []
        claims = self.listed("claimed")
        if not claims:
            return []
        now = self.now()
        for claimed in claims:
            path = self.path / "claimed" / claimed.name
            try:
                age = now - time_of(path)
            except FileNotFoundError:
                continue
            except BadFile as problem:
                self.give_up(claimed, JobFailure(reason="bad_job", message=str(problem)))
                continue
            if self.finished(claimed.id):
                # Its worker died between the result and the end of the claim, or another was faster.
                if age > self.lease_s:
                    path.unlink(missing_ok=True)
            elif age > self.lease_s:
                self.release(claimed, counted=True)
                found.append(claimed)
        return found

    # ---- Results ----

    def finished(self, job: str) -> bool:
        """Whether there is a result."""
        return os.path.lexists(self.path / "done" / f"{job}.json")

    def finish(self, outcome: Outcome, claimed: Entry | None) -> bool:
        """Write a result and end the claim; False when there was a result already, which stands."""
        with self.told():
            first = self._publish(self.path / "done" / f"{outcome.job}.json", outcome.encode(), once=True)
            if not first:
                late = f"{outcome.job}~late~{self.me}-{uuid.uuid4().hex[:6]}.json"
                self._publish(self.path / "done" / late, outcome.encode())
        if claimed is not None:
            (self.path / "claimed" / claimed.name).unlink(missing_ok=True)
        return first

    def take(self, outcome: Outcome, data: bytes) -> bool:
        """Put a result there that was carried from another spool, byte for byte; False when there was one already."""
        with self.told():
            return self._publish(self.path / "done" / f"{outcome.job}.json", data, once=True)

    def keep(self, folder: str, name: str, data: bytes) -> None:
        """Put an artifact there; both parts are plain names."""
        with self.told():
            (self.path / "artifacts" / folder).mkdir(exist_ok=True)
            self._publish(self.path / "artifacts" / folder / name, data, forced=False)

    def result(self, job: str) -> Outcome | None:
        """A job's Outcome; None while there is none. One that cannot be read is moved to failed/ and is a failure."""
        path = self.path / "done" / f"{job}.json"
        try:
            outcome = Outcome.decode(read_regular(path, LARGEST))
            if outcome.job != job:
                raise BadFile(f"it is about job {outcome.job}")
        except FileNotFoundError:
            return None
        except (BadFile, ValueError) as problem:
            self.reject(path, f"not a valid result: {str(problem)[:500]}")
            failure = JobFailure(
                reason="infrastructure",
                message=f"the result in {path} was damaged ({str(problem)[:200]}); moved to failed/",
            )
            return Outcome(job=job, kind="probe", failure=failure)
        if not outcome.artifacts:
            return outcome
        files = {
            name: str(self.path / "artifacts" / where) for name, where in outcome.artifacts.items() if inside(where)
        }
        return outcome.model_copy(update={"artifacts": files})

    def stands(self, job: str) -> bool:
        """Whether there is a result that counts for who submits the job anew: not one that the machine is to blame
        for."""
        known = self.result(job) if self.finished(job) else None
        return known is not None and not known.machine_failed

    def put_aside(self, job: str, data: bytes) -> bool:
        """Whether this very result was moved away before by ``forget``."""
        for path in (self.path / "failed").glob(f"{job}.json*"):
            with contextlib.suppress(OSError, BadFile):
                if path.suffix != ".reason" and read_regular(path, LARGEST) == data:
                    return True
        return False

    def forget(self, job: str) -> None:
        """Move a result to failed/, so that the job can be submitted anew."""
        path = self.path / "done" / f"{job}.json"
        self.reject(path, "a failure, and the job was submitted again")
        path.with_name(f".won-{path.name}").unlink(missing_ok=True)

    def results(self) -> Iterator[str]:
        """Ids of all jobs that have a result."""
        with self.told():
            names = os.listdir(self.path / "done")
        for name in names:
            if name.endswith(".json") and NAME.fullmatch(name[:-5]):
                yield name[:-5]

    def give_up(self, claimed: Entry, failure: JobFailure) -> None:
        """Move a claimed job to failed/, with a result that says why."""
        self.reject(self.path / "claimed" / claimed.name, f"{failure.reason}: {failure.message}")
        outcome = Outcome(
            job=claimed.id, kind="probe", failure=failure, attempts=min(claimed.attempt, claimed.attempts)
        )
        self.finish(outcome, None)

    def reject(self, path: Path, reason: str) -> None:
        """Move anything to failed/ as it is, without looking into it."""
        name = path.name[:200]
        destination = self.path / "failed" / name
        if os.path.lexists(destination):
            destination = destination.with_name(f"{name}~{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(OSError):
            os.rename(path, destination)
            destination.with_name(f"{destination.name}.reason").write_text(reason + "\n", encoding="utf-8")

    # ---- Workers ----

    def register(self, worker: Registered) -> None:
        """Write or renew a worker's own file."""
        with self.told():
            self._publish(
                self.path / "workers" / f"{worker.name}.json", worker.model_dump_json().encode(), forced=False
            )

    def beat(self, name: str) -> None:
        """A worker's sign of life."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path / "workers" / f"{name}.json")

    def leave(self, name: str) -> None:
        """Take a worker's own file away."""
        (self.path / "workers" / f"{name}.json").unlink(missing_ok=True)

    def workers(self) -> list[Registered]:
        """Those that gave a sign of life within twice the lease."""
        now = self.now()
        found = []
        for path in (self.path / "workers").iterdir():
            if path.suffix != ".json" or path.name.startswith("."):
                continue
            try:
                if now - time_of(path) <= 2 * self.lease_s:
                    found.append(Registered.model_validate_json(read_regular(path, 1 << 20)))
            except FileNotFoundError:
                continue
            except (BadFile, ValueError) as problem:
                self.reject(path, f"not a worker's file: {str(problem)[:300]}")
        return found

    def now(self) -> float:
        """The time of the file server, seconds: the only clock that file times are compared with."""
        path = self.path / "workers" / f".clock-{self.me}"
        with self.told():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.utime(handle)
                return os.fstat(handle).st_mtime
            finally:
                os.close(handle)

    def close(self) -> None:
        """Remove this side's own files, and what others began long ago and never finished."""
        with contextlib.suppress(OSError, InfrastructureError):
            limit = self.now() - LEFTOVER_SECONDS
            for folder in FOLDERS:
                for path in (self.path / folder).glob(".*"):
                    if path.name == f".clock-{self.me}" or path.lstat().st_mtime < limit:
                        path.unlink(missing_ok=True)

    # ---- Files ----

    def _publish(self, path: Path, data: bytes, *, once: bool = False, forced: bool = True) -> bool:
        """Write a file so that readers see all of it or nothing; with ``once``, False when one is there already."""
        aside = path.with_name(f".{uuid.uuid4().hex}")
        try:
            with open(aside, "xb") as file:
                file.write(data)
                file.flush()
                if forced:
                    os.fsync(file.fileno())
            if not once:
                os.replace(aside, path)
                return True
            return link_once(aside, path)
        finally:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Turn what a full or lost disk does into a sentence."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InfrastructureError(
                    f"the disk of the spool {self.path} is full; free some space there (what finished sweeps left in "
                    "done/ and artifacts/ can go), and go on"
                ) from error
            raise InfrastructureError(f"the spool {self.path} cannot be used: {error}") from error
