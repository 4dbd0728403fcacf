"""The publish tier: several rounds of fresh processes of a Program and every stock option, timed call by call beside
each other. Everything of one Program apart from that is in ``trial``."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stitchcuda.evaluation import post_checks
from stitchcuda.evaluation.runner_client import Failure
from stitchcuda.evaluation.session import Session
from stitchcuda.evaluation.starting import side_by_side
from stitchcuda.evaluation.stock_options import cores
from stitchcuda.evaluation.timing import Sample, TimingPlan

if TYPE_CHECKING:
    from stitchcuda.evaluation.trial import Trial

Samples = dict[str, list[tuple[str, Sample]]]
"""Timed calls by subject: input case and sample."""


class Crowded(Exception):
    """Memory does not hold all processes of a round at once."""


class Publication:
    """The rounds of one Program; ``run`` once."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.trial, self.folder = trial, folder
        self.evaluator, self.settings = trial.evaluator, trial.settings
        self.names = self.evaluator.stocks.names() if self.settings.baselines else []
        self.samples: Samples = {}
        self.settled = threading.Event()
        """The first Program is loaded, so that the oracle's state (new where names did not match) stays."""

    def run(self) -> Samples:
        """All rounds. The processes of as many of them as memory holds are started at once; where it does not hold
        those of one, each is alone. Raises Failure of the Program."""
        rounds, count = self.settings.publish_processes, 1 + len(self.names)
        most = rounds if self.evaluator.kind == "cuda" else 1
        held = next((number for number in range(most, 0, -1) if self.evaluator.room(number * count, number)), 0)
        try:
            if not held:
                raise Crowded
            for index in range(0, rounds, held):
                self._together(range(index, min(index + held, rounds)))
            self.samples |= post_checks.failed_beside(self.trial, self._plan(1))
        except Crowded:
            self.trial.interleaved = False
            self.samples = {}
            # What failed beside the Program says nothing about the same alone.
            for name in self.trial.failed_stock:
                self.trial.notes.pop(name, None)
            self.trial.failed_stock.clear()
            for index in range(rounds):
                self._alone(index)
        return self.samples

    def _together(self, rounds: Sequence[int]) -> None:
        """Start all processes of some rounds, then time round by round."""
        trial, stocks = self.trial, self.evaluator.stocks
        began = time.monotonic()
        played: list[tuple[str, Session, list[Session]]] = []
        for index in rounds:
            at_once = len(rounds) * (1 + len(self.names))
            stock = [stocks.session(name, at_once) for name in self.names]
            trial.opened += stock
            played.append((f"round{index}-", trial.program_session(), stock))
        # Programs first: what is wrong with them shows before the compilers are done.
        jobs = [(program, partial(self._warm, program, label)) for label, program, _ in played]
        for label, _, stock in played:
            jobs += [(session, partial(stocks.warm, session, label, self.settled)) for session in stock]
        everything = [session for _, program, stock in played for session in (program, *stock)]
        census = played[-1][1] if rounds[-1] == self.settings.publish_processes - 1 else None
        try:
            side_by_side(jobs, cores() if self.evaluator.kind == "cpu" else len(jobs))
            trial.spent("starting", began)
            for label, program, stock in played:
                self._expect_room(stock)
                self.evaluator.calls.time([program, *trial.sound(stock)], self._plan(), trial.checked, label=label)
                self._expect_room(stock)
                self._keep(program, stock)
            if census is not None:
                last = played[-1][2]
                self.evaluator.close_all([s for s in everything if s is not census and s not in last])
                post_checks.trace_program(trial, census)
                self.evaluator.close_all([census])
                self.samples |= post_checks.slowed(trial, last, self.samples, self._plan(1))
        except Failure as failure:
            if failure.status == "out_of_memory" and self.names:
                raise Crowded from None
            raise
        finally:
            self.evaluator.close_all(everything)

    @staticmethod
    def _expect_room(stock: list[Session]) -> None:
        """Crowded where a stock option ran out of memory: alone it might not, and no Program's use of memory may take
        its rivals out of the comparison."""
        if any(s.failure is not None and s.failure.status == "out_of_memory" for s in stock):
            raise Crowded

    def _alone(self, index: int) -> None:
        """One round with every process alone on the device."""
        trial, stocks, evaluator = self.trial, self.evaluator.stocks, self.evaluator
        label = f"alone{index}-"
        program = trial.program_session()
        self._warm(program, label)
        evaluator.calls.time([program], self._plan(), trial.checked, label=label)
        self._keep(program, [])
        if index == self.settings.publish_processes - 1:
            post_checks.trace_program(trial, program)
        evaluator.close_all([program])
        for name in self.names:
            session = stocks.session(name)
            trial.opened.append(session)
            stocks.warm(session, label)
            evaluator.calls.time(trial.sound([session]), self._plan(), label=label)
            self._take([session])
            evaluator.close_all([session])

    def _warm(self, program: Session, label: str) -> None:
        first = label in ("round0-", "alone0-")
        try:
            if not first:
                program.open()
                self.settled.wait()
            self.trial.load(program, self.folder)
        finally:
            self.settled.set()
        most = max(self.settings.correctness_seeds, 1 + self.evaluator.plan["families"])
        self.trial.warm_up(program, full=most if first else 1, label=label)

    def _plan(self, processes: int | None = None) -> TimingPlan:
        """What one of so many processes times, of those of the settings by default."""
        settings = self.settings
        shares = processes or settings.publish_processes
        calls = -(-settings.publish_calls // shares)
        return TimingPlan(calls, settings.screen_min_calls, settings.publish_seconds / shares)

    def _keep(self, program: Session, stock: list[Session]) -> None:
        """Samples of a finished round, once its clocks and kept outputs were looked at."""
        post_checks.finish(self.trial, program)
        self._take([program, *stock])

    def _take(self, sessions: list[Session]) -> None:
        self.trial.notes |= {s.subject.name: s.note for s in sessions if s.note}
        for session in self.trial.sound(sessions):
            self.samples.setdefault(session.subject.name, []).extend(session.samples)
