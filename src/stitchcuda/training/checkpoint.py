"""The folder of a training: what it was started with, its checkpoints, and how it ended.

```
train.json        settings, model, data, versions: all that ``train resume`` needs
metrics.jsonl     what was measured (``training.metrics``)
samples.jsonl     completions with their rewards, of GRPO
checkpoints/      checkpoint-STEP, each with a mark once it is whole
adapter/, model/  the result: LoRA weights, or all of them
result.json       how it ended
```
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.errors import TrainingError
from stitchcuda.training.config import Kind, TrainConfig

STARTED, RESULT, CHECKPOINTS, WHOLE = "train.json", "result.json", "checkpoints", "whole.json"
ADAPTER, MODEL = "adapter", "model"
_NAME = re.compile(r"checkpoint-(\d+)")


class Started(BaseModel):
    """What a training was started with."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    config: TrainConfig
    base: str = Field(description="folder or name of the model with all its weights")
    merged: list[str] = Field(
        default_factory=list, description="folders of adapters that are added to its weights before anything is trained"
    )
    data: str = Field(description="folder of the data set")
    data_digest: str = Field(description="of its rows, so that a resumed training has the same")
    compute: str = Field(default="local", description="where completions are measured; recorded:PATH runs nothing")
    target: str = Field(default="auto", description="auto, cuda or cpu: what programs are measured on")
    versions: dict[str, str] = Field(default_factory=dict)
    only_look: bool = Field(default=False, description="look at held-out rows, and train nothing")


class Result(BaseModel):
    """How a training ended, or stands."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    stopped: str = Field(description="done, looked, or why before its last step: seconds, signal, unscored")
    step: int
    steps: int = Field(description="of the whole training")
    model: str = Field(description="folder of the result: LoRA weights or all of them")
    seconds: dict[str, float] = Field(default_factory=dict, description="of this start, by phase")
    peak_bytes: dict[str, int] = Field(default_factory=dict, description="largest peak by phase")
    rows: dict[str, int] = Field(
        default_factory=dict, description="rows trained on and looked at, and left out by reason"
    )
    last: dict[str, Any] = Field(default_factory=dict, description="the last line of metrics")
    held_out: dict[str, Any] = Field(default_factory=dict, description="the last look at held-out tasks")


@contextmanager
def held(folder: Path, *, main: bool = True) -> Iterator[None]:
    """Keep others from training in the folder. Raises TrainingError while another process does."""
    folder.mkdir(parents=True, exist_ok=True)
    if not main:
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TrainingError(f"another process trains in {folder}; wait for it, or give another --out") from None
        yield


def write_started(folder: Path, started: Started) -> None:
    """Write ``train.json``. Raises TrainingError where the folder has another training."""
    path = folder / STARTED
    if path.exists():
        raise TrainingError(
            f"{folder} holds a training already; go on with it by `stitchcuda train resume {folder}`, or give another "
            "--out"
        )
    _write(path, started.model_dump_json(indent=1))


def rewrite_started(folder: Path, started: Started) -> None:
    """Write ``train.json`` anew, for a training that goes on with other settings."""
    _write(folder / STARTED, started.model_dump_json(indent=1))


def read_started(folder: Path) -> Started:
    """What the training in the folder was started with. Raises TrainingError."""
    try:
        return Started.model_validate_json((folder / STARTED).read_bytes())
    except FileNotFoundError:
        raise TrainingError(f"{folder} holds no training: it has no {STARTED}") from None
    except ValidationError as error:
        raise TrainingError(f"{folder / STARTED} is of another version: {error.errors()[0]['msg']}") from None


def write_result(folder: Path, result: Result) -> None:
    """Write ``result.json``."""
    _write(folder / RESULT, result.model_dump_json(indent=1))


def read_result(folder: Path) -> Result | None:
    """How it ended; None where it has not."""
    path = folder / RESULT
    return Result.model_validate_json(path.read_bytes()) if path.is_file() else None


def mark_whole(checkpoint: Path, processes: int) -> None:
    """Say that a checkpoint is whole, once all of it is on disk."""
    for path in checkpoint.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _write(checkpoint / WHOLE, json.dumps({"processes": processes}))


def latest(folder: Path, processes: int) -> Path | None:
    """The newest whole checkpoint; those that a kill left unfinished are removed. None where there is none.

    Raises TrainingError where it was written by another number of processes: their random numbers are in it.
    """
    found = sorted(_checkpoints(folder), reverse=True)
    for _, path in found:
        if not (path / WHOLE).is_file():
            shutil.rmtree(path, ignore_errors=True)  # every process of a training does it, all at once
            continue
        had = json.loads((path / WHOLE).read_bytes())["processes"]
        if had != processes:
            raise TrainingError(f"{path} was written by {had} processes, and there are {processes}; start as many")
        return path
    return None


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    place = folder / CHECKPOINTS
    for path in place.iterdir() if place.is_dir() else []:
        if (match := _NAME.fullmatch(path.name)) and path.is_dir():
            yield int(match[1]), path


def data_digest(folder: Path) -> str:
    """SHA-256 over the rows' files. Raises TrainingError where there are none."""
    found = hashlib.sha256()
    files = [path for path in (folder / "train.parquet", folder / "held_out.parquet") if path.is_file()]
    if not files:
        raise TrainingError(f"{folder} is no data set: it has no train.parquet; `stitchcuda dataset build` makes one")
    for path in files:
        found.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def _write(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
