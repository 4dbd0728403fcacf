"""Baselines measured earlier, by task, device and versions: what the screen tier compares with. JSON files,
written whole; they can be carried to another machine of the same kind."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.errors import StitchError
from stitchcuda.evaluation.model import Timing
from stitchcuda.hardware.detect import torch_version
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Precision, Task

VERSION = 1
"""Raise when the protocol changes in a way that makes earlier timings incomparable."""


class Place(BaseModel):
    """What timings depend on besides the task: they are comparable where all of this is equal."""

    model_config = ConfigDict(frozen=True)

    protocol: int = VERSION
    device: str = Field(description="the device's name")
    driver: str = ""
    runtime: str = Field(default="", description="CUDA version that torch uses; empty on cpu")
    torch: str = ""
    cores: int = Field(description="multiprocessors, or CPU cores")
    threads: str = Field(default="", description="OMP_NUM_THREADS, which a cpu's times depend on")

    @classmethod
    def here(cls, device: Device) -> Place:
        """This machine with this device."""
        return cls(
            device=device.name,
            driver=device.driver,
            runtime=device.runtime,
            torch=torch_version()[0],
            cores=device.multiprocessors,
            threads=os.environ.get("OMP_NUM_THREADS", ""),
        )

    def differs(self, other: Place) -> list[str]:
        """In what, as 'driver 580.1, not 570.2' (this one's first)."""
        mine, theirs = self.model_dump(), other.model_dump()
        return [f"{name} {mine[name]!r}, not {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]


class Shared(BaseModel):
    """The baselines of one task, to be carried elsewhere."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field(description="name, for people")
    origin: str = ""
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="``Task.digest``")
    precision: Precision
    timings: dict[str, Timing]


class Book(BaseModel):
    """A file of shared baselines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    place: Place
    date: str = Field(description="when it was written, UTC, ISO 8601")
    tasks: list[Shared]


def cache_path(cache: Path, task: Task, device: Device, torch_version: str, cores: int) -> Path:
    """Where the baselines of a task on a device lie."""
    place = Place.here(device).model_copy(update={"torch": torch_version, "cores": cores})
    return entry_path(cache, task.digest, place)


def entry_path(cache: Path, digest: str, place: Place) -> Path:
    """Where the baselines of the task with this digest lie for a place."""
    parts = (str(place.protocol), digest, place.device, place.driver, place.runtime, place.torch, str(place.cores))
    name = hashlib.sha256("\0".join((*parts, place.threads)).encode()).hexdigest()[:32]
    return cache / "baselines" / f"{name}.json"


def read(path: Path) -> dict[str, Timing]:
    """What is there; empty when nothing is or it is damaged."""
    try:
        raw = json.loads(path.read_text())
        return {str(name): Timing.model_validate(value) for name, value in raw.items()}
    except (OSError, ValueError, AttributeError, ValidationError):
        return {}


def write(path: Path, timings: dict[str, Timing]) -> None:
    """Replace the file at once, so that readers never see half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({name: timing.model_dump() for name, timing in timings.items()}, file)
    os.replace(file.name, path)


def export_book(path: Path, device: Device, tasks: Sequence[Shared]) -> None:
    """Write baselines for other machines with the same device and versions."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    book = Book(place=Place.here(device), date=now, tasks=list(tasks))
    path.write_text(book.model_dump_json(indent=1) + "\n", encoding="utf-8")


def import_book(path: Path, cache: Path, device: Device) -> list[Shared]:
    """Take baselines from a file into the cache; what was measured here stays. Gives the tasks that were taken.

    Raises StitchError when the file is none, or was made on another device or with other versions.
    """
    try:
        book = Book.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StitchError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise StitchError(f"{path} holds no baselines: {where}: {first['msg']}") from None
    here = Place.here(device)
    if different := book.place.differs(here):
        raise StitchError(
            f"{path} was measured with {'; '.join(different)} here, so its times do not compare with this machine's. "
            "Measure them here with `stitchcuda baseline`."
        )
    for task in book.tasks:
        target = entry_path(cache, task.digest, here)
        note = f"imported, measured until {book.date[:10]}"
        taken = {n: t.model_copy(update={"note": t.note or note}) for n, t in task.timings.items()}
        write(target, taken | read(target))
    return book.tasks
