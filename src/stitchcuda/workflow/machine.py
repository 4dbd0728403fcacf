"""The loop as an explicit state machine: Task, Plan, Program, Evaluation, Profile, Feedback, next Program, Result.

Everything that happens outside of pure computation goes through the journal as an effect, and the machine reads no
clock and draws no random number, so a resumed run passes through the same states with the same values.
Which program to write next is decided in ``search``; how effects are made durable, in ``journal``.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.lookup import Asked, Librarian
from stitchcuda.agents.plan import Plan
from stitchcuda.agents.references import References
from stitchcuda.agents.roles import Attempt, CodeRequest, Mind, PlanRequest, VerifyRequest
from stitchcuda.errors import BudgetExceeded, InfrastructureError, ProgramError
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task
from stitchcuda.workflow import events
from stitchcuda.workflow.bench import Bench
from stitchcuda.workflow.budget import Limits, Spent
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.effects import (
    Approved,
    Coded,
    Extended,
    Judged,
    Measured,
    Planned,
    Prepared,
    Profiled,
    Stocked,
)
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.journal import Journal
from stitchcuda.workflow.records import REFERENCES
from stitchcuda.workflow.result import NOISE, Best, Result
from stitchcuda.workflow.search import Branch, Search, Trial, fingerprint, shown
from stitchcuda.workflow.states import TITLES, TRANSITIONS, State
from stitchcuda.workflow.summary import Ending, sum_up

CONFIRM_TRIES = 3
"""Best programs that are given a chance in the final check."""

Approval = Callable[[Plan, int], Plan]
"""Gives back the plan (the first is 0) as approved; raises ``AwaitingApproval`` to stop here."""


class AwaitingApproval(Exception):
    """The plan lies in the run folder; the run goes on when it is resumed."""


class Machine:
    """One run. ``run()`` goes from the first state to the last; an exception leaves a resumable journal."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        device: Device,
        *,
        journal: Journal,
        folder: RunFolder,
        bench: Bench,
        mind: Mind,
        sink: events.EventSink,
        approve: Approval,
        librarian: Librarian | None = None,
        base: Program | None = None,
        more: Limits | None = None,
    ) -> None:
        self.config = config
        self.limits = config.limits()
        self.task = task
        self.device = device
        self.journal = journal
        self.folder = folder
        self.bench = bench
        self.mind = mind
        self.sink = sink
        self.approve = approve
        self.librarian = librarian
        self.start_program = base
        self.more = more
        self.state = State.PREPARE
        self.search = Search(beam=config.ideas_kept(), drafts=config.drafts_per_idea(), repairs=config.repairs)
        self.replans_left = config.plans_after_first()
        self.attempts: list[Attempt] = []
        self.candidates = 0
        self.stopped = ""
        self.plan: Plan | None = None
        self.result: Result | None = None
        self.reference: Profile | None = None
        self._visits: Counter[State] = Counter()
        self._number = 0
        self._known: dict[str, Evaluation] = {}
        self._branch: Branch | None = None
        self._program: Program | None = None
        self._trial: Trial | None = None
        self._problem = ""
        self._problems_told: set[str] = set()
        self._confirmed: tuple[Trial, Evaluation] | None = None

    # The machine.

    def run(self) -> Result:
        """Go on until done, and on from there where the run was given ``more``, now or in an earlier resume.

        Raises InfrastructureError, ModelAccessError and KeyboardInterrupt as they come: the run can be resumed.
        """
        handlers: dict[State, Callable[[], State]] = {
            state: getattr(self, f"_{state.value}") for state in State if state is not State.DONE
        }
        while self.state is not State.DONE or self._extended():
            self.journal.node = f"{self.state}#{self._visits[self.state]}"
            self._visits[self.state] += 1
            self._say_state()
            following = handlers[self.state]()
            if following not in TRANSITIONS[self.state]:
                raise InfrastructureError(f"No transition from {self.state} to {following}; this is a bug.")
            self.journal.note("state", {"from": self.state.value, "to": following.value})
            self.sink.emit(events.SpentSoFar(self.spent))
            self.state = following
        assert self.result is not None
        return self.result

    def _extended(self) -> bool:
        """A run that is done goes on with new limits: as journaled, or those that came with this resume."""
        live = not self.journal.replaying
        if live and (self.more is None or self.more == self.limits):
            return False
        if not live and self.journal.upcoming != "extended":
            return False
        self.journal.node = f"{self.state}#{self._visits[self.state]}"
        self._visits[self.state] += 1
        more = self.more or self.limits
        self.limits = self.journal.effect("extended", Extended, lambda: Extended(limits=more)).limits
        self.more = None if live else self.more
        self.stopped, self._confirmed = "", None
        self.search.enough, self.search.stale = False, 0
        self.replans_left = self.config.plans_after_first()
        self.state = State.SELECT if self.plan is not None and self.plan.ideas else State.PLAN
        return True

    def _say_state(self) -> None:
        self.sink.emit(events.StateEntered(self.state, self.journal.node, self._detail(), self.journal.replaying))

    def _detail(self) -> str:
        title = TITLES[self.state]
        if self._branch is not None and self.state in (State.CODE, State.EVALUATE, State.PROFILE, State.VERIFY):
            what = textwrap.shorten(f"{self._branch.idea.name} / {self._branch.step.title}", 80, placeholder="")
            return f"{title} program {self._number + (self.state is State.CODE):03d}: {what}"
        return title

    @property
    def spent(self) -> Spent:
        """What the run has used so far."""
        return Spent.of(self.journal.replies, iterations=self.candidates, seconds=self.journal.elapsed)

    def _stop(self, reason: str) -> State:
        self.stopped = reason
        return State.CONFIRM

    # Facts before any attempt.

    def _prepare(self) -> State:
        def produce() -> Prepared:
            return Prepared(facts=self.bench.inspect(self.task), device=self.bench.ceilings(self.device))

        prepared = self.journal.effect("prepared", Prepared, produce)
        self.facts, self.device = prepared.facts, prepared.device
        self.bench.use(self.task, self.facts, self.device)
        self.sink.emit(events.DeviceFound(self.device))
        return State.BASELINES

    def _baselines(self) -> State:
        stocked = self.journal.effect("baselines", Stocked, lambda: Stocked(timings=self.bench.baselines()))
        self.stock = {name: timing.median for name, timing in stocked.timings.items() if timing.n}
        for name, timing in stocked.timings.items():
            if not timing.n:
                self.sink.emit(events.Notice(f"stock option {name} is out: {timing.note}", self.journal.replaying))
        self.sink.emit(events.BaselinesMeasured(self.stock))
        return State.REFERENCE

    def _reference(self) -> State:
        self.reference = self._profiled("reference", None)
        return State.BASE

    def _base(self) -> State:
        """The program to start from (--from) becomes number 0; without one there is nothing to do."""
        start = self.start_program
        if start is None:
            return State.PLAN
        self.folder.save_program(0, start)
        evaluation = self._measured(start, "screen")
        profile = self._profiled("000", start) if evaluation.passed else None
        trial = Trial(0, "given", "given", start, evaluation, profile)
        self.search = Search(beam=self.search.beam, drafts=self.search.drafts, repairs=self.search.repairs, base=trial)
        self._record(trial, Attempt(number=0, idea="given", step="given", status=evaluation.status))
        reason = self._good_enough()
        return self._stop(reason) if reason else State.PLAN

    # Planning.

    def _plan(self) -> State:
        assert self.reference is not None
        request = PlanRequest(
            task=self.task,
            facts=self.facts,
            device=self.device,
            profile=self.reference,
            baselines=self.stock,
            attempts=shown(self.attempts),
        )
        request = self._informed(request)

        def produce() -> Planned:
            try:
                return Planned(plan=self.mind.planner.plan(request))
            except BudgetExceeded as error:
                return Planned(budget=str(error))

        replayed = self.journal.replaying
        planned = self.journal.effect("plan", Planned, produce)
        if planned.plan is None:
            return self._stop(planned.budget)
        self.plan = planned.plan
        self.sink.emit(events.PlanMade(self.plan.summary, [i.name for i in self.plan.ideas], replayed))
        if not self.plan.ideas:
            return self._stop(f"the Planner has no idea: {self.plan.summary}")
        return State.APPROVE

    def _approve(self) -> State:
        assert self.plan is not None
        if self.config.approve_plan:
            plan, number = self.plan, self._visits[State.APPROVE] - 1
            approved = self.journal.effect("approved", Approved, lambda: Approved(plan=self.approve(plan, number)))
            self.plan = approved.plan
        if self.search.adopt(self.plan) == 0:
            return self._stop("the Planner has no idea that was not tried")
        return State.SELECT

    # One attempt.

    def _select(self) -> State:
        self._branch = None
        reason = self.spent.exhausted(self.limits)
        if reason:
            return self._stop(reason)
        branch = self.search.next()
        if branch is not None:
            self._branch = branch
            return State.CODE
        match self.search.end_round():
            case "again":
                return State.SELECT
            case "stop":
                return self._stop(
                    "the Verifier sees nothing more to gain"
                    if self.search.enough
                    else f"no gain in {self.search.stale} candidates"
                )
            case "replan":
                if self.replans_left > 0:
                    self.replans_left -= 1
                    return State.PLAN
                return State.SELECT if self.search.go_on() else self._stop("every idea was tried")

    def _code(self) -> State:
        branch = self._current()
        request = CodeRequest(
            task=self.task,
            facts=self.facts,
            device=self.device,
            idea=branch.idea,
            step=branch.step,
            draft=branch.draft,
            program=branch.best.program if branch.best else None,
            failed=branch.failed.program if branch.failed else None,
            feedback=branch.feedback,
            evaluation=branch.evaluation,
            attempts=shown(self.attempts),
        )
        request = self._informed(request)
        number = self._number + 1

        def produce() -> Coded:
            try:
                program = self.mind.coder.code(request)
                self.folder.save_program(number, program)
            except ProgramError as error:
                return Coded(problem=str(error))
            except BudgetExceeded as error:
                return Coded(budget=str(error))
            return Coded(program=program)

        coded = self.journal.effect("program", Coded, produce)
        if coded.budget:
            return self._stop(coded.budget)
        self._number = number
        if not branch.repairing:
            self.candidates += 1
        self._program, self._problem, self._trial = coded.program, coded.problem, None
        return State.EVALUATE if coded.program else State.VERIFY

    def _evaluate(self) -> State:
        branch, program = self._current(), self._written()
        evaluation = self._measured(program, "screen")
        self._trial = Trial(self._number, branch.idea.name, branch.step.title, program, evaluation)
        return State.PROFILE if evaluation.passed else State.VERIFY

    def _profile(self) -> State:
        """Only programs that could lead are worth the profiler's time."""
        trial, branch = self._judged(), self._current()
        if branch.best is None or trial.score > branch.best.score * (1 - 10 * NOISE):
            profile = self._profiled(f"{trial.number:03d}", trial.program)
            self._trial = Trial(trial.number, trial.idea, trial.step, trial.program, trial.evaluation, profile)
        return State.VERIFY

    def _verify(self) -> State:
        branch, trial = self._current(), self._trial
        attempt = Attempt(
            number=self._number,
            idea=branch.idea.name,
            step=branch.step.title,
            status=trial.evaluation.status if trial else "no_program",
            speedup=trial.evaluation.speedup.get("eager") if trial else None,
            over_best=trial.evaluation.speedup.get("over_best") if trial else None,
        )
        judged: Judged | None = None
        if trial is None:
            feedback = Feedback(
                route="retry",
                diagnosis=f"The answer held no usable program: {self._problem}",
                evidence=self._problem,
                suggestion="Answer with the whole program in the form that was asked for.",
                fingerprint=fingerprint(None, self._problem),
            )
        else:
            judged = self._ask_verifier(branch, trial, attempt)
            feedback = judged.feedback or Feedback(
                route="stop", diagnosis=f"Not judged: {judged.budget}", evidence=judged.budget, suggestion=""
            )
        attempt = attempt.model_copy(update={"diagnosis": feedback.diagnosis, "suggestion": feedback.suggestion})
        after = self.search.settle(branch, trial, feedback)
        self._record(trial, attempt)
        reason = self._good_enough() or (judged.budget if judged else None)
        if after == "repair":  # not a candidate: the last one is repaired like any other
            reason = reason or self.spent.exhausted(self.limits.model_copy(update={"iterations": 0}))
        if reason:
            return self._stop(reason)
        return State.CODE if after == "repair" else State.SELECT

    def _ask_verifier(self, branch: Branch, trial: Trial, attempt: Attempt) -> Judged:
        request = VerifyRequest(
            task=self.task,
            device=self.device,
            idea=branch.idea,
            step=branch.step,
            program=trial.program,
            evaluation=trial.evaluation,
            profile=trial.profile,
            reference_profile=self.reference,
            best_speedup=self.search.best.score if self.search.best else 0.0,
            attempts=shown(self.attempts),
            last_step=branch.step_index + 1 == len(branch.idea.steps),
        )
        request = self._informed(request)

        def produce() -> Judged:
            try:
                feedback = self.mind.verifier.verify(request)
            except BudgetExceeded as error:
                return Judged(budget=str(error))
            self.folder.save_attempt(attempt, trial.evaluation, feedback)
            return Judged(feedback=feedback)

        return self.journal.effect("feedback", Judged, produce)

    # The end.

    def _confirm(self) -> State:
        """Check the best programs anew, best first, until one holds."""
        ranked = sorted(self.search.correct, key=lambda t: -t.score)
        tried: set[str] = set()
        for trial in ranked:
            if self.config.confirm == "none":
                self._confirmed = (trial, trial.evaluation)
                break
            if trial.program.digest in tried:
                continue
            if len(tried) == CONFIRM_TRIES:
                break
            tried.add(trial.program.digest)
            evaluation = self._measured(trial.program, self.config.confirm, anew=True)
            if evaluation.passed:
                self._confirmed = (trial, evaluation)
                break
            self.sink.emit(
                events.Notice(
                    f"Program {trial.number:03d} did not hold in fresh processes: {evaluation.message}",
                    self.journal.replaying,
                )
            )
        return State.REPORT

    def _report(self) -> State:
        best: Best | None = None
        if self._confirmed is not None:
            trial, evaluation = self._confirmed
            best = Best(number=trial.number, idea=trial.idea, digest=trial.program.digest, evaluation=evaluation)
            self.folder.save_best(trial.program, best)
        facts = Ending(
            config=self.config,
            task=self.task,
            device=self.device,
            mind=self.mind.name,
            run=self.folder.path,
            best=best,
            stock=self.stock,
            attempts=self.attempts,
            plan=self.plan,
            passed_once=bool(self.search.correct),
            stopped=self.stopped,
            spent=self.spent,
        )
        self.result = self.journal.effect("result", Result, lambda: sum_up(facts))
        self.folder.save_summary(self.result)
        self.sink.emit(events.RunFinished(self.result, self.reference))
        return State.DONE

    # Effects and bookkeeping that several states share.

    def _informed(self, request: Asked) -> Asked:
        """The request with what was looked up for it; as it is where nothing is looked up."""
        librarian = self.librarian
        if librarian is None:
            return request
        replayed = self.journal.replaying
        found = self.journal.effect(REFERENCES, References, lambda: librarian.look_up(request))
        if replayed and not self.journal.replaying:
            self._say_state()  # the run was stopped within this state, and what it does now is no replay
        if found.problem and found.problem not in self._problems_told:
            self._problems_told.add(found.problem)
            self.sink.emit(events.Notice(f"Knowledge: {found.problem}", self.journal.replaying))
        return request.model_copy(update={"references": found})

    def _measured(self, program: Program, tier: Tier, *, anew: bool = False) -> Evaluation:
        """Evaluate; the machine's own failures are tried once more and are never put on the Program."""
        known = self._known.get(program.digest)
        if known is not None and not anew:
            return known

        def produce() -> Measured:
            evaluation = self.bench.evaluate(program, tier)
            if evaluation.status == "infrastructure_error":
                self.sink.emit(events.Notice(f"The machine failed, trying once more: {evaluation.message}"))
                evaluation = self.bench.evaluate(program, tier)
            if evaluation.status == "infrastructure_error":
                raise InfrastructureError(f"An evaluation failed twice for the machine's reasons: {evaluation.message}")
            return Measured(digest=program.digest, evaluation=evaluation)

        evaluation = self.journal.effect("evaluation", Measured, produce).evaluation
        if not anew:
            self._known[program.digest] = evaluation
        return evaluation

    def _profiled(self, name: str, program: Program | None) -> Profile | None:
        """Profile; a profile that cannot be had costs its insight, not the run."""

        def produce() -> Profiled:
            try:
                profile = self.bench.profile(program)
            except InfrastructureError as error:
                if program is None:
                    raise
                return Profiled(problem=str(error))
            self.folder.save_profile(name, profile)
            return Profiled(profile=profile)

        profiled = self.journal.effect("profile", Profiled, produce)
        if profiled.profile is not None:
            number = None if program is None else int(name)
            self.sink.emit(events.ProfileTaken(profiled.profile, number))
        elif profiled.problem:
            self.sink.emit(events.Notice(f"No profile of program {name}: {profiled.problem}", self.journal.replaying))
        return profiled.profile

    def _record(self, trial: Trial | None, attempt: Attempt) -> None:
        """Keep an attempt, and its program where it leads."""
        if trial is not None:
            speedup = trial.evaluation.speedup
            attempt = attempt.model_copy(
                update={"speedup": speedup.get("eager"), "over_best": speedup.get("over_best")}
            )
        self.attempts.append(attempt)
        leads = trial is not None and self.search.best is trial
        replayed = self.journal.replaying
        if leads and trial is not None and not replayed:
            self.folder.save_best(
                trial.program,
                Best(
                    number=trial.number,
                    idea=trial.idea,
                    digest=trial.program.digest,
                    evaluation=trial.evaluation,
                ),
            )
        self.journal.note("attempt", {"attempt": attempt.model_dump(mode="json"), "leads": leads})
        message = trial.evaluation.message if trial is not None else self._problem
        self.sink.emit(events.AttemptFinished(attempt, leads, replayed, message))

    def _good_enough(self) -> str | None:
        """The goal is reached; as a sentence part."""
        best = self.search.best
        if best is None:
            return None
        target = self.config.target_speedup
        if target is not None and best.score >= target:
            return f"the target of {target:g}x over the best stock option is reached"
        sol = best.evaluation.sol
        if target is None and sol is not None and sol.fraction >= self.config.sol_fraction and best.score > 1:
            return f"the program runs at {sol.fraction:.0%} of the hardware's bound"
        return None

    def _current(self) -> Branch:
        assert self._branch is not None
        return self._branch

    def _written(self) -> Program:
        assert self._program is not None
        return self._program

    def _judged(self) -> Trial:
        assert self._trial is not None
        return self._trial
