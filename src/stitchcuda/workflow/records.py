"""The lines of a run's journal: read, verified, and what they say of time. Writing them is ``journal``'s business.

A line is one JSON object whose ``sha256`` covers the line and, through ``prev``, all lines before it.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stitchcuda.errors import RunError

NAME = "journal.jsonl"
REPLY = "reply"
REFERENCES = "references"
"""The kind of effect that comes before a role's requests in one node, instead of after them."""
MAIN = ""
"""The lane of the state machine itself."""


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

    @property
    def lane(self) -> str:
        """The lane in which it happened: 'round#2.1' of node 'round#2.1:code#0', or the main one."""
        lane, colon, _ = self.node.partition(":")
        return lane if colon else MAIN


def canonical(data: dict[str, Any]) -> bytes:
    """Equal bytes for equal contents; NaN is equal to itself here."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def digest_of(line: dict[str, Any]) -> str:
    """SHA-256 over the line without its own hash."""
    return hashlib.sha256(canonical({n: v for n, v in line.items() if n != "sha256"})).hexdigest()


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
        if digest_of(line) != line["sha256"]:
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


def wall_seconds(records: Iterable[Record]) -> float:
    """How long a run worked, seconds: its own effects, and of lanes that went side by side the longest."""
    lanes: defaultdict[str, float] = defaultdict(float)
    for record in records:
        lanes[record.lane] += record.seconds
    return longest(lanes)


def side_by_side(lane: str) -> str:
    """The same for lanes that go side by side."""
    return lane.partition(".")[0]


def longest(lanes: Mapping[str, float]) -> float:
    """Seconds of ``lanes`` by name, of those side by side only the longest."""
    rounds: defaultdict[str, float] = defaultdict(float)
    for lane, seconds in lanes.items():
        rounds[side_by_side(lane)] = max(rounds[side_by_side(lane)], seconds)
    return sum(rounds.values())
