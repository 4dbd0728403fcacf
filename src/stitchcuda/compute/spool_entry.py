"""The names of jobs' files in a spool, which say what a worker must know to choose: order, version, device, tries."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from typing import Literal

from stitchcuda.compute.model import Job, Versions, Wanted
from stitchcuda.hardware.model import Device

_ENTRY = re.compile(
    r"(?P<order>\d\d-[0-9a-f]{16})~(?P<series>[0-9A-Za-z.-]+)\+(?P<kind>cuda|cpu)\+(?P<device>any|[0-9a-f]{12})"
    r"~(?P<id>[A-Za-z0-9][A-Za-z0-9_.-]{0,99})~(?P<attempt>\d{1,3})of(?P<attempts>\d{1,3})(?:~(?P<worker>[\w.-]{1,80}))?\.json"
)


@dataclass(frozen=True)
class Entry:
    """What the name of a job's file says."""

    order: str
    series: str
    kind: Literal["cuda", "cpu"]
    device: str
    id: str
    attempt: int
    attempts: int
    worker: str = ""

    @classmethod
    def of(cls, job: Job) -> Entry:
        """For a job that is submitted now."""
        order = f"{job.priority:02}-{time.time_ns():016x}"
        return cls(
            order, job.versions.series, job.wanted.kind, device_mark(job.wanted), job.id, 1, min(job.attempts, 999)
        )

    @classmethod
    def parse(cls, name: str) -> Entry | None:
        """None for a name that is no job's."""
        match = _ENTRY.fullmatch(name)
        if match is None:
            return None
        return cls(
            match["order"],
            match["series"],
            "cuda" if match["kind"] == "cuda" else "cpu",
            match["device"],
            match["id"],
            int(match["attempt"]),
            int(match["attempts"]),
            match["worker"] or "",
        )

    @property
    def name(self) -> str:
        """The file's."""
        worker = f"~{self.worker}" if self.worker else ""
        queue = f"{self.series}+{self.kind}+{self.device}"
        return f"{self.order}~{queue}~{self.id}~{self.attempt}of{self.attempts}{worker}.json"

    def suits(self, device: Device) -> bool:
        """Whether a worker of this package's series with ``device`` may claim it."""
        if self.series != Versions().series or self.kind != device.target.kind:
            return False
        return self.device in ("any", device_mark(Wanted(kind=self.kind, name=device.name)))


def device_mark(wanted: Wanted) -> str:
    """A device's name as part of a file's."""
    return hashlib.sha256(wanted.name.encode()).hexdigest()[:12] if wanted.name else "any"
