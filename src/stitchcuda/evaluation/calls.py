"""The calls of runners: rounds in which every session gets the same fresh inputs, first calls, timed calls, and other
weights in the middle of them. How one call is exchanged is in ``session``; the verdict on it is the oracle's.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stitchcuda.evaluation.runner_client import Failure
from stitchcuda.evaluation.schedule import RELATED, case_at, chosen_for_each, follows, related
from stitchcuda.evaluation.session import KEPT_BYTES, Session
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.timing import PAUSED_CALLS, Sample, TimingPlan

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator

Check = Callable[[dict[str, Any], bool], None]
"""Takes the oracle's verdict on a call of a Program, and whether it was checked in full; raises Failure to end."""

VARIED = ("signed", *RELATED)
VARIED_SHARE = 0.25
"""Share of the timed calls whose inputs are not drawn as the Task draws them: with random signs, in which low precision
shows, or those of the call before in another order or but for a few elements; beside one of each that every batch has.
"""

DEEP_SURELY, DEEP_SHARE, DEEP_CALLS = 2, 1 / 3, 5
"""Timed calls on the Task's own inputs compared with fp64: how many of each input case every batch has, what share of
the others, and how many of each input case at most."""

UNORDERED = (
    "on the caller's stream the answer is not there when the call returns, though synchronising the whole device "
    "brings it: let other streams wait for the current one before they read inputs, and the current one for them ({})"
)
"""What is said of work on a stream that is not joined with the caller's."""

QUICK_S = 0.05
"""Seconds of a call of the reference up to which all families are checked on cpu however long that takes; alone on the
machine, about a second."""


def ignore(verdict: dict[str, Any], full: bool) -> None:
    """A Check that ends nothing."""


def _give_up(session: Session, failure: Failure) -> None:
    """Close a stock option that has failed, which is left out from then on; raise a Program's failure."""
    if not session.subject.trusted:
        raise failure
    session.failure = failure
    session.close()


class Calls:
    """The calls of one Evaluator's sessions."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self._numbers = itertools.count(1)

    @property
    def settings(self) -> EvaluationSettings:
        """The Evaluator's, which may change from one Program to the next."""
        return self.evaluator.settings

    @property
    def plan(self) -> dict[str, Any]:
        """What the oracle said about the task."""
        return self.evaluator.plan

    def patience(self) -> float:
        """Seconds that a call may take once the first has run."""
        return max(5.0, self.settings.call_timeout_factor * self.evaluator.facts.eager_seconds)

    def play(
        self,
        sessions: Sequence[Session],
        label: str,
        case: str | None,
        *,
        full: bool = False,
        hold: bool = False,
        patience: float | None = None,
        timed: bool = False,
        family: str = "",
        pause: float = 0.0,
        deep: bool = False,
        reuse: bool | None = None,
        ordered: bool = False,
    ) -> list[tuple[Session, Sample, dict[str, Any]]]:
        """One round: the same fresh inputs (of a ``family``, see ``oracle``) to every session in random order, each
        call exported and checked; timed calls of stock options are not checked again, and have no verdict.
        ``pause``, ``reuse`` (drawn where it is None), ``ordered``: see ``Session.call``; ``deep``: compared with fp64
        where that is quick.

        A Program's failure is raised; a stock option that fails is closed and left out from then on.
        """
        sessions = [session for session in sessions if session.failure is None]
        if not sessions:
            return []
        number = self.number_call()
        leading = next((session for session in sessions if not session.subject.trusted), sessions[0])
        if reuse is None:
            reuse = self.settings.defences and leading.drawn("reuse", self.settings.reused_share)
        numbers = [session.number for session in sessions]
        filled = self.evaluator.oracle.ask("fill", call=number, label=label, case=case, family=family, sessions=numbers)
        played: list[tuple[Session, Sample, dict[str, Any]]] = []
        for session in random.sample(sessions, len(sessions)):
            state = full and not session.subject.trusted
            again = self._again(session, timed)
            try:
                sample = session.call(
                    number,
                    filled["seed"],
                    hold=hold,
                    state=state,
                    timeout_s=patience or self.patience(),
                    timed=timed,
                    reuse=reuse,
                    pause=pause,
                    # Whoever notices a call made from the one before may launch there what is for show.
                    count=timed and not pause and family not in RELATED,
                    ordered=ordered,
                )
            except Failure as failure:
                _give_up(session, failure)
                continue
            if timed and session.subject.trusted:
                played.append((session, sample, {}))
                continue
            verdict = self.evaluator.oracle.ask(
                "check",
                session=session.number,
                call=number,
                full=full,
                hold=hold,
                state=state,
                again=again,
                timed=timed,
                deep=self._deep(session, case, deep) if timed and not family and not pause else False,
                surely=deep,
            )
            if again and verdict["ok"]:
                late = session.look_again(number)
                if late:
                    verdict |= {"ok": False, "message": late, "rule": "late_write", "layer": "memory"}
            if timed and session.beside is not None:
                session.beside.exchange_without_program(case)
            session.missing_state.update(verdict["missing_state"])
            if session.subject.trusted and not verdict["ok"]:
                session.note = f"not within the error budget: {verdict['message'][:200]}"
            played.append((session, sample, verdict))
        return played

    def number_call(self) -> int:
        """A number that no other call has."""
        return next(self._numbers)

    def _again(self, session: Session, timed: bool) -> bool:
        """Whether to read the outputs of a call a second time later on."""
        settings = self.settings
        if session.subject.trusted or not settings.defences:
            return False
        return session.drawn(f"late, timed: {timed}", min(1.0, settings.late_share * (1 if timed else 2)))

    def _deep(self, session: Session, case: str | None, surely: bool) -> bool:
        """Whether to compare a timed call on the Task's own inputs with fp64."""
        key = str(case)
        if not self.settings.defences or (session.deep[key] >= DEEP_CALLS and not surely):
            return False
        chosen = surely or session.drawn(f"deep, case: {key}", DEEP_SHARE)
        session.deep[key] += chosen
        return chosen

    def warm_up(
        self,
        session: Session,
        *,
        full: int,
        check: Check = ignore,
        patience: float | None = None,
        label: str = "check",
    ) -> None:
        """The first calls: ``full`` of each case against fp64, then more until warm. Some of a Program's outputs are
        held, of each case, and all its full checks but the first are on families of inputs; where ``full`` asks for
        some of these, the others follow while ``family_seconds`` last, and on cpu in any case where the reference is
        quick: which families a Program meets must not depend on what else the machine does."""
        cases, settings, program = self.plan["cases"], self.settings, not session.subject.trusted
        families = program and settings.defences
        quick = (
            self.evaluator.kind == "cpu"
            and self.evaluator.facts.eager_seconds <= QUICK_S
            and settings.family_seconds > 0
        )
        for case in cases:
            began = time.monotonic()
            most = max(full, 1 + self.plan["families"]) if families and full > 1 else full
            certain = range(max(full, settings.warmup_calls))
            kept = self.held_calls(first=case == cases[0]) if program else 0
            held = random.sample(certain, min(kept, len(certain)))
            for index in range(max(most, settings.warmup_calls)):
                wait = (patience or settings.call_timeout_s) if session.calls == 0 else patience
                late = index >= full and not quick and time.monotonic() - began > settings.family_seconds
                judged = index < most and not late
                if late and index >= settings.warmup_calls:
                    break
                family = "next" if judged and index and families else ""
                for _, _, verdict in self.play(
                    [session], f"{label}{index}", case, full=judged, hold=index in held, patience=wait, family=family
                ):
                    check(verdict, judged)
                    judged = judged and (not family or bool(verdict.get("family")))
                if index == 0:
                    began = time.monotonic()
                if family and not judged:
                    most = min(most, max(full, index))
            if families and self.evaluator.kind == "cuda":
                self._in_order(session, case, check, label)

    def _in_order(self, session: Session, case: str | None, check: Check, label: str) -> None:
        """A call whose inputs are made on the caller's stream, and whose outputs are read on it, and nothing else is
        waited for: work on another stream has to wait for this one and be waited for. Blamed on that is only what is
        wrong twice in such calls, and right in one between that waits for the device."""
        label, reuse = f"{label}-ordered-{case}", random.random() < self.settings.reused_share
        [verdict] = self._verdicts(session, f"{label}-0", case, reuse=reuse, ordered=True)
        if not verdict["ok"]:
            [plain] = self._verdicts(session, f"{label}-1", case, reuse=reuse)
            check(plain, False)
            [again] = self._verdicts(session, f"{label}-2", case, reuse=reuse, ordered=True)
            if plain["ok"] and not again["ok"]:
                verdict = again | {"message": UNORDERED.format(again["message"])}
                verdict |= {"rule": "stream_order", "layer": "memory"}
        check(verdict, False)

    def _verdicts(
        self, session: Session, label: str, case: str | None, *, reuse: bool, ordered: bool = False
    ) -> list[dict[str, Any]]:
        """Of one call that is not timed."""
        return [told for _, _, told in self.play([session], label, case, reuse=reuse, ordered=ordered)]

    def held_calls(self, *, first: bool) -> int:
        """How many outputs of an input case the runner keeps, one of all cases but the ``first``; fewer when they are
        large."""
        most = self.settings.held_outputs
        if self.plan["outputs"] < KEPT_BYTES:
            return most if first else min(1, most)
        return min(1, most) if first else 0

    def screen_plan(self) -> TimingPlan:
        """How many timed calls the screen tier makes; on cuda, with defences, some of them come after a pause and do
        not count."""
        s = self.settings
        apart = PAUSED_CALLS if s.defences and self.evaluator.kind == "cuda" else 0
        calls = max(s.screen_calls - apart, min(s.screen_calls, s.screen_min_calls))
        return TimingPlan(calls=calls, least=s.screen_min_calls, seconds=s.screen_seconds)

    def time(
        self,
        sessions: Sequence[Session],
        plan: TimingPlan,
        check: Check = ignore,
        label: str = "timed",
    ) -> None:
        """Timed calls, every one on fresh inputs and checked; samples are added to the sessions."""
        if not sessions:
            return
        with self.evaluator.gate.hold("clock"):
            self._time(sessions, plan, check, label)

    def _time(
        self,
        sessions: Sequence[Session],
        plan: TimingPlan,
        check: Check,
        label: str,
    ) -> None:
        for session in sessions:
            session.measure_noop()
        self.evaluator.clocks.look()
        began = time.monotonic()
        cases = self.plan["cases"]
        programs = any(not session.subject.trusted for session in sessions)
        wary = programs and self.settings.defences
        surely = plan.least * len(cases)
        turn = random.randint(1, max(1, surely - 1)) if wary else -1
        made = related(surely, len(cases), turn, VARIED) if wary else {}
        deep = chosen_for_each(surely, len(cases), made, DEEP_SURELY) if wary else set()
        share, family = VARIED_SHARE * (1 if len(cases) == 1 else 2), ""
        for index in range(plan.calls * len(cases)):
            if index >= surely and time.monotonic() - began > plan.seconds:
                break
            if all(session.failure is not None for session in sessions):
                break
            case = cases[case_at(index, len(cases))]
            if index == turn:
                self.reweigh(f"{label}reweighed", check)
            free = index not in {turn, *deep} and index + 1 not in made
            free = free and follows(index, len(cases)) and family != "probe"
            family = made.get(index, "")
            if wary and free and not family and random.random() < share:
                family = random.choice(VARIED)
            for session, sample, verdict in self.play(
                sessions, f"{label}{index}", case, timed=True, family=family, deep=index in deep
            ):
                session.samples.append((str(case), sample))
                if not session.subject.trusted:
                    check(verdict, False)
        self.evaluator.clocks.look()

    def reweigh(self, label: str, check: Check) -> None:
        """Other weights for everything that is loaded, prepared again, and one checked call of each Program that is not
        timed: an answer computed from the weights of before is wrong from here on."""
        seed = self.evaluator.oracle.ask("reweigh")["seed"]
        for session in [s for s in self.evaluator.sessions if s.loaded and s.failure is None and s.runner is not None]:
            try:
                session.reweigh(seed)
            except Failure as failure:
                _give_up(session, failure)
                continue
            if not session.subject.trusted and session.calls:
                for case in self.plan["cases"]:
                    for _, _, verdict in self.play([session], label, case, patience=self.settings.call_timeout_s):
                        check(verdict, False)
