"""What a run keeps between slices: a folder, and the same as a few files small enough to leave a machine.

config.json      settings, each fixed when what it decides begins: the cold start, then the first arm
data/            data sets                     memo.jsonl    what was measured
sft.pt           the cold start's changes, float16
arms/NAME/       metrics.jsonl, wall.json, checkpoint.pt while it runs (and kept.jsonl, what rejection learns from),
                 changes.pt and done.json when it is finished
results/NAME.jsonl  one line for each sample of the test; NAME.jsonl.begun while it is taken

A process may be killed at any byte: files are replaced whole, and a line that was cut off is dropped when it is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PART_BYTES = 15 << 20
MOST_BYTES = 62 << 20


class OtherExperiment(ValueError):
    """A folder has other settings, or another cold start, than what was to be put into it."""


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
        """Add settings. Raises OtherExperiment where one was another before: an experiment is not changed half-way."""
        known = self.config()
        for name, value in settings.items():
            if name in known and known[name] != value:
                told = f"{name} is {known[name]!r} in {self.path} and {value!r} now"
                raise OtherExperiment(f"{told}; take another --state")
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


def append(path: Path, *records: Any) -> None:
    """Lines of JSON more. A line that was cut off by the end of an earlier process is removed first."""
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(b"".join(json.dumps(record).encode() + b"\n" for record in records))


def lines(path: Path) -> list[Any]:
    """All whole lines of a file; none of one that is not there."""
    if not path.exists():
        return []
    data = path.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop lines: those written after the checkpoint that is gone on from."""
    if path.exists():
        whole(path, "".join(json.dumps(record) + "\n" for record in lines(path) if wanted(record)).encode())


@contextlib.contextmanager
def timed(arm: Path, what: str, clock: Callable[[], float]) -> Iterator[Callable[[], float]]:
    """Write down in an arm's folder how many seconds this start spends on ``what``, work that is done twice included.
    Gives ``clock`` back; whenever it is asked, which is before each step, what was spent so far is written, so that a
    kill hides one step."""
    file = arm / "wall.json"
    starts = walls(arm)
    began = time.monotonic()

    def write() -> None:
        spent = round(time.monotonic() - began, 2)
        whole(file, json.dumps(starts | {what: [*starts.get(what, []), spent]}).encode())

    def left() -> float:
        write()
        return clock()

    try:
        yield left
    finally:
        write()


def walls(arm: Path) -> dict[str, list[float]]:
    """Seconds that each start of an arm spent, by what for: ``training`` and ``test``."""
    file = arm / "wall.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """A folder for one process at a time; others wait. Whoever is killed holds it no longer."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pack(state: Path, out: Path) -> list[Path]:
    """The folder as at most 5 files of at most 15 MiB in ``out``, without the weights of arms that were tested, which
    nothing needs any more. Where it is too much, the checkpoint of an arm under way is left out, which then begins
    anew. Raises ValueError where that is not enough. What another process packed into ``out`` is replaced."""
    files = sorted(path for path in state.rglob("*") if path.is_file() and not _part(path.relative_to(state)))
    tested = [p for p in files if p.name == "changes.pt" and (state / "results" / f"{p.parent.name}.jsonl").exists()]
    under_way = [path for path in files if path.name == "checkpoint.pt"]
    for left_out in (tested, tested + under_way):
        data = _tar(state, (path for path in files if path not in left_out))
        if len(data) <= MOST_BYTES:
            break
    else:
        raise ValueError(f"the state is {len(data) >> 20} MiB packed, more than {MOST_BYTES >> 20} can leave")
    parts = [out / f"state.tgz.{at}" for at in range(-(-len(data) // PART_BYTES))]
    aside = [out / f"new.{os.getpid()}.{at}" for at in range(len(parts))]
    with held(out):
        # Written beside the earlier ones first: whoever is killed meanwhile leaves a set that belongs together.
        for at, part in enumerate(aside):
            part.write_bytes(data[at * PART_BYTES : (at + 1) * PART_BYTES])
        for new, part in zip(aside, parts, strict=True):
            os.replace(new, part)
        for old in {*out.glob("state.tgz.*"), *out.glob("new.*")} - set(parts):
            old.unlink()
    return parts


def unpack(parts: Path, state: Path) -> None:
    """The folder from its files; nothing happens where it is there already or there are none."""
    found = sorted(parts.glob("state.tgz.*"), key=lambda path: int(path.suffix[1:]))
    if not found or (state / "config.json").exists():
        return
    state.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(path.read_bytes() for path in found)), mode="r:gz") as tar:
        # What says that all is there comes last.
        members = sorted(tar.getmembers(), key=lambda member: member.name == "config.json")
        tar.extractall(state, members, filter="data")


def merge(state: Path, other: Path) -> list[str]:
    """Take what ``other`` has and ``state`` lacks: what was measured, slices, and with its test each arm that was not
    tested to the end in ``state`` and is further in ``other``. Names of the arms taken. Whoever is killed meanwhile
    leaves no arm that is of both, and goes on when the command is given again.

    Raises OtherExperiment, and takes nothing, where the two did not begin from the same cold start with the same
    settings.
    """
    mine, theirs = Folder(state).config(), Folder(other).config()
    differ = sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])
    starts = [(folder / "sft.pt").read_bytes() if (folder / "sft.pt").exists() else b"" for folder in (state, other)]
    if differ or starts[0] != starts[1]:
        what = f"other settings ({', '.join(differ)})" if differ else "another cold start"
        raise OtherExperiment(f"{other} has {what} than {state}: these are not parts of one experiment")
    taken = []
    for name in sorted(path.name for path in (other / "arms").glob("*") if path.is_dir()):
        here = progress(state, name)
        if not here.tested and progress(other, name) > here:
            _take(state, other, name)
            taken.append(name)
    for name, of in (("memo.jsonl", lambda line: json.dumps(line[0])), ("slices.jsonl", json.dumps)):
        known = {of(line) for line in lines(state / name)}
        append(state / name, *(line for line in lines(other / name) if of(line) not in known))
    whole(state / "config.json", json.dumps(theirs | mine, indent=1).encode())
    return taken


class Progress(NamedTuple):
    """How far an arm is; the larger one is further. ``kept``: there is something that its next start goes on from, in
    ``steps`` at most; ``answers``: to a test that is under way."""

    tested: bool
    trained: bool
    kept: bool
    steps: int
    answers: int


def progress(state: Path, name: str) -> Progress:
    """How far an arm is in a run's folder; one that is not there has not begun."""
    arm, result = state / "arms" / name, state / "results" / f"{name}.jsonl"
    return Progress(
        tested=result.exists(),
        trained=(arm / "changes.pt").exists(),
        kept=(arm / "checkpoint.pt").exists() or (arm / "kept.jsonl").exists(),
        steps=len(lines(arm / "metrics.jsonl")),
        answers=len(lines(result.with_name(f"{result.name}.begun"))),
    )


def _take(state: Path, other: Path, name: str) -> None:
    """An arm with its test from ``other``, instead of the one in ``state``."""
    arm, aside = state / "arms" / name, state / "arms.part"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(other / "arms" / name, aside / "new")
    # The test goes first and comes last: it is of these weights and of no others.
    result = Folder(state).result(name)
    begun = result.with_name(f"{result.name}.begun")
    begun.unlink(missing_ok=True)
    if arm.exists():
        os.rename(arm, aside / "old")
    arm.parent.mkdir(exist_ok=True)
    os.rename(aside / "new", arm)
    for file in (begun, result):
        if (theirs := other / "results" / file.name).exists():
            whole(file, theirs.read_bytes())
    shutil.rmtree(aside)


def _part(path: Path) -> bool:
    """Whether it is written or taken just now."""
    return any(name.endswith(".part") for name in path.parts)


def _tar(state: Path, files: Iterable[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=4) as tar:
        for path in files:
            tar.add(path, arcname=str(path.relative_to(state)))
    return buffer.getvalue()
