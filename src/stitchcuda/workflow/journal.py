"""The journal of a run: append-only, every effect durable before it counts, and replayed on resume.

A line is one JSON object whose ``sha256`` covers the line and, through ``prev``, all lines before it. A line that a
killed process left unfinished is cut; anything else that does not verify is damage and is refused.

Replay: the workflow is deterministic given its effects, so a resumed run starts from the beginning and is served
each effect from here, in order, until the journal ends and live work goes on. Replies of model providers are kept
beside that order, under their request's key, because one effect may take several paid requests.
What an effect means is the workflow's business, not this file's.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from stitchcuda.agents.roles import ReplyRecord, RequestKey
from stitchcuda.agents.spending import Spend
from stitchcuda.errors import RunError
from stitchcuda.workflow.storage import full_disk_is_an_error, sync_folder

NAME = "journal.jsonl"
LOCK = "lock"
REPLY = "reply"
REFERENCES = "references"
"""The kind of effect that comes before a role's requests in one node, instead of after them."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Record:
    """One verified line."""

    seq: int
    kind: str
    """'reply' for a provider's reply, otherwise the kind of effect: 'plan', 'code', 'evaluation', ..."""
    node: str
    """State-machine node instance in which it happened, e.g. 'code#3'."""
    data: dict[str, Any]
    seconds: float
    """Wall time that the effect took, seconds."""
    at: str
    """When it was written, ISO 8601."""
    digest: str


def _canonical(data: dict[str, Any]) -> bytes:
    """Equal bytes for equal contents; NaN is equal to itself here."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _digest(line: dict[str, Any]) -> str:
    """SHA-256 over the line without its own hash."""
    return hashlib.sha256(_canonical({n: v for n, v in line.items() if n != "sha256"})).hexdigest()


def read_records(path: Path) -> tuple[list[Record], int]:
    """All whole records of a journal, and the length in bytes they take (what follows is a torn line).

    Raises RunError when there is no journal or a whole line does not verify.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path.parent} is not a run: it has no {NAME}.") from None
    records: list[Record] = []
    length, previous = 0, ""
    for number, raw in enumerate(content.split(b"\n")[:-1], start=1):
        record = _verified(path, number, raw, previous)
        records.append(record)
        previous = record.digest
        length += len(raw) + 1
    return records, length


def ends(record: Record) -> bool:
    """After this record a run is done."""
    return record.kind == "state" and record.data.get("to") == "done"


def _verified(path: Path, number: int, raw: bytes, previous: str) -> Record:
    try:
        line = json.loads(raw)
        if _digest(line) != line["sha256"]:
            raise ValueError("its contents do not match its hash")
        if line["seq"] != number - 1 or line["prev"] != previous:
            raise ValueError("a line before it is missing or was moved")
        return Record(
            seq=line["seq"],
            kind=line["kind"],
            node=line["node"],
            data=line["data"],
            seconds=line["seconds"],
            at=line["at"],
            digest=line["sha256"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path} is damaged at line {number} ({error}), so the run cannot be resumed. Restore the file from a "
            f"copy, or start a new run from its best program: `stitchcuda optimize TASK --from {path.parent / 'best'}`."
        ) from None


class Journal:
    """An open journal: one process at a time, held by a lock that dies with the process.

    Implements ``agents.roles.ReplyLog``. ``node`` is the state-machine node that effects belong to; the workflow
    sets it.
    """

    def __init__(self, folder: Path, lock: int, records: list[Record], length: int) -> None:
        self.folder = folder
        self.path = folder / NAME
        self.node = "prepare#0"
        self.elapsed = 0.0
        """Seconds of all effects so far, replayed ones as journaled: the clock that budgets go by."""
        self.served = 0
        """Effects served from the journal instead of being repeated."""
        self._lock = lock
        self._writing = threading.Lock()
        self._effects = [r for r in records if r.kind != REPLY]
        self._replies: dict[RequestKey, ReplyRecord] = {}
        for record in records:
            if record.kind == REPLY:
                reply = ReplyRecord.model_validate(record.data)
                self._replies[reply.key] = reply
        self._seq = len(records)
        self._previous = records[-1].digest if records else ""
        self._length = length
        self._stream = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @classmethod
    def create(cls, folder: Path) -> Self:
        """A new journal in an existing folder. Raises RunError when there is one already."""
        if (folder / NAME).exists():
            raise RunError(f"{folder} holds a run already; resume it with `stitchcuda runs resume {folder}`.")
        with full_disk_is_an_error(folder):
            journal = cls(folder, _take_lock(folder), [], 0)
            sync_folder(folder)
        return journal

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The journal of a run to go on with; an unfinished last line is cut.

        Raises RunError when the folder is no run, another process has it, or the journal is damaged.
        """
        if not (folder / NAME).is_file():
            raise RunError(f"{folder} is not a run: it has no {NAME}. `stitchcuda runs list` shows the runs there are.")
        lock = _take_lock(folder)
        try:
            records, length = read_records(folder / NAME)
            journal = cls(folder, lock, records, length)
        except BaseException:
            os.close(lock)
            raise
        with full_disk_is_an_error(folder):
            os.ftruncate(journal._stream, length)
            os.fsync(journal._stream)
        return journal

    def close(self) -> None:
        """Release the file and the lock."""
        if self._stream >= 0:
            os.close(self._stream)
            os.close(self._lock)
            self._stream = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def replaying(self) -> bool:
        """The next effect comes from the journal."""
        return self.served < len(self._effects)

    @property
    def upcoming(self) -> str:
        """Kind of the next effect that will be served; empty when the next one is live."""
        return self._effects[self.served].kind if self.replaying else ""

    @property
    def ended(self) -> bool:
        """The run came to its end; nothing was begun after it."""
        last = self._effects[-1] if self._effects else None
        return last is not None and ends(last)

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest journaled effect of this kind."""
        return next((r.data for r in reversed(self._effects) if r.kind == kind), None)

    def effect(self, kind: str, model: type[Model], produce: Callable[[], Model]) -> Model:
        """The result of an effect: as journaled, or by ``produce()`` and then journaled durably.

        A live result makes the same round trip through JSON as a replayed one, so that both runs see equal values.
        An exception of ``produce`` leaves no record; on resume the effect is tried again.
        Raises RunError when the journal holds another effect at this place.
        """
        if self.replaying:
            record = self._effects[self.served]
            if (record.kind, record.node) != (kind, self.node):
                raise self._diverged(record, kind)
            try:
                value = model.model_validate(record.data)
            except ValidationError as error:
                raise RunError(
                    f"{self.path}: record {record.seq} is not a valid {kind} ({error.errors()[0]['msg']}); "
                    "the run was made by another version of stitchcuda."
                ) from None
            self.served += 1
            self.elapsed += record.seconds
            return value
        started = time.monotonic()
        value = produce()
        seconds = round(time.monotonic() - started, 3)
        data = json.loads(json.dumps(value.model_dump(mode="json")))
        value = model.model_validate(data)
        self._append(kind, data, seconds)
        self.served += 1
        self._effects.append(Record(self._seq - 1, kind, self.node, data, seconds, "", self._previous))
        self.elapsed += seconds
        return value

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """Journal a fact that follows from earlier effects (a state change); on replay it must be the same."""
        if self.replaying:
            record = self._effects[self.served]
            if (record.kind, record.node) != (kind, self.node) or _canonical(record.data) != _canonical(data):
                raise self._diverged(record, f"{kind} {data}")
            self.served += 1
            return
        self._append(kind, data, 0.0)
        self.served += 1
        self._effects.append(Record(self._seq - 1, kind, self.node, data, 0.0, "", self._previous))

    def _diverged(self, record: Record, wanted: str) -> RunError:
        return RunError(
            f"{self.path}: record {record.seq} is '{record.kind}' at {record.node}, but this version of stitchcuda "
            f"does '{wanted}' at {self.node} there. Resume with the version that began the run, or start a new one "
            f"with --from {self.folder / 'best'}."
        )

    def _append(self, kind: str, data: dict[str, Any], seconds: float) -> None:
        with self._writing, full_disk_is_an_error(self.folder):
            line: dict[str, Any] = {
                "seq": self._seq,
                "kind": kind,
                "node": self.node,
                "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
                "seconds": seconds,
                "data": data,
                "prev": self._previous,
            }
            line["sha256"] = _digest(line)
            raw = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            try:
                _write_all(self._stream, raw, self._length)
                os.fsync(self._stream)
            except OSError:
                os.ftruncate(self._stream, self._length)
                raise
            self._length += len(raw)
            self._seq += 1
            self._previous = line["sha256"]

    # What the model layer sees (agents.roles.ReplyLog).

    def find(self, key: RequestKey) -> ReplyRecord | None:
        """The reply that was paid for already, if any."""
        return self._replies.get(key)

    def append(self, record: ReplyRecord) -> None:
        """Journal a provider's reply; durable when this returns."""
        self._append(REPLY, json.loads(json.dumps(record.model_dump(mode="json"))), 0.0)
        self._replies[record.key] = record

    def spent(self) -> Spend:
        """What went to effects that are journaled whole: their requests will not be seen again by this process."""
        whole = {effect.node for effect in self._effects if effect.kind != REFERENCES}
        replies = [reply for key, reply in self._replies.items() if key.node in whole]
        return Spend(
            requests=len(replies),
            input_tokens=sum(r.input_tokens for r in replies),
            output_tokens=sum(r.output_tokens for r in replies),
            usd=sum(r.usd for r in replies),
        )

    @property
    def replies(self) -> list[ReplyRecord]:
        """Every paid reply so far, in the order in which they came."""
        return list(self._replies.values())


def _write_all(stream: int, raw: bytes, offset: int) -> None:
    """Write at ``offset``, however many calls it takes."""
    view = memoryview(raw)
    while view:
        written = os.pwrite(stream, view, offset)
        view, offset = view[written:], offset + written


def _take_lock(folder: Path) -> int:
    """An exclusive lock on the run; raises RunError when another process has it."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RunError(f"{folder} is in use by another stitchcuda process; wait for it or stop it first.") from None
    return handle


def is_running(folder: Path) -> bool:
    """A process works on this run now. Never blocks and never takes the lock from it."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)
