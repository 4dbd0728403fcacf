"""The loop as an explicit state machine: Task, Plan, Program, Evaluation, Profile, Feedback, next Program, Result.

Everything that happens outside of pure computation goes through the journal as an effect, and the machine reads no
clock and draws no random number, so a resumed run passes through the same states with the same values.
Which program to write next is decided in ``search``; writing and judging it is a ``turn``; how effects are made
durable, in ``journal``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stitchcuda.agents.lookup import Librarian
from stitchcuda.agents.plan import Plan
from stitchcuda.agents.roles import Attempt, Mind, NoPlan, PlanRequest, Room
from stitchcuda.errors import BudgetExceeded, InfrastructureError, ModelAccessError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task
from stitchcuda.workflow import events
from stitchcuda.workflow.bench import Bench
from stitchcuda.workflow.budget import Limits, Spent
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.effects import Approved, Extended, Planned, Prepared, Profiled, Stocked
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.instruments import Instruments
from stitchcuda.workflow.journal import Journal
from stitchcuda.workflow.promise import ceiling
from stitchcuda.workflow.result import NOISE, Best, Result, score
from stitchcuda.workflow.search import Branch, Search, Trial, best_of_ideas, shown
from stitchcuda.workflow.states import OF_A_TURN, TITLES, TRANSITIONS, State
from stitchcuda.workflow.summary import Ending, sum_up
from stitchcuda.workflow.turn import Numbers, Round, Turn, side_by_side

CONFIRM_TRIES = 3
"""Best programs that are given a chance in the final check."""
CLOSE = 0.05
"""Relative difference of two screened programs up to which both are checked, and the faster one then is the best."""

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
        self.instruments = Instruments(bench, librarian, folder, sink, config.counted(device.target.kind))
        self.approve = approve
        self.start_program = base
        self.more = more
        self.state = State.PREPARE
        self.search = Search(beam=config.ideas_kept(), drafts=config.drafts_per_idea(), chain=config.chain)
        self.replans_left = config.plans_after_first()
        self._no_plan = ""
        """Why the Planner, asked again, is asked no more."""
        self.attempts: list[Attempt] = []
        self.candidates = 0
        self.stopped = ""
        self.plan: Plan | None = None
        self.result: Result | None = None
        self.reference: Profile | None = None
        self._visits: Counter[State] = Counter()
        self.numbers = Numbers(max((int(p["number"]) for p in journal.opened("program")), default=0))
        self.rounds = 0
        self.nodes: set[str] = set()
        """Nodes passed through: what was paid in them is spent."""
        self.elapsed_turns = 0.0
        self._known: dict[str, Trial] = {}
        self._branches: list[Branch] = []
        self._confirmed: tuple[Trial, Evaluation] | None = None
        self._leader: tuple[Program, Best] | None = None
        """What the journal so far has for the best program."""
        self._recipes_ideas: set[str] = set()

    # The machine.

    def run(self) -> Result:
        """Go on until done, and on from there where the run was given ``more``, now or in an earlier resume.

        Raises InfrastructureError, ModelAccessError and KeyboardInterrupt as they come: the run can be resumed.
        """
        handlers: dict[State, Callable[[], State]] = {
            state: getattr(self, f"_{state.value}") for state in State if state not in OF_A_TURN | {State.DONE}
        }
        while self.state is not State.DONE or self._extended():
            self._enter()
            self._say_state()
            following = handlers[self.state]()
            if following not in TRANSITIONS[self.state]:
                raise InfrastructureError(f"No transition from {self.state} to {following}; this is a bug.")
            self.journal.note("state", {"from": self.state.value, "to": following.value})
            self._update_folder()
            self.instruments.emit(events.SpentSoFar(self.spent))
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
        self._enter()
        more = self.more or self.limits
        self.limits = self.journal.effect("extended", Extended, lambda: Extended(limits=more)).limits
        self.more = None if live else self.more
        self.stopped, self._no_plan, self._confirmed, self.result = "", "", None, None
        self._update_folder()
        self.search.enough, self.search.stale = False, 0
        self.replans_left = self.config.plans_after_first()
        self.state = State.SELECT if self.plan is not None and self.plan.ideas else State.PLAN
        return True

    def _enter(self) -> None:
        self.journal.node = f"{self.state}#{self._visits[self.state]}"
        self._visits[self.state] += 1
        self.nodes.add(self.journal.main.node)

    def _say_state(self) -> None:
        event = events.StateEntered(self.state, self.journal.main.node, TITLES[self.state], self.journal.replaying)
        self.instruments.emit(event)

    @property
    def spent(self) -> Spent:
        """What the run has used so far, the turns under way left out: the same when it is resumed."""
        replies = [reply for reply in self.journal.replies if reply.key.node in self.nodes]
        return Spent.of(replies, iterations=self.candidates, seconds=self.elapsed)

    def _room(self) -> Room:
        """What is left of the budget before this state's own requests, which a resumed run finds paid already."""
        nodes = self.nodes - {self.journal.main.node}
        replies = [reply for reply in self.journal.replies if reply.key.node in nodes]
        spent = Spent.of(replies, iterations=self.candidates, seconds=self.elapsed)
        return spent.room(self.limits, plans=self.replans_left)

    @property
    def elapsed(self) -> float:
        """Seconds that the run has worked; of turns side by side, the longest counts."""
        return self.journal.elapsed + self.elapsed_turns

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
        self.instruments.emit(events.DeviceFound(self.device))
        return State.BASELINES

    def _baselines(self) -> State:
        stocked = self.journal.effect("baselines", Stocked, lambda: Stocked(timings=self.bench.baselines()))
        self.stock = {name: timing.median for name, timing in stocked.timings.items() if timing.n}
        for name, timing in stocked.timings.items():
            if not timing.n:
                self.instruments.emit(
                    events.Notice(f"stock option {name} is out: {timing.note}", self.journal.replaying)
                )
        self.instruments.emit(events.BaselinesMeasured(self.stock))
        return State.REFERENCE

    def _reference(self) -> State:
        self.reference = self.instruments.profiled(self.journal.main, "reference", None).profile
        return State.BASE

    def _base(self) -> State:
        """The program to start from (--from) becomes number 0; without one there is nothing to do."""
        start = self.start_program
        if start is None:
            return State.PLAN
        self.folder.save_program(0, start)
        evaluation = self.instruments.measured(self.journal.main, start, "screen")
        profiled = self.instruments.profiled(self.journal.main, "000", start) if evaluation.passed else Profiled()
        trial = Trial(0, "given", "given", start, evaluation, profiled.profile, profiled.problem)
        self._known[start.digest] = trial
        self.search = Search(beam=self.search.beam, drafts=self.search.drafts, base=trial, chain=self.search.chain)
        attempt = Attempt(
            number=0,
            idea="given",
            step="given",
            status=evaluation.status,
            speedup=evaluation.speedup.get("eager"),
            over_best=evaluation.speedup.get("over_best"),
        )
        self.attempts.append(attempt)
        self._record(trial, attempt)
        reason = self._good_enough()
        return self._stop(reason) if reason else State.PLAN

    # Planning.

    def _plan(self) -> State:
        assert self.reference is not None
        best = self.search.best
        request = PlanRequest(
            task=self.task,
            facts=self.facts,
            device=self.device,
            profile=self.reference,
            baselines=self.stock,
            attempts=shown(self.attempts),
            tried=list(self.attempts),
            ideas=best_of_ideas(self.attempts),
            best=best.program if best else None,
            best_number=best.number if best else None,
            best_profile=best.profile if best else None,
            best_speedup=best.evaluation.speedup.get("over_best", 0.0) if best else 0.0,
            best_seconds=best.seconds if best else 0.0,
            room=self._room(),
        )
        request = self.instruments.informed(self.journal.main, request, self._say_state)

        def produce() -> Planned:
            try:
                return Planned(plan=self.mind.planner.plan(request))
            except BudgetExceeded as error:
                return Planned(budget=str(error))
            except NoPlan as error:
                if self.plan is None:
                    raise ModelAccessError(f"{error}. Resume the run to ask again, or name another model.") from None
                return Planned(problem=str(error))

        replayed = self.journal.replaying
        planned = self.journal.effect("plan", Planned, produce)
        if planned.problem:
            self.replans_left, self._no_plan = 0, f"the Planner was asked again: {planned.problem}"
            return State.SELECT if self.search.go_on() else self._stop(self._no_plan)
        if planned.plan is None:
            return self._stop(planned.budget)
        self.plan = planned.plan
        self._recipes_ideas |= {idea.name for idea in self.plan.ideas if idea.by_recipes}
        self.instruments.emit(events.PlanMade(self.plan.summary, [i.name for i in self.plan.ideas], replayed))
        if not self.plan.ideas:
            asked = ", asked again, gave no further" if self._visits[State.PLAN] > 1 else " gave no"
            return self._stop(f"the Planner{asked} idea: {self.plan.summary}")
        return State.APPROVE

    def _approve(self) -> State:
        assert self.plan is not None
        if self.config.approve_plan:
            plan, number = self.plan, self._visits[State.APPROVE] - 1
            approved = self.journal.effect("approved", Approved, lambda: Approved(plan=self.approve(plan, number)))
            self.plan = approved.plan
        if self.search.adopt(self.plan) == 0:
            return self._stop("the plan holds no idea that was not tried before")
        return State.SELECT

    # Attempts.

    def _select(self) -> State:
        reason = self.spent.exhausted(self.limits)
        if reason:
            return self._stop(reason)
        self._branches = self._next_branches()
        if self._branches:
            return State.TURNS
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
                return State.SELECT if self.search.go_on() else self._stop(self._no_plan or "every idea was tried")

    def _next_branches(self) -> list[Branch]:
        """Those whose turns go side by side now: as many as are wanted, the budget of candidates allows and pay."""
        room = self.config.turns_at_once()
        if self.limits.iterations:
            room = min(room, self.limits.iterations - self.candidates)
        chosen: list[Branch] = []
        while len(chosen) < room and (branch := self.search.next()) is not None:
            if self._could_win(branch):
                chosen.append(branch)
            else:
                branch.open = False
        return chosen

    def _could_win(self, branch: Branch) -> bool:
        """Whether an idea that starts from the reference can beat the best program so far, by its upper bound."""
        best = self.search.best
        eager = best.evaluation.speedup.get("eager") if best else None
        if eager is None or branch.tried or branch.best is not None or branch.failed is not None:
            return True
        most = ceiling(branch.idea, self.reference)
        if most is None or most > eager * (1 + NOISE):
            return True
        told = f"left out '{branch.idea.name}': it can reach {most:.2f}x eager at most, and {eager:.2f}x is reached"
        self.instruments.emit(events.Notice(told, self.journal.replaying))
        return False

    def _turns(self) -> State:
        """The chosen branches' turns, side by side, and what comes of them, in the branches' order."""
        self.rounds += 1
        shared = Round(
            task=self.task,
            facts=self.facts,
            device=self.device,
            mind=self.mind,
            journal=self.journal,
            folder=self.folder,
            instruments=self.instruments,
            numbers=self.numbers,
            reference=self.reference,
            limits=self.limits,
            repairs=self._repairs(),
            may_refuse=self.mind.paid and self.config.agents == "full",
            chain=self.config.chain,
            attempts=list(self.attempts),
            known=dict(self._known),
            stock=self.stock,
            best=self.search.best,
            nodes=frozenset(self.nodes),
            elapsed=self.elapsed,
            candidates=self.candidates,
        )
        count = len(self._branches)
        turns = [
            Turn(
                shared,
                branch,
                self.journal.lane(f"round#{self.rounds}.{place}"),
                place=f"({place + 1} of {count}) " if count > 1 else "",
                others=self.search.others(branch),
            )
            for place, branch in enumerate(self._branches)
        ]
        for turn in side_by_side(turns, shared):
            reason = self._settle(turn)
            if reason and not shared.over:
                shared.over = reason
        self.elapsed_turns += max(turn.lane.elapsed for turn in turns)
        return self._stop(shared.over) if shared.over else State.SELECT

    def _repairs(self) -> int:
        """How often a turn may repair its program."""
        if self.config.chain:
            return max(0, self.limits.iterations - self.candidates - 1)
        return 0 if self.config.agents == "single" else self.config.repairs

    def _settle(self, turn: Turn) -> str:
        """Take in what came of a turn; why the search is over, if it is."""
        self.nodes |= turn.nodes
        for digest, trial in turn.known.items():
            if digest not in self._known or self._known[digest].profile is None:
                self._known[digest] = trial
        for tried in turn.tried:
            self.candidates += tried.candidate
            self.search.settle(turn.branch, tried.trial, tried.feedback, candidate=tried.candidate)
            self.attempts.append(tried.attempt)
            turn.branch.attempts.append(tried.attempt)
            if tried.trial is not None and tried.trial.evaluation.passed:
                self._record(tried.trial, tried.attempt)
        return self._good_enough() or turn.stopped

    # The end.

    def _confirm(self) -> State:
        """Check the best programs anew, best first, until one holds; and the next with it where the two are close,
        because figures of different sessions differ by more than such programs do."""
        held: list[tuple[Trial, Evaluation]] = []
        for trial in self._ranked()[:CONFIRM_TRIES]:
            if self.config.confirm == "none":
                held.append((trial, trial.evaluation))
                break
            if held and trial.score < held[0][0].score * (1 - CLOSE):
                break
            evaluation = self.instruments.measured(self.journal.main, trial.program, self.config.confirm)
            if evaluation.passed:
                held.append((trial, evaluation))
                if len(held) == 2:
                    break
                continue
            told = f"Program {trial.number:03d} did not hold in fresh processes: {evaluation.message}"
            self.instruments.emit(events.Notice(told, self.journal.replaying))
        self._confirmed = max(held, key=lambda one: score(one[1]), default=None)
        return State.REPORT

    def _ranked(self) -> list[Trial]:
        """The correct programs, fastest first, each once."""
        ranked: dict[str, Trial] = {}
        for trial in sorted(self.search.correct, key=lambda t: -t.score):
            ranked.setdefault(trial.program.digest, trial)
        return list(ranked.values())

    def _report(self) -> State:
        best: Best | None = None
        if self._confirmed is not None:
            trial, evaluation = self._confirmed
            best = Best(number=trial.number, idea=trial.idea, digest=trial.program.digest, evaluation=evaluation)
            self._leader = trial.program, best
        else:
            self._leader = None
        facts = Ending(
            config=self.config,
            task=self.task,
            device=self.device,
            mind=self.mind.name,
            author=self._author(best),
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
        self._update_folder()
        self.instruments.emit(events.RunFinished(self.result, self.reference))
        return State.DONE

    def _author(self, best: Best | None) -> str:
        """Who wrote it: beside a model, recipes and whoever gave a program to start from may."""
        if best is not None and best.number == 0:
            return "given"
        return "recipes" if best is not None and best.idea in self._recipes_ideas else self.mind.name

    # Bookkeeping.

    def _record(self, trial: Trial, attempt: Attempt) -> None:
        """Keep an attempt, and its program where it leads."""
        leads = self.search.best is trial
        replayed = self.journal.replaying
        if leads:
            best = Best(number=trial.number, idea=trial.idea, digest=trial.program.digest, evaluation=trial.evaluation)
            self._leader = trial.program, best
            self._update_folder()
        self.journal.note("attempt", {"attempt": attempt.model_dump(mode="json"), "leads": leads})
        self.instruments.emit(events.AttemptFinished(attempt, leads, replayed, trial.evaluation.message))

    def _update_folder(self) -> None:
        """Let ``best/`` and the summary be what the journal says so far. While it is replayed they are left alone: they
        are as new as its end."""
        if self.journal.replaying:
            return
        if self._leader is not None:
            self.folder.save_best(*self._leader)
        elif self.result is not None:
            self.folder.drop_best()
        if self.result is not None:
            self.folder.save_summary(self.result)
        else:
            self.folder.drop_summary()

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
