"""One branch's turn: a program written, evaluated, profiled and judged, and repaired where it fails.

A turn has a lane of its own in the journal, so that turns can go side by side. It sees what was known when its round
began and touches only its branch; what its outcome means for the search is settled by the state machine, in order.
"""

from __future__ import annotations

import itertools
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.roles import Attempt, CodeRequest, Mind, NoGain, Room, VerifyRequest
from stitchcuda.errors import BudgetExceeded, ProgramError
from stitchcuda.evaluation.steadiness import doubt, speedup_interval
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts
from stitchcuda.workflow import events
from stitchcuda.workflow.budget import Limits, Spent
from stitchcuda.workflow.effects import Coded, Cut, Judged
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.instruments import Instruments
from stitchcuda.workflow.journal import Journal, Lane
from stitchcuda.workflow.result import NOISE
from stitchcuda.workflow.search import Branch, Trial, after_failure, after_refusal, fingerprint, shown
from stitchcuda.workflow.states import TITLES, State


class Abandoned(Exception):
    """Another turn of the round failed for reasons of the machine; this one goes on when the run is resumed."""


class Numbers:
    """Hands out programs' numbers, to several threads."""

    def __init__(self, last: int) -> None:
        self._count = itertools.count(last + 1)

    def take(self) -> int:
        """The next number."""
        return next(self._count)


@dataclass
class Round:
    """What the turns of one round share; nothing in it changes but the two signals."""

    task: Task
    facts: TaskFacts
    device: Device
    mind: Mind
    journal: Journal
    folder: RunFolder
    instruments: Instruments
    numbers: Numbers
    reference: Profile | None
    limits: Limits
    repairs: int
    may_refuse: bool
    """The Coder may say that nothing is to be gained by a step."""
    chain: bool
    """One program is changed round after round: equal failures are repaired again, and every round is a candidate."""
    attempts: list[Attempt]
    """All attempts before this round."""
    known: dict[str, Trial]
    """The first trial of each program of before this round, by the program's digest."""
    stock: dict[str, float]
    """Median seconds of the stock options."""
    best: Trial | None
    """The run's best program before this round."""
    nodes: frozenset[str]
    """Nodes of before this round: replies that belong to them are paid and counted."""
    elapsed: float
    """Seconds that the run took before this round."""
    candidates: int = 0
    """Of before this round."""
    over: str = ""
    """Once set, turns end before their next program, and why."""
    abandoned: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Tried:
    """One judged program of a turn, or an answer that held none."""

    trial: Trial | None
    attempt: Attempt
    feedback: Feedback
    problem: str
    repair: bool
    """It repaired the one before."""
    candidate: bool
    """It counts against the limit of candidates."""


class Turn:
    """``run()`` fills ``tried`` and ``stopped``. Raises what the instruments and the mind raise."""

    def __init__(
        self, shared: Round, branch: Branch, lane: Lane, *, place: str = "", others: dict[int, Attempt | None]
    ) -> None:
        self.shared = shared
        self.branch = branch
        self.lane = lane
        self.place = place
        """Which turn of how many, in words; empty where there is one."""
        self.others = others
        """The other drafts of the idea, as they were before the round."""
        self.tried: list[Tried] = []
        self.stopped = ""
        """The limit that ended the turn."""
        self.nodes: set[str] = set()
        self.known = dict(shared.known)
        self._visits: Counter[State] = Counter()
        self._state, self._detail = State.CODE, ""

    def run(self) -> None:
        """Until a program is correct, or its repairs are used up, or a limit is reached."""
        with self.lane.active():
            while self._attempt():
                pass

    def _attempt(self) -> bool:
        """One program, judged; True when it is to be repaired."""
        branch = self.branch
        self._enter(State.CODE, "")
        if self._cut():
            return False
        repair, candidate = branch.repairing, self._is_candidate()
        coded = self._code(candidate)
        if coded.budget:
            self.stopped = coded.budget
            return False
        if coded.refused:
            self._refuse(coded, repair, candidate)
            return False
        trial = self._trial(coded.number, coded.program) if coded.program is not None else None
        self._enter(State.VERIFY, f" program {coded.number:03d}")
        attempt, feedback, budget = self._judge(trial, coded)
        self.tried.append(Tried(trial, attempt, feedback, coded.problem, repair, candidate))
        self.stopped = budget
        if trial is not None and trial.evaluation.passed:
            return False
        shared = self.shared
        again = after_failure(branch, trial, feedback, shared.repairs, insist=shared.chain) == "repair"
        self.lane.note("attempt", {"attempt": attempt.model_dump(mode="json"), "leads": False})
        message = trial.evaluation.message if trial is not None else coded.problem
        self.shared.instruments.emit(events.AttemptFinished(attempt, False, self.lane.replaying, message))
        if again and not self.stopped:  # not a candidate: the last one is repaired like any other
            self.stopped = self._spent().exhausted(self.shared.limits.model_copy(update={"iterations": 0})) or ""
        return again and not self.stopped

    def _is_candidate(self) -> bool:
        """What is written next counts as one: no repair does, and beside a model no recipe, which is for nothing."""
        shared, branch = self.shared, self.branch
        return not (shared.mind.paid and branch.idea.by_recipes) and (shared.chain or not branch.repairing)

    def _refuse(self, coded: Coded, repair: bool, candidate: bool) -> None:
        """The Coder wrote nothing, because nothing is to be gained: that is an attempt, with its reason."""
        branch = self.branch
        attempt = self._attempted(coded.number, "refused", None).model_copy(update={"diagnosis": coded.refused})
        feedback = Feedback(route="next", diagnosis=coded.refused, evidence="", suggestion="")
        self.tried.append(Tried(None, attempt, feedback, "", repair, candidate))
        after_refusal(branch)
        self.lane.note("attempt", {"attempt": attempt.model_dump(mode="json"), "leads": False})
        self.shared.instruments.emit(events.AttemptFinished(attempt, False, self.lane.replaying, coded.refused))

    # The states of a turn.

    def _enter(self, state: State, about: str) -> None:
        shared = self.shared
        if shared.abandoned.is_set() and not self.lane.replaying:
            raise Abandoned
        self.lane.node = f"{state}#{self._visits[state]}"
        self._visits[state] += 1
        self.nodes.add(self.lane.node)
        what = textwrap.shorten(f"{self.branch.idea.name} / {self.branch.step.title}", 80, placeholder="")
        self._state, self._detail = state, f"{self.place}{TITLES[state]}{about}: {what}"
        self._say_state()

    def _say_state(self) -> None:
        shared = self.shared
        shared.instruments.emit(events.StateEntered(self._state, self.lane.node, self._detail, self.lane.replaying))
        # For whoever looks on: what all turns have paid so far. Limits are held against what each turn knows.
        seconds = shared.elapsed + self.lane.elapsed
        spent = Spent.of(shared.journal.replies, iterations=shared.candidates, seconds=seconds)
        shared.instruments.emit(events.SpentSoFar(spent))

    def _cut(self) -> bool:
        """The search is over; what this turn did so far counts."""
        if self.lane.replaying:
            if self.lane.upcoming != "cut":
                return False
        elif not self.shared.over:
            return False
        self.lane.effect("cut", Cut, lambda: Cut(reason=self.shared.over))
        return True

    def _code(self, candidate: bool) -> Coded:
        shared, branch = self.shared, self.branch
        request = CodeRequest(
            task=shared.task,
            facts=shared.facts,
            device=shared.device,
            idea=branch.idea,
            step=branch.step,
            draft=branch.draft,
            others=self.others,
            program=branch.best.program if branch.best else None,
            failed=branch.failed.program if branch.failed else None,
            feedback=branch.feedback,
            evaluation=branch.evaluation,
            outdone=branch.outdone,
            may_refuse=shared.may_refuse,
            attempts=shown(self._attempts()),
            tried=self._attempts(),
            **self._standing(),
        )
        request = shared.instruments.informed(self.lane, request, self._say_state)

        def produce() -> Coded:
            try:
                program = shared.mind.coder.code(request)
                number = shared.numbers.take()
                shared.folder.save_program(number, program)
            except NoGain as error:
                return Coded(number=shared.numbers.take(), refused=str(error), candidate=candidate)
            except ProgramError as error:
                return Coded(number=shared.numbers.take(), problem=str(error), candidate=candidate)
            except BudgetExceeded as error:
                return Coded(budget=str(error), candidate=False)
            return Coded(number=number, program=program, candidate=candidate)

        return self.lane.effect("program", Coded, produce)

    def _trial(self, number: int, program: Program) -> Trial:
        """Evaluated, and profiled where it could lead: only such programs are worth the profiler's time. What is known
        of equal files is not measured again."""
        branch, instruments = self.branch, self.shared.instruments
        self._enter(State.EVALUATE, f" program {number:03d}")
        first = self.known.get(program.digest)
        if first is None:
            evaluation = instruments.measured(self.lane, program, "screen")
            trial = Trial(number, branch.idea.name, branch.step.title, program, evaluation)
        else:
            trial = replace(first, number=number, idea=branch.idea.name, step=branch.step.title, same_as=first.number)
            paid = self.shared.mind.paid
            # Recipes' traces are cheap, and taken anew; what a model says of equal files may differ.
            trial = replace(trial, program=program) if paid else replace(trial, profile=None)
            if trial.profile is not None:
                self.shared.folder.save_profile(f"{number:03d}", trial.profile)
        if trial.evaluation.passed and trial.profile is None:
            trial = self._profiled(trial)
        self.known[program.digest] = replace(first or trial, profile=trial.profile, unprofiled=trial.unprofiled)
        return trial

    def _profiled(self, trial: Trial) -> Trial:
        """With its Profile, or with why there is none."""
        start = self.branch.best
        if start is not None and trial.score <= start.score * (1 - 10 * NOISE):
            told = f"{trial.score:.2f}x over the best stock option, it is much slower than the program it was made from"
            return replace(trial, unprofiled=f"at {told} ({start.score:.2f}x)")
        self._enter(State.PROFILE, f" program {trial.number:03d}")
        profiled = self.shared.instruments.profiled(self.lane, f"{trial.number:03d}", trial.program)
        why = f"the profiler failed: {profiled.problem}" if profiled.profile is None else ""
        return replace(trial, profile=profiled.profile, unprofiled=why)

    def _judge(self, trial: Trial | None, coded: Coded) -> tuple[Attempt, Feedback, str]:
        """The attempt, the Verifier's word on it, and the limit that kept it from answering, if any."""
        attempt = self._attempted(coded.number, "no_program", trial)
        budget = ""
        if trial is None:
            feedback = Feedback(
                route="retry",
                diagnosis=f"The answer held no usable program: {coded.problem}",
                evidence=coded.problem,
                suggestion="Answer with the whole program in the form that was asked for.",
                fingerprint=fingerprint(None, coded.problem),
            )
        else:
            judged = self._ask_verifier(trial, attempt)
            budget = judged.budget
            feedback = judged.feedback or Feedback(
                route="stop", diagnosis=f"Not judged: {budget}", evidence=budget, suggestion=""
            )
        attempt = attempt.model_copy(update={"diagnosis": feedback.diagnosis, "suggestion": feedback.suggestion})
        return attempt, feedback, budget

    def _attempted(self, number: int, status: str, trial: Trial | None) -> Attempt:
        """What the turn did; ``status`` where no program came of it."""
        evaluation = trial.evaluation if trial else None
        return Attempt(
            number=number,
            idea=self.branch.idea.name,
            step=self.branch.step.title,
            status=evaluation.status if evaluation else status,
            speedup=evaluation.speedup.get("eager") if evaluation else None,
            over_best=evaluation.speedup.get("over_best") if evaluation else None,
            draft=self.branch.draft,
            planned=self.branch.step,
            did=trial.program.notes if trial and not self.branch.idea.by_recipes else "",
            seconds=trial.seconds if trial else 0.0,
            gain=self._gain(trial) if trial else None,
            within=speedup_interval(evaluation) if evaluation and doubt(evaluation) else None,
            same_as=trial.same_as if trial else None,
        )

    def _gain(self, trial: Trial) -> float | None:
        """Of a correct program over the one that its step started from, or over eager."""
        begun = self.branch.begun
        if not trial.evaluation.passed:
            return None
        return trial.score / begun.score if begun and begun.score else trial.evaluation.speedup.get("eager")

    def _ask_verifier(self, trial: Trial, attempt: Attempt) -> Judged:
        shared, branch = self.shared, self.branch
        parent = branch.failed or branch.best
        request = VerifyRequest(
            task=shared.task,
            device=shared.device,
            idea=branch.idea,
            step=branch.step,
            program=trial.program,
            evaluation=trial.evaluation,
            gain=attempt.gain,
            profile=trial.profile,
            reference_profile=shared.reference,
            unprofiled=trial.unprofiled,
            start=branch.best.number if branch.best else None,
            parent=parent.number if parent else None,
            parent_program=parent.program if parent else None,
            start_profile=branch.best.profile if branch.best and trial.unprofiled else None,
            same_as=trial.same_as,
            **self._standing(),
            room=self._room(),
            attempts=shown(self._attempts()),
            last_step=branch.step_index + 1 == len(branch.idea.steps),
        )
        request = shared.instruments.informed(self.lane, request, self._say_state)

        def produce() -> Judged:
            try:
                feedback = shared.mind.verifier.verify(request)
            except BudgetExceeded as error:
                return Judged(budget=str(error))
            shared.folder.save_attempt(attempt, trial.evaluation, feedback)
            return Judged(feedback=feedback)

        return self.lane.effect("feedback", Judged, produce)

    def _standing(self) -> dict[str, Any]:
        """What a program has to beat, as it was before the round."""
        best = self.shared.best
        return {
            "baselines": self.shared.stock,
            "best_number": best.number if best else None,
            "best_speedup": best.score if best else 0.0,
            "best_seconds": best.seconds if best else 0.0,
        }

    def _room(self) -> Room:
        """What is left of the budget before this state's own requests, which a resumed run finds paid already."""
        shared = self.shared
        nodes = (shared.nodes | self.nodes) - {self.lane.node}
        replies = [reply for reply in shared.journal.replies if reply.key.node in nodes]
        written = sum(not one.repair for one in self.tried) + (not self.branch.repairing)
        seconds = shared.elapsed + self.lane.elapsed
        return Spent.of(replies, iterations=shared.candidates + written, seconds=seconds).room(shared.limits)

    def _attempts(self) -> list[Attempt]:
        return [*self.shared.attempts, *(tried.attempt for tried in self.tried)]

    def _spent(self) -> Spent:
        """Of before the round and of this turn: what turns beside it use is not known to it, on resume neither."""
        nodes = self.shared.nodes | self.nodes
        replies = [reply for reply in self.shared.journal.replies if reply.key.node in nodes]
        return Spent.of(replies, iterations=0, seconds=self.shared.elapsed + self.lane.elapsed)


def side_by_side(turns: list[Turn], shared: Round) -> Iterator[Turn]:
    """Run turns at the same time and give each back when it and all before it are over.

    The error of a turn ends the others at their next state and is raised once they are at rest; what they were paid
    for by then is in the journal. An interrupt is raised at once.
    """
    if len(turns) == 1:
        turns[0].run()
        yield turns[0]
        return
    errors: dict[Turn, BaseException] = {}

    def work(turn: Turn) -> None:
        try:
            turn.run()
        except BaseException as error:
            errors[turn] = error
            shared.abandoned.set()

    # Daemons: an interrupt must not wait for a model's reply.
    threads = {turn: threading.Thread(target=work, args=(turn,), daemon=True) for turn in turns}
    for thread in threads.values():
        thread.start()
    try:
        for turn, thread in threads.items():
            _wait(thread)
            if turn in errors:
                for other in threads.values():
                    _wait(other)
                raise next(error for error in errors.values() if not isinstance(error, Abandoned))
            yield turn
    finally:
        shared.abandoned.set()


def _wait(thread: threading.Thread) -> None:
    """Join, and let signals through."""
    while thread.is_alive():
        thread.join(0.1)
