"""The journal of a run: append-only, every effect durable before it counts, and replayed on resume.

A line that a killed process left unfinished is cut; anything else that does not verify is damage and is refused.

Replay: the workflow is deterministic given its effects, so a resumed run starts from the beginning and is served
each effect from here, in order, until the journal ends and live work goes on. Work that goes side by side has a lane
each, with an order of its own: how the lanes' lines are mixed says nothing. Replies of model providers are kept
beside that order, under their request's key, because one effect may take several paid requests.
What a line holds is in ``records``; what an effect means is the workflow's business.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from stitchcuda.agents.roles import ReplyRecord, RequestKey
from stitchcuda.agents.spending import Spend
from stitchcuda.errors import RunError
from stitchcuda.workflow.lock import take_lock
from stitchcuda.workflow.records import (
    MAIN,
    NAME,
    REFERENCES,
    REPLY,
    Record,
    canonical,
    digest_of,
    ends,
    longest,
    read_records,
    side_by_side,
)
from stitchcuda.workflow.storage import full_disk_is_an_error, sync_folder

Model = TypeVar("Model", bound=BaseModel)


class Lane:
    """One order of effects in a journal; used by one thread at a time.

    ``node`` is the state-machine node that effects belong to; the workflow sets it.
    """

    def __init__(self, journal: Journal, name: str, effects: list[Record]) -> None:
        self.name = name
        self.elapsed = 0.0
        """Seconds of this lane's effects so far, replayed ones as journaled."""
        self.served = 0
        """Effects that are done: served, or made live."""
        self._begun: float | None = None
        """When the effect under way was begun, on the monotonic clock."""
        self._journal = journal
        self._effects = effects
        self._node = "prepare#0"
        self._idle = 0.0
        """Seconds of the effect under way that its time leaves out."""

    @property
    def node(self) -> str:
        """Unique in the run: a lane's name stands before its nodes' names."""
        return f"{self.name}:{self._node}" if self.name else self._node

    @node.setter
    def node(self, value: str) -> None:
        self._node = value

    @property
    def worked(self) -> float:
        """``elapsed`` with the effect under way."""
        begun = self._begun
        return self.elapsed + (0.0 if begun is None else time.monotonic() - begun - self._idle)

    @property
    def replaying(self) -> bool:
        """The next effect comes from the journal."""
        return self.served < len(self._effects)

    @property
    def upcoming(self) -> str:
        """Kind of the next effect that will be served; empty when the next one is live."""
        return self._effects[self.served].kind if self.replaying else ""

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within, model requests of this thread belong to this lane's node."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

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
                    f"{self._journal.path}: record {record.seq} is not a valid {kind} ({error.errors()[0]['msg']}); "
                    "the run was made by another version of stitchcuda."
                ) from None
            self.served += 1
            self.elapsed += record.seconds
            return value
        self._idle = 0.0
        started = self._begun = time.monotonic()
        try:
            value = produce()
        finally:
            self._begun = None
        seconds = round(max(0.0, time.monotonic() - started - self._idle), 3)
        data = json.loads(json.dumps(value.model_dump(mode="json")))
        value = model.model_validate(data)
        self._append(kind, data, seconds)
        self.elapsed += seconds
        return value

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """Journal a fact that follows from earlier effects (a state change); on replay it must be the same."""
        if not self.replaying:
            self._append(kind, data, 0.0)
            return
        record = self._effects[self.served]
        if (record.kind, record.node) != (kind, self.node) or canonical(record.data) != canonical(data):
            raise self._diverged(record, f"{kind} {data}")
        self.served += 1

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest journaled effect of this kind in this lane."""
        return next((r.data for r in reversed(self._effects) if r.kind == kind), None)

    def _append(self, kind: str, data: dict[str, Any], seconds: float) -> None:
        self._effects.append(self._journal.write(kind, self.node, data, seconds))
        self.served += 1

    def _diverged(self, record: Record, wanted: str) -> RunError:
        journal = self._journal
        return RunError(
            f"{journal.path}: record {record.seq} is '{record.kind}' at {record.node}, but this version of stitchcuda "
            f"does '{wanted}' at {self.node} there. Resume with the version that began the run, or start a new one "
            f"with --from {journal.folder / 'best'}."
        )


_ACTIVE: ContextVar[Lane | None] = ContextVar("active lane", default=None)


class Journal:
    """An open journal: one process at a time, held by a lock that dies with the process.

    Implements ``agents.roles.ReplyLog``. What it offers of a lane's methods is the main lane's.
    """

    def __init__(self, folder: Path, lock: int, records: list[Record], length: int) -> None:
        self.folder = folder
        self.path = folder / NAME
        self._lock = lock
        self._writing = threading.Lock()
        effects: defaultdict[str, list[Record]] = defaultdict(list)
        self._nodes: set[str] = set()
        """Nodes with an effect other than a look-up."""
        self._replies: dict[RequestKey, ReplyRecord] = {}
        for record in records:
            if record.kind == REPLY:
                reply = ReplyRecord.model_validate(record.data)
                self._replies[reply.key] = reply
            else:
                effects[record.lane].append(record)
                self._remember(record)
        self.main = Lane(self, MAIN, effects.pop(MAIN, []))
        self._opened = [record for record in records if record.kind != REPLY]
        self._journaled = effects
        """Effects of lanes that nobody asked for yet."""
        self._lanes = [self.main]
        self._end = (len(records), length, records[-1].digest if records else "")
        """Lines, bytes and the last line's hash; set at once, since an interrupt may come between any two steps."""
        self._stream = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @classmethod
    def create(cls, folder: Path) -> Self:
        """A new journal in an existing folder. Raises RunError when there is one already."""
        if (folder / NAME).exists():
            raise RunError(f"{folder} holds a run already; resume it with `stitchcuda runs resume {folder}`.")
        with full_disk_is_an_error(folder):
            journal = cls(folder, take_lock(folder), [], 0)
            sync_folder(folder)
        return journal

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The journal of a run to go on with; an unfinished last line is cut.

        Raises RunError when the folder is no run, another process has it, or the journal is damaged.
        """
        if not (folder / NAME).is_file():
            raise RunError(f"{folder} is not a run: it has no {NAME}. `stitchcuda runs list` shows the runs there are.")
        lock = take_lock(folder)
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
        with self._writing:
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

    def lane(self, name: str) -> Lane:
        """The lane by this name, from its beginning. Its part before the first dot names those it goes beside."""
        if not name or ":" in name:
            raise ValueError(f"'{name}' is no name of a lane; expected one without ':'.")
        lane = Lane(self, name, self._journaled.pop(name, []))
        self._lanes.append(lane)
        return lane

    @property
    def _active(self) -> Lane:
        """The lane that this thread works in."""
        active = _ACTIVE.get()
        return active if active is not None and active._journal is self else self.main

    @property
    def node(self) -> str:
        """The node that model requests of this thread belong to."""
        return self._active.node

    @node.setter
    def node(self, value: str) -> None:
        self.main.node = value

    def leave_out(self, seconds: float) -> None:
        """So many seconds of the effect that this thread makes were a wait that is not the run's."""
        self._active._idle += seconds

    @property
    def elapsed(self) -> float:
        """Seconds of the main lane's effects so far."""
        return self.main.elapsed

    @property
    def served(self) -> int:
        """Effects of the main lane that are done."""
        return self.main.served

    @property
    def replaying(self) -> bool:
        """The main lane's next effect comes from the journal."""
        return self.main.replaying

    @property
    def upcoming(self) -> str:
        """Kind of the main lane's next effect that will be served; empty when the next one is live."""
        return self.main.upcoming

    @property
    def mark(self) -> str:
        """Of this run and no other, from its first effect on; empty before."""
        return self.main._effects[0].digest if self.main._effects else ""

    @property
    def ended(self) -> bool:
        """The run came to its end; nothing was begun after it."""
        last = self.main._effects[-1] if self.main._effects else None
        return last is not None and ends(last)

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest journaled effect of this kind in the main lane."""
        return self.main.last(kind)

    def opened(self, kind: str) -> list[dict[str, Any]]:
        """All effects of this kind, in any lane, that were journaled when the journal was opened."""
        return [record.data for record in self._opened if record.kind == kind]

    def effect(self, kind: str, model: type[Model], produce: Callable[[], Model]) -> Model:
        """An effect of the main lane."""
        return self.main.effect(kind, model, produce)

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """A note of the main lane."""
        self.main.note(kind, data)

    def write(self, kind: str, node: str, data: dict[str, Any], seconds: float) -> Record:
        """Append one line; durable when this returns. For lanes."""
        with self._writing, full_disk_is_an_error(self.folder):
            if self._stream < 0:
                raise RunError(f"{self.path} is closed; what was still under way is not kept.")
            seq, length, previous = self._end
            line: dict[str, Any] = {
                "seq": seq,
                "kind": kind,
                "node": node,
                "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
                "seconds": seconds,
                "data": data,
                "prev": previous,
            }
            line["sha256"] = digest_of(line)
            raw = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            try:
                # What a write that was interrupted left there does not count, and may be longer than this line.
                os.ftruncate(self._stream, length)
                _write_all(self._stream, raw, length)
                os.fsync(self._stream)
            except OSError:
                os.ftruncate(self._stream, length)
                raise
            self._end = (seq + 1, length + len(raw), line["sha256"])
            record = Record(seq, kind, node, data, seconds, line["at"], line["sha256"])
            self._remember(record)
            return record

    def _remember(self, record: Record) -> None:
        if record.kind not in (REFERENCES, REPLY):
            self._nodes.add(record.node)

    # What the model layer sees (agents.roles.ReplyLog).

    def find(self, key: RequestKey) -> ReplyRecord | None:
        """The reply that was paid for already, if any."""
        return self._replies.get(key)

    def append(self, record: ReplyRecord) -> None:
        """Journal a provider's reply; durable when this returns."""
        self.write(REPLY, record.key.node, json.loads(json.dumps(record.model_dump(mode="json"))), 0.0)
        with self._writing:
            self._replies[record.key] = record

    def spent(self) -> Spend:
        """What went to effects that are journaled whole: their requests will not be seen again by this process."""
        with self._writing:
            replies = [reply for key, reply in self._replies.items() if key.node in self._nodes]
        return Spend(
            requests=len(replies),
            input_tokens=sum(r.input_tokens for r in replies),
            output_tokens=sum(r.output_tokens for r in replies),
            usd=sum(r.usd for r in replies),
        )

    def worked(self) -> float:
        """Seconds that the run has worked by now, the effect under way included, as this thread's lane knows it: of
        lanes that went side by side the longest counts, and nothing of those beside it."""
        own = self._active
        beside = side_by_side(own.name)
        past = {lane.name: lane.worked for lane in self._lanes if side_by_side(lane.name) != beside}
        return longest(past | {own.name: own.worked})

    @property
    def replies(self) -> list[ReplyRecord]:
        """Every paid reply so far, in the order in which they came."""
        with self._writing:
            return list(self._replies.values())


def _write_all(stream: int, raw: bytes, offset: int) -> None:
    """Write at ``offset``, however many calls it takes."""
    view = memoryview(raw)
    while view:
        written = os.pwrite(stream, view, offset)
        view, offset = view[written:], offset + written
