"""This machine: one worker process for each GPU, or one for the CPU, and a pool that builds programs for GPUs while
these are busy."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from stitchcuda.compute.devices import find_devices, visible_gpus
from stitchcuda.compute.model import Capacity, Job, Outcome
from stitchcuda.compute.process import TimeLimit, WorkerDied, WorkerProcess
from stitchcuda.compute.queueing import Pending, Waiting
from stitchcuda.errors import DeviceError, InfrastructureError, StitchError
from stitchcuda.hardware.model import Device

TURN_SECONDS = 1.0
"""How long an idle lane waits before it looks whether it is still wanted."""
PAUSE_SECONDS = 0.2
"""Before a new process takes the place of one that died, times the job's attempts so far."""
MOST_BUILDERS = 8


class Lane:
    """One device and the process that works on it, started anew when it dies."""

    def __init__(
        self, waiting: Waiting, device: Device, cache: Path, name: str, environment: Mapping[str, str]
    ) -> None:
        self.waiting, self.device, self.cache, self.name = waiting, device, cache, name
        self.environment = dict(os.environ) | dict(environment)
        self.process: WorkerProcess | None = None
        self.busy: Pending | None = None
        self.closed = False
        self._guard = threading.Lock()
        self.thread = threading.Thread(target=self._work, name=f"stitchcuda-{name}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while not self.closed:
            pending = self.waiting.take(self._fits, worker=self, wait=TURN_SECONDS)
            if pending is None:
                continue
            self.busy = pending
            try:
                self.do(pending)
            except Exception as error:
                # A lane that ended would leave its queue to nobody.
                pending.fail("infrastructure", f"{type(error).__name__}: {error}")
            finally:
                self.busy = None

    def do(self, pending: Pending) -> None:
        """One attempt at one job; a lost worker puts it back, until its attempts are used up."""
        if not pending.begin():
            return
        job = pending.job
        try:
            outcome = self._process().run(job)
        except TimeLimit as limit:
            self.waiting.forget(self)
            pending.fail("time_limit", str(limit))
        except WorkerDied as death:
            self.waiting.forget(self)
            if self.closed:
                pending.fail("cancelled", "the place was closed")
            elif pending.attempts < job.attempts:
                threading.Event().wait(PAUSE_SECONDS * pending.attempts)
                self.waiting.put(pending, first=True)
            else:
                pending.fail("worker_lost", f"{death}; that was attempt {pending.attempts} of {job.attempts}")
        else:
            self.device = outcome.device or self.device
            pending.settle(outcome)

    def _fits(self, job: Job) -> bool:
        return job.wanted.fits(self.device)

    def _process(self) -> WorkerProcess:
        with self._guard:
            if self.closed:
                raise WorkerDied("the place was closed")
            if self.process is None or not self.process.alive():
                if self.process is not None:
                    self.process.close()
                self.process = WorkerProcess(self.cache, name=self.name, environment=self.environment)
            return self.process

    def close(self) -> None:
        """End the process, in the middle of its job if need be."""
        with self._guard:
            self.closed = True
            if self.process is not None:
                self.process.close()


class LocalCompute:
    """The devices of this machine; a worker process starts when a job wants its device.

    ``cpu_workers`` above 1 lets that many CPU jobs run beside each other where no time is measured (probes): what is
    measured takes the device's lock. ``build_ahead``: let a pool build programs before their device has its turn; None:
    for GPUs, on machines with cores to spare.
    """

    def __init__(
        self, *, cache: Path, cpu_workers: int = 1, build_ahead: bool | None = None, builders: int | None = None
    ) -> None:
        self.cache = cache
        self.cpu_workers = cpu_workers
        cores = len(os.sched_getaffinity(0))
        self.build_ahead = build_ahead
        self._spare_cores = cores >= 4
        self._builders = ThreadPoolExecutor(builders or min(MOST_BUILDERS, max(1, cores // 2)), "stitchcuda-build")
        self._building = 0
        self._waiting = Waiting()
        self._lanes: dict[str, list[Lane]] = {}
        self._guard = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, job: Job) -> Future[Outcome]:
        """See ``Compute``."""
        pending = Pending(job, Future())
        try:
            lanes = self._open(job.wanted.kind)
        except DeviceError as error:
            pending.fail("no_device", str(error))
            return pending.future
        if not any(job.wanted.fits(lane.device) for lane in lanes):
            pending.fail("no_device", f"no device of this machine is '{job.wanted.name}'")
        elif self._to_build(job):
            with self._guard:
                self._building += 1
            self._builders.submit(self._build, pending)
        else:
            self._waiting.put(pending)
        return pending.future

    def capacity(self) -> Capacity:
        """See ``Compute``; devices that no job has asked for yet are not known."""
        lanes = [lane for lanes in self._lanes.values() for lane in lanes]
        return Capacity(
            kinds=["cuda", "cpu"] if self._lanes.get("cuda") or visible_gpus() else ["cpu"],
            devices=[lane.device for lane in lanes],
            workers=len(lanes),
            queued=len(self._waiting) + self._building,
            running=sum(lane.busy is not None for lane in lanes),
        )

    def close(self) -> None:
        """See ``Compute``."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        for pending in self._waiting.close():
            pending.fail("cancelled", "the place was closed")
        self._builders.shutdown(wait=False, cancel_futures=False)
        lanes = [lane for lanes in self._lanes.values() for lane in lanes]
        enders = [threading.Thread(target=lane.close) for lane in lanes]
        for thread in enders:
            thread.start()
        for thread in [*enders, *(lane.thread for lane in lanes)]:
            thread.join()

    def _open(self, kind: Literal["cuda", "cpu"]) -> list[Lane]:
        """The lanes for a kind of device, opened where they are not: with their devices known, or one would take jobs
        that are for another's. Raises DeviceError where there is none, or one does not answer."""
        with self._guard:
            if self._closed:
                raise InfrastructureError("the place was closed; no more jobs can be submitted")
            if kind not in self._lanes:
                if kind == "cuda" and not visible_gpus():
                    raise DeviceError("no NVIDIA GPU is visible on this machine; use spool:DIR or ray to reach one")
                found = find_devices(kind) * (self.cpu_workers if kind == "cpu" else 1)
                self._lanes[kind] = [
                    Lane(self._waiting, device, self.cache, f"{kind}{index}", environment)
                    for index, (device, environment) in enumerate(found)
                ]
            return self._lanes[kind]

    def _to_build(self, job: Job) -> bool:
        if job.kind != "evaluate" or not job.builds:
            return False
        return self._spare_cores and job.wanted.kind == "cuda" if self.build_ahead is None else self.build_ahead

    def _build(self, pending: Pending) -> None:
        """Leave the library in the cache, where the worker finds it; what fails here, fails there with its verdict."""
        from stitchcuda.evaluation.build import build

        job = pending.job
        assert job.program is not None
        assert job.task is not None
        try:
            if not self._closed and not pending.future.cancelled():
                build(
                    job.program,
                    job.task.target,
                    cache=self.cache,
                    precision=job.task.precision,
                    timeout_s=job.settings.build_timeout_s,
                )
        except (StitchError, OSError):
            pass
        finally:
            with self._guard:
                self._building -= 1
            self._waiting.put(pending)
