"""What all items of a sweep share: tokens a minute, dollars, turns at the local device, and the word to stop."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stitchcuda.agents.roles import ReplyRecord, RequestKey
from stitchcuda.agents.spending import Spend
from stitchcuda.errors import BudgetExceeded
from stitchcuda.evaluation.model import Evaluation, Tier, Timing
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts
from stitchcuda.workflow.bench import Bench
from stitchcuda.workflow.journal import Journal

USUAL_TOKENS = 6_000
"""Held back for a request whose size is not known yet, until some were seen."""
HELD = "measured.jsonl"
"""File of a sweep's item with what each of its measurements took."""


class Stopped(BaseException):
    """The sweep was asked to stop; the item can be gone on with."""


class Governor:
    """Safe to use from several threads."""

    def __init__(self, *, tokens_per_minute: int | None = None, usd: float | None = None, spent: float = 0.0) -> None:
        """``usd``: of the whole sweep, of which ``spent`` are gone already."""
        self.tokens_per_minute, self.usd, self.spent = tokens_per_minute, usd, spent
        self.stop = threading.Event()
        self.device = threading.Lock()
        self._guard = threading.Lock()
        self._room = float(tokens_per_minute or 0)
        self._filled = time.monotonic()
        self._usual = float(USUAL_TOKENS)

    def check(self) -> None:
        """Raise Stopped when that was asked."""
        if self.stop.is_set():
            raise Stopped

    @property
    def out_of_money(self) -> bool:
        """No further item is begun."""
        return self.usd is not None and self.spent >= self.usd

    def admit(self) -> float:
        """Wait until a request may be made; gives the tokens that are taken for it, until it is known what it took.

        Raises BudgetExceeded when the sweep's dollars are used, Stopped when it is asked to stop. What a request that
        fails has taken flows back with time.
        """
        while True:
            self.check()
            if self.out_of_money:
                raise BudgetExceeded(f"${self.spent:.2f} of the sweep's ${self.usd or 0:.2f} used")
            with self._guard:
                if self.tokens_per_minute is None:
                    return 0.0
                self._fill()
                wanted = min(self._usual, float(self.tokens_per_minute))
                if self._room >= wanted:
                    self._room -= wanted
                    return wanted
                wait = (wanted - self._room) * 60 / self.tokens_per_minute
            self.stop.wait(min(wait, 5.0))

    def settle(self, taken: float, tokens: int, usd: float) -> None:
        """A request took ``tokens`` where ``taken`` were thought."""
        with self._guard:
            self.spent += usd
            self._usual += 0.2 * (tokens - self._usual)
            if self.tokens_per_minute is not None:
                self._fill()
                self._room += taken - tokens

    def _fill(self) -> None:
        now = time.monotonic()
        rate = float(self.tokens_per_minute or 0)
        self._room = min(rate, self._room + (now - self._filled) * rate / 60)
        self._filled = now

    def over(self, journal: Journal) -> Paced:
        """The journal of a run whose requests keep to these limits."""
        return Paced(self, journal)


class Paced:
    """A ``ReplyLog`` between a run's model and its journal; requests may go side by side."""

    def __init__(self, governor: Governor, journal: Journal) -> None:
        self._governor, self._journal = governor, journal
        self._taken: dict[RequestKey, float] = {}

    @property
    def node(self) -> str:
        """See ``ReplyLog``."""
        return self._journal.node

    def spent(self) -> Spend:
        """See ``agents.llm.SpendingLog``."""
        return self._journal.spent()

    def find(self, key: RequestKey) -> ReplyRecord | None:
        """A reply that is there, or leave to ask for it."""
        found = self._journal.find(key)
        if found is None:
            self._taken[key] = self._governor.admit()
        return found

    def append(self, record: ReplyRecord) -> None:
        """Journal it, and count it."""
        try:
            self._journal.append(record)
        finally:
            tokens = record.input_tokens + record.output_tokens
            self._governor.settle(self._taken.pop(record.key, 0.0), tokens, record.usd)


class Turns:
    """A ``Bench`` that waits for its turn at a device that items share, and notes what each measurement took."""

    def __init__(self, bench: Bench, governor: Governor, notes: Path, *, exclusive: bool) -> None:
        """``exclusive``: one measurement at a time; a place with several workers orders them itself."""
        self._bench, self._governor, self._notes, self._exclusive = bench, governor, notes, exclusive

    @contextmanager
    def _turn(self, kind: str) -> Iterator[None]:
        self._governor.check()
        if self._exclusive:
            while not self._governor.device.acquire(timeout=0.5):
                self._governor.check()
        began = time.monotonic()
        try:
            self._governor.check()
            yield
        finally:
            took = time.monotonic() - began
            if self._exclusive:
                self._governor.device.release()
            with self._notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "seconds": round(took, 3)}) + "\n")

    def inspect(self, task: Task) -> TaskFacts:
        """See ``Bench``."""
        with self._turn("inspect"):
            return self._bench.inspect(task)

    def ceilings(self, device: Device) -> Device:
        """See ``Bench``."""
        with self._turn("ceilings"):
            return self._bench.ceilings(device)

    def use(self, task: Task, facts: TaskFacts, device: Device) -> None:
        """See ``Bench``."""
        self._bench.use(task, facts, device)

    def baselines(self) -> dict[str, Timing]:
        """See ``Bench``."""
        with self._turn("baselines"):
            return self._bench.baselines()

    def evaluate(self, program: Program, tier: Tier) -> Evaluation:
        """See ``Bench``."""
        with self._turn("evaluate"):
            return self._bench.evaluate(program, tier)

    def profile(self, program: Program | None) -> Profile:
        """See ``Bench``."""
        with self._turn("profile"):
            return self._bench.profile(program)


def measured_seconds(notes: Path) -> float:
    """Sum of what an item's measurements took, seconds; 0.0 where none was made."""
    total = 0.0
    try:
        lines = notes.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return 0.0
    for line in lines:
        try:
            total += float(json.loads(line)["seconds"])
        except (ValueError, KeyError, TypeError):
            continue  # the line that a killed process was writing
    return total
