"""``metrics.jsonl``: one line for what a trainer logs, and reading it back over resumed starts.

Each line has ``kind`` (train, eval, end), ``step``, ``start`` (which start of the training wrote it, from 1), ``at``
(seconds since that start) and numbers. A start that goes on from an earlier step repeats steps; the later ones count.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "metrics.jsonl"


class MetricsFile:
    """Appends lines, each in one write."""

    def __init__(self, folder: Path, start: int) -> None:
        self.path, self.start = folder / NAME, start
        self._began = time.monotonic()

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append a line; what is not a number, a text or a truth is left out, and so is what is not finite."""
        line: dict[str, Any] = {
            "kind": kind,
            "step": step,
            "start": self.start,
            "at": round(time.monotonic() - self._began, 3),
        }
        for name, value in values.items():
            if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
                line.setdefault(name, value)
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")


def read_metrics(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of a kind by step; of a repeated step the last start's. Unfinished lines are passed over."""
    found: dict[int, dict[str, Any]] = {}
    path = folder / NAME
    for text in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and line.get("kind") == kind:
            found[line["step"]] = line
    return [found[step] for step in sorted(found)]


def starts(folder: Path) -> int:
    """How many starts have written lines."""
    path = folder / NAME
    last = 0
    for text in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            last = max(last, int(json.loads(text)["start"]))
        except (ValueError, KeyError, TypeError):
            continue
    return last
