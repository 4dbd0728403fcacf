"""What runs on a Ray cluster's nodes: an actor that holds one device's worker process, and a task that builds a program
into that node's cache. Free of Ray itself, which ships these by reference: nodes have this package installed."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Literal

from stitchcuda.compute.folders import data_folder
from stitchcuda.compute.model import Job, WorkerInfo
from stitchcuda.compute.process import TimeLimit, WorkerDied, WorkerProcess
from stitchcuda.hardware.model import Device

Answer = tuple[Literal["outcome", "died", "limit"], bytes]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Ray sets these to an actor's number of CPUs, which would slow the reference as well as the program."""


class Introduction(WorkerInfo):
    """Who an actor is."""

    facts: Device


class RayWorker:
    """One device of a node; the process that works on it is started anew when it dies."""

    def __init__(self, kind: Literal["cuda", "cpu"], cache: str | None, threads: dict[str, str]) -> None:
        self.kind = kind
        self.cache = Path(cache) if cache else data_folder()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k not in THREADS}
        self.environment |= threads
        self.name = f"{socket.gethostname()}-{os.getpid()}-{kind}"
        self.process: WorkerProcess | None = None

    def introduce(self) -> bytes:
        """An Introduction. Raises DeviceError where the device is not there."""
        from stitchcuda.hardware.detect import detect

        device = detect(self.kind)
        me = Introduction(name=self.name, host=socket.gethostname(), pid=os.getpid(), device=device.name, facts=device)
        return me.model_dump_json().encode()

    def answer(self) -> bool:
        """Shows that it lives."""
        return True

    def run(self, data: bytes) -> Answer:
        """Do a job; an encoded Outcome, or how the process ended."""
        try:
            return "outcome", self._open().run(Job.decode(data)).encode()
        except WorkerDied as death:
            return "died", str(death).encode()
        except TimeLimit as limit:
            return "limit", str(limit).encode()

    def _open(self) -> WorkerProcess:
        if self.process is None or not self.process.alive():
            if self.process is not None:
                self.process.close()
            self.process = WorkerProcess(self.cache, name=self.name, environment=self.environment)
        return self.process


def build_on_node(data: bytes, cache: str | None) -> None:
    """Leave a job's library in this node's cache; what fails here, fails in the evaluation with its verdict."""
    from stitchcuda.errors import StitchError
    from stitchcuda.evaluation.build import build

    job = Job.decode(data)
    if job.program is None or job.task is None:
        return
    with contextlib.suppress(StitchError, OSError):
        build(
            job.program,
            job.task.target,
            cache=Path(cache) if cache else data_folder(),
            precision=job.task.precision,
            timeout_s=job.settings.build_timeout_s,
        )
