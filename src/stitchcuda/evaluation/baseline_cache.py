"""Baselines measured earlier, by task, device and versions: what the screen tier compares with. JSON files,
written whole."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from stitchcuda.evaluation.model import Timing
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Task

VERSION = 1
"""Raise when the protocol changes in a way that makes earlier timings incomparable."""


def cache_path(cache: Path, task: Task, device: Device, torch_version: str, cores: int) -> Path:
    """Where the baselines of a task on a device lie."""
    parts = (str(VERSION), task.digest, device.name, device.driver, device.runtime, torch_version, str(cores))
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return cache / "baselines" / (hashlib.sha256("\0".join((*parts, threads)).encode()).hexdigest()[:32] + ".json")


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
