"""What a run keeps between slices: a folder, and the same as a few files small enough to leave a machine.

config.json      settings, fixed once the first arm has begun
data/            data sets                     memo.jsonl    what was measured
sft.pt           the cold start's changes, float16
arms/NAME/       metrics.jsonl, checkpoint.pt while it runs, changes.pt and done.json when it is finished
results/NAME.jsonl  one line for each sample of the test
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PART_BYTES = 15 << 20
MOST_PARTS = 8
MOST_BYTES = 62 << 20


class Folder:
    """A run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def arm(self, name: str) -> Path:
        """An arm's folder."""
        path = self.path / "arms" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def result(self, name: str) -> Path:
        """A model's samples on the test."""
        (self.path / "results").mkdir(exist_ok=True)
        return self.path / "results" / f"{name}.jsonl"

    def config(self) -> dict[str, Any]:
        """The settings so far; empty at the beginning."""
        file = self.path / "config.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def settle(self, **settings: Any) -> dict[str, Any]:
        """Add settings. Raises ValueError where one was another before: an experiment is not changed half-way."""
        known = self.config()
        for name, value in settings.items():
            if name in known and known[name] != value:
                raise ValueError(f"{name} is {known[name]!r} in {self.path} and {value!r} now; take another --state")
        whole(self.path / "config.json", json.dumps(known | settings, indent=1).encode())
        return known | settings


def whole(path: Path, data: bytes) -> None:
    """Write a file so that it is all there or not at all."""
    aside = path.with_suffix(path.suffix + ".part")
    aside.write_bytes(data)
    os.replace(aside, path)


def save_tensors(path: Path, value: Any) -> None:
    """torch.save, all or nothing."""
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    whole(path, buffer.getvalue())


def load_tensors(path: Path) -> Any:
    """torch.load onto the CPU, plain tensors and numbers only."""
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


def append(path: Path, record: dict[str, Any]) -> None:
    """One line of JSON more."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file; none of one that is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop lines: those written after the checkpoint that is gone on from."""
    if path.exists():
        whole(path, "".join(json.dumps(record) + "\n" for record in lines(path) if wanted(record)).encode())


def pack(state: Path, out: Path) -> list[Path]:
    """The folder as at most 8 files of at most 15 MiB in ``out``. What can be made again is left out first where it is
    too much: finished arms' weights, then an unfinished arm's checkpoint. Raises ValueError where that is not
    enough."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("state.tgz.*"):
        old.unlink()
    files = sorted(path for path in state.rglob("*") if path.is_file() and not path.name.endswith(".part"))
    for left_out in ((), ("changes.pt",), ("changes.pt", "checkpoint.pt")):
        data = _tar(state, (path for path in files if path.name not in left_out))
        if len(data) <= MOST_BYTES:
            break
    else:
        raise ValueError(f"the state is {len(data) >> 20} MiB packed, more than {MOST_BYTES >> 20} can leave")
    parts = []
    for at in range(0, len(data), PART_BYTES):
        parts.append(out / f"state.tgz.{at // PART_BYTES}")
        parts[-1].write_bytes(data[at : at + PART_BYTES])
    return parts


def unpack(parts: Path, state: Path) -> None:
    """The folder from its files; nothing happens where it is there already or there are none."""
    found = sorted(parts.glob("state.tgz.*"), key=lambda path: int(path.suffix[1:]))
    if not found or (state / "config.json").exists():
        return
    state.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(path.read_bytes() for path in found)), mode="r:gz") as tar:
        tar.extractall(state, filter="data")


def _tar(state: Path, files: Iterable[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=4) as tar:
        for path in files:
            tar.add(path, arcname=str(path.relative_to(state)))
    return buffer.getvalue()
