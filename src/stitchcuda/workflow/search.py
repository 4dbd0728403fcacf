"""Which program to write next: branches over ideas and drafts, bounded repairs, stagnation. Pure decisions on data;
who writes, runs and judges programs is the business of ``turn`` and the state machine.

A branch is one draft of one idea, working through the idea's steps. In a round every open branch gets one turn: an
attempt and, where it fails, its repairs.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Idea, Plan, Step
from stitchcuda.agents.roles import Attempt
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.workflow.result import NOISE, score

FLAT_ATTEMPTS = 2
"""Attempts on one step without gain after which the branch goes on to its next step."""
FLAT_ROUNDS_SWITCH = 2
"""Rounds without gain after which an idea about another bottleneck gets a branch."""
FLAT_ROUNDS_REPLAN = 3
"""Rounds without gain after which the Planner is asked again."""
FRESH_EVERY = 3
"""Every so many rounds an idea not tried yet gets a branch: exploration beside exploitation."""
PATIENCE = 12
"""Candidates without gain, after the first correct one, at which the search ends."""
SHOWN = 4
"""Past attempts that a mind sees."""

AfterTurn = Literal["repair", "turn_over"]
AfterRound = Literal["again", "replan", "stop"]


@dataclass(frozen=True)
class Trial:
    """A program that was written and evaluated."""

    number: int
    idea: str
    step: str
    program: Program
    evaluation: Evaluation
    profile: Profile | None = None
    unprofiled: str = ""
    """Why a correct program has no Profile."""
    same_as: int | None = None
    """The first program of the run with the same files: its Evaluation and Profile are this one's."""

    @property
    def score(self) -> float:
        """What it is ranked by; 0 when not correct."""
        return score(self.evaluation)

    @property
    def seconds(self) -> float:
        """Its median call; 0 where it was not timed."""
        timing = self.evaluation.timings.get("program")
        return timing.median if timing is not None else 0.0


@dataclass
class Branch:
    """One draft of one idea on its way through the idea's steps."""

    idea: Idea
    draft: int
    best: Trial | None = None
    """The correct program that the branch builds on."""
    begun: Trial | None = None
    """The program that its present step started from; None: the reference."""
    step_index: int = 0
    failed: Trial | None = None
    """The program under repair."""
    feedback: Feedback | None = None
    evaluation: Evaluation | None = None
    """What the feedback is about."""
    repairs: int = 0
    fingerprints: set[str] = field(default_factory=set)
    flat: int = 0
    tried: int = 0
    open: bool = True
    refuted: bool = False
    """The Verifier sent the idea back to the Planner."""
    beside: bool = False
    """It is recipes' beside a model's and takes no place from those."""
    own: bool = False
    """``best`` was written by this branch, not given to it."""
    attempts: list[Attempt] = field(default_factory=list)
    """Those of its turns that are over."""

    @property
    def step(self) -> Step:
        """What the next attempt works on."""
        return self.idea.steps[self.step_index]

    @property
    def outdone(self) -> bool:
        """The feedback is about a correct program that was not taken to build on, being slower than ``best``."""
        if self.best is None or self.evaluation is None or not self.evaluation.passed:
            return False
        return self.evaluation is not self.best.evaluation

    @property
    def repairing(self) -> bool:
        """The next attempt repairs the last one, and is no new candidate."""
        return self.repairs > 0

    def next_step(self) -> None:
        """Go on; past the last step the branch is done."""
        self.failed = self.feedback = self.evaluation = None
        self.repairs = self.flat = 0
        self.fingerprints.clear()
        self.begun = self.best
        if self.step_index + 1 < len(self.idea.steps):
            self.step_index += 1
        else:
            self.open = False


def fingerprint(evaluation: Evaluation | None, message: str) -> str:
    """Equal for equal causes: the status and the message with numbers, addresses and paths taken out."""
    status = evaluation.status if evaluation else "no_program"
    plain = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?|/\S+", "", message.lower())
    return hashlib.sha256(f"{status}\0{plain}".encode()).hexdigest()[:16]


def after_failure(
    branch: Branch, trial: Trial | None, feedback: Feedback, repairs: int, *, insist: bool = False
) -> AfterTurn:
    """What the branch does after an attempt that is not correct; at most ``repairs`` times it repairs it, and once
    more after an equal failure only where it shall ``insist``. Touches nothing but the branch."""
    branch.tried += 1
    evaluation = trial.evaluation if trial else None
    mark = feedback.fingerprint or fingerprint(evaluation, feedback.diagnosis)
    if feedback.route in ("replan", "stop"):
        branch.refuted = feedback.route == "replan"
        branch.open = False
        return "turn_over"
    if (mark in branch.fingerprints and not insist) or branch.repairs >= repairs:
        if branch.own:
            branch.next_step()
        else:
            branch.open = False
        return "turn_over"
    branch.fingerprints.add(mark)
    branch.repairs += 1
    branch.failed, branch.feedback, branch.evaluation = trial, feedback, evaluation
    return "repair"


def after_refusal(branch: Branch) -> None:
    """Nothing is to be gained by the step: the branch goes on to its next one. Touches nothing but the branch."""
    branch.tried += 1
    branch.next_step()


class Search:
    """The state of the search and its decisions."""

    def __init__(self, *, beam: int, drafts: int, base: Trial | None = None, chain: bool = False) -> None:
        self.beam = beam
        self.drafts = drafts
        self.chain = chain
        """Every program is made from the last one, faster or not, until the budget is used."""
        self.base = base if base is not None and base.evaluation.passed else None
        self.rejected_base = base if self.base is None else None
        """A start program that is not correct: the first drafts repair it."""
        self.best: Trial | None = self.base
        self.correct: list[Trial] = [self.base] if self.base else []
        self.branches: list[Branch] = []
        self.rounds = 0
        self.stale = 0
        """Candidates since the last gain."""
        self.enough = False
        """The Verifier said that nothing more is to be gained from the best program."""
        self._spare: deque[Idea] = deque()
        self._turns: deque[Branch] = deque()
        self._flat_rounds = 0
        self._round_best = self.best.score if self.best else 0.0
        self._known: set[str] = set()

    def adopt(self, plan: Plan) -> int:
        """Open branches for a new Plan's ideas and drop those of the last; ideas that were tried do not count.

        Returns how many ideas are new.
        """
        fresh = []
        for idea in plan.ideas:
            key = hashlib.sha256(idea.model_dump_json(include={"name", "steps"}).encode()).hexdigest()
            if key not in self._known:
                self._known.add(key)
                fresh.append(idea)
        for branch in self.branches:
            branch.open = False
        made = [idea for idea in fresh if not idea.by_recipes]
        # Recipes' ideas beside others take no place from them.
        seeds = [idea for idea in fresh if idea.by_recipes] if made else []
        ideas = made or fresh
        self._spare = deque(ideas[self.beam :])
        self._flat_rounds = 0
        self.rounds = 0
        self._turns.clear()
        for idea in seeds:
            self._open(idea, 0, beside=True)
        for idea in ideas[: self.beam]:
            for draft in range(1 if idea.by_recipes else self.drafts):
                self._open(idea, draft)
        return len(fresh)

    def _open(self, idea: Idea, draft: int, *, beside: bool = False) -> None:
        branch = Branch(idea, draft, best=self.best, begun=self.best, beside=beside)
        if self.best is None and self.rejected_base is not None:
            bad = self.rejected_base
            branch.failed, branch.evaluation = bad, bad.evaluation
            branch.feedback = Feedback(
                route="retry",
                diagnosis=f"The program to start from is not usable: {bad.evaluation.message}",
                evidence=bad.evaluation.log or bad.evaluation.message,
                suggestion="Repair it, keeping what works.",
                fingerprint=fingerprint(bad.evaluation, bad.evaluation.message),
            )
        self.branches.append(branch)
        self._turns.append(branch)

    def next(self) -> Branch | None:
        """The branch whose turn it is; None when the round is over.

        Once nothing more is to be gained from the best program, only branches that had no turn yet get one: an idea
        never tried could still beat it, one that was tried had its say.
        """
        while self._turns:
            branch = self._turns.popleft()
            if branch.open and not (self.enough and branch.tried):
                return branch
        return None

    def others(self, branch: Branch) -> dict[int, Attempt | None]:
        """The other drafts of the branch's idea, each by its best attempt so far; None where there is none yet."""
        drafts = [other for other in self.branches if other.idea is branch.idea and other is not branch]
        return {other.draft: next(iter(best_of_ideas(other.attempts)), None) for other in drafts}

    def settle(self, branch: Branch, trial: Trial | None, feedback: Feedback, *, candidate: bool) -> None:
        """Take in a judged attempt (``trial`` None: no program came of it) of a turn that is over.

        ``candidate``: it counts as one. What a failure means for its branch alone is in ``after_failure``.
        """
        if candidate:
            self.stale += 1
        if trial is not None and trial.evaluation.passed:
            branch.tried += 1
            self._settle_correct(branch, trial, feedback)
        elif branch.refuted:
            self._drop(branch.idea)

    def _settle_correct(self, branch: Branch, trial: Trial, feedback: Feedback) -> None:
        self.correct.append(trial)
        before = branch.best.score if branch.best else 0.0
        gain = trial.score > before * (1 + NOISE)
        if self.best is None or trial.score > self.best.score:
            if self.best is None or trial.score > self.best.score * (1 + NOISE):
                self.stale = 0
                self.enough = False
            self.best = trial
        if self.chain or trial.score >= before * (1 - NOISE):
            branch.best, branch.own = trial, True
        branch.failed = None
        branch.repairs = 0
        branch.fingerprints.clear()
        branch.flat = 0 if gain else branch.flat + 1
        branch.feedback, branch.evaluation = feedback, trial.evaluation
        match feedback.route:
            case "next":
                branch.next_step()
            case "replan":
                self._drop(branch.idea)
            case "stop":
                branch.open = False
                self.enough = self.enough or self.best is trial
            case "retry" | "optimise" if branch.flat >= FLAT_ATTEMPTS and not self.chain:
                branch.next_step()

    def _drop(self, idea: Idea) -> None:
        """The idea is refuted: close all its branches."""
        for branch in self.branches:
            if branch.idea is idea:
                branch.open = False

    def end_round(self) -> AfterRound:
        """Prune, watch for stagnation and give the open branches their next turns."""
        self.rounds += 1
        now = self.best.score if self.best else 0.0
        self._flat_rounds = 0 if now > self._round_best * (1 + NOISE) else self._flat_rounds + 1
        self._round_best = now
        if self.enough or (self.best is not None and self.stale >= PATIENCE and not self.chain):
            return "stop"
        alive = [b for b in self.branches if b.open]
        ranked = sorted((b for b in alive if not b.beside), key=lambda b: -(b.best.score if b.best else 0.0))
        for branch in ranked[self.beam :]:
            branch.open = False
        self._turns = deque(b for b in alive if b.open)
        fresh = self._flat_rounds == FLAT_ROUNDS_SWITCH or self.rounds % FRESH_EVERY == 0 or not self._turns
        if self._flat_rounds >= FLAT_ROUNDS_REPLAN:
            return "replan"
        if fresh and self._spare:
            self._open(self._spare.popleft(), 0)
        return "again" if self._turns else "replan"

    def go_on(self) -> bool:
        """No further plan is to be had: use what is left of this one. False when nothing is."""
        while self._spare:
            self._open(self._spare.popleft(), 0)
        return bool(self._turns)


def shown(attempts: list[Attempt]) -> list[Attempt]:
    """The attempts that a mind sees: the two fastest correct ones and the latest others, in order."""
    fastest = sorted((a for a in attempts if a.status == "correct"), key=lambda a: -(a.over_best or a.speedup or 0.0))[
        : SHOWN // 2
    ]
    latest = [a for a in reversed(attempts) if a not in fastest][: SHOWN - len(fastest)]
    return sorted(fastest + latest, key=lambda a: a.number)


def best_of_ideas(attempts: list[Attempt]) -> list[Attempt]:
    """Of each idea its best attempt: the fastest correct one, else the latest; in the order in which ideas came."""
    found: dict[str, Attempt] = {}
    for attempt in attempts:
        known = found.get(attempt.idea)
        faster = known is not None and (attempt.over_best or 0.0) > (known.over_best or 0.0)
        if known is None or known.status != "correct" or (attempt.status == "correct" and faster):
            found[attempt.idea] = attempt
    return list(found.values())
