"""The journal of a sweep: what was begun and what came of it, a line each, durable before it counts.

A line is one JSON object whose ``sha256`` covers it and, through ``prev``, all lines before it. A last line that a
killed process left unfinished is cut; anything else that does not verify is damage and is refused. Unlike a run's
journal it is not replayed in order: items end in any order, so that the newest line about an item says how it stands.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from stitchcuda.errors import RunError
from stitchcuda.workflow.lock import take_lock
from stitchcuda.workflow.storage import full_disk_is_an_error, sync_folder

NAME = "journal.jsonl"

Kind = Literal["begun", "device", "item", "record", "failed", "stopped", "resumed", "ended"]
"""begun: settings and items. device: what is measured on, found once. item: one is started. record: one is done.
failed: the machine failed at one. stopped and resumed: of the sweep; ended: every item has a record."""


@dataclass(frozen=True)
class Entry:
    """One verified line."""

    kind: Kind
    data: dict[str, Any]
    at: str
    """UTC, ISO 8601."""
    digest: str


def read_log(path: Path) -> tuple[list[Entry], int]:
    """All whole lines, and the length in bytes that they take. Raises RunError for no journal, or a damaged one."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path.parent} is not a sweep: it has no {NAME}.") from None
    entries: list[Entry] = []
    length, previous = 0, ""
    for number, raw in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(raw)
            if line["sha256"] != _digest(line) or line["prev"] != previous:
                raise ValueError("its contents do not match its hash, or a line before it is missing")
            entry = Entry(line["kind"], line["data"], line["at"], line["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged at line {number} ({error}); restore it from a copy.") from None
        entries.append(entry)
        previous = entry.digest
        length += len(raw) + 1
    return entries, length


def _digest(line: dict[str, Any]) -> str:
    text = json.dumps({n: v for n, v in line.items() if n != "sha256"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Log:
    """An open journal, held by one process; several of its threads may write."""

    def __init__(self, folder: Path) -> None:
        """Raises RunError when another process has it, or it is damaged."""
        self.folder = folder
        self.path = folder / NAME
        self._guard = threading.Lock()
        self._lock = take_lock(folder)
        try:
            self.entries, length = read_log(self.path) if self.path.exists() else ([], 0)
            self._stream = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except BaseException:
            os.close(self._lock)
            raise
        self._end = (length, self.entries[-1].digest if self.entries else "")
        """Bytes and the last line's hash; set at once, since an interrupt may come between any two steps."""
        with full_disk_is_an_error(folder):
            os.ftruncate(self._stream, length)
            os.fsync(self._stream)
            sync_folder(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._stream)
        os.close(self._lock)

    def add(self, kind: Kind, data: dict[str, Any]) -> None:
        """Append a line; durable when this returns."""
        with self._guard, full_disk_is_an_error(self.folder):
            length, previous = self._end
            line: dict[str, Any] = {
                "kind": kind,
                "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "data": data,
                "prev": previous,
            }
            line = json.loads(json.dumps(line))
            line["sha256"] = _digest(line)
            raw = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            rest = memoryview(raw)
            try:
                os.ftruncate(self._stream, length)  # what a write that was interrupted left there does not count
                while rest:
                    rest = rest[os.write(self._stream, rest) :]
                os.fsync(self._stream)
            except OSError:
                os.ftruncate(self._stream, length)
                raise
            self._end = (length + len(raw), line["sha256"])
            self.entries.append(Entry(kind, line["data"], line["at"], line["sha256"]))
