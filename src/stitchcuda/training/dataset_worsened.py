"""Rows where no model's runs exist: what recipes wrote, verified, and the same made worse, evaluated for real, with
feedback by rule on it.

The requests are those that the loop would make. What the recipes' Verifier suggests on failures is for recipes (leave
launchers out), so what a model's loop says by rule stands there. One thing is known here that the loop does not know:
a faster program exists. So a slower one's Feedback takes the route 'optimise', with what the rules say of its profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.llm import plain_feedback
from stitchcuda.agents.plan import Idea, Step
from stitchcuda.agents.roles import CodeRequest, PlanRequest, VerifyRequest
from stitchcuda.errors import StitchError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.recipes.coder import RecipeCoder
from stitchcuda.recipes.planner import GENERIC, RecipePlanner
from stitchcuda.recipes.verifier import RecipeVerifier
from stitchcuda.task.model import Task, TaskFacts
from stitchcuda.training.worsen import Worsened, worsened
from stitchcuda.workflow.bench import Bench

SLOWER = 0.95
"""Speed of a program that counts as slower, over the verified one's."""


def gain(before: Evaluation, after: Evaluation) -> float:
    """How much faster the second program is: by what both are over eager, which was timed beside each, else by their
    own times; 0 where there are none."""
    one, two = before.speedup.get("eager"), after.speedup.get("eager")
    if one and two:
        return two / one
    old, new = before.timings.get("program"), after.timings.get("program")
    return old.median / new.median if old and new and new.median > 0 else 0.0


@dataclass(frozen=True)
class Example:
    """One request with its verified answer, before it is a row."""

    request: CodeRequest
    answer: Program
    evaluation: Evaluation
    fault: str = ""


def examples(task: Task, device: Device, bench: Bench, *, faults: int) -> Iterator[Example]:
    """First the recipes' own program as written from scratch, then up to ``faults`` worse ones to be improved.

    Nothing when recipes have nothing for the task or their program is not correct. Raises TaskError for a task that
    does not run, InfrastructureError when the machine fails.
    """
    facts = bench.inspect(task)
    device = bench.ceilings(device)
    bench.use(task, facts, device)
    baselines = {name: timing.median for name, timing in bench.baselines().items() if timing.n}
    reference = bench.profile(None)
    plan = RecipePlanner().plan(
        PlanRequest(task=task, facts=facts, device=device, profile=reference, baselines=baselines)
    )
    for idea in plan.ideas[:1]:
        step = idea.steps[-1]
        alone = idea.model_copy(update={"steps": [step]}) if len(idea.steps) > 1 else idea
        asked = CodeRequest(task=task, facts=facts, device=device, idea=alone, step=step, baselines=baselines)
        answer = RecipeCoder().code(asked.model_copy(update={"idea": idea})).model_copy(update={"notes": ""})
        evaluation = bench.evaluate(answer, "screen")
        if not evaluation.passed:
            return
        yield Example(asked, answer, evaluation)
        judge = _Judge(task, facts, device, bench, reference, alone, step, baselines)
        yield from judge.examples(answer, evaluation, faults)


@dataclass(frozen=True)
class _Judge:
    """Evaluates worse programs of one step and has the rules' word on them."""

    task: Task
    facts: TaskFacts
    device: Device
    bench: Bench
    reference: Profile
    idea: Idea
    step: Step
    baselines: dict[str, float]

    def examples(self, answer: Program, verified: Evaluation, most: int) -> Iterator[Example]:
        made = 0
        for worse in self._candidates(answer):
            if made == most:
                return
            found = self._example(worse, answer, verified)
            if found is not None:
                made += 1
                yield found

    def _candidates(self, answer: Program) -> list[Worsened]:
        """Kinds in turn, so that a bound on their number leaves some of each; which of a kind comes first is the
        program's to say, so that a set of tasks has all of them."""
        found = [*self._unfused(answer), *worsened(answer, self.task.target.kind)]
        turn = int(answer.digest[:8], 16)
        kinds = [[w for w in found if w.kind == kind] for kind in ("slower", "wrong", "broken")]
        kinds = [group[turn % len(group) :] + group[: turn % len(group)] for group in kinds if group]
        return [group[at] for at in range(max(map(len, kinds), default=0)) for group in kinds if at < len(group)]

    def _unfused(self, answer: Program) -> Iterator[Worsened]:
        """The same step without one of the recipes that fuse."""
        from stitchcuda.recipes.write import write_program

        for name in GENERIC:
            if name in self.step.recipes:
                left = [recipe for recipe in self.step.recipes if recipe != name]
                try:
                    program = write_program(self.task, self.device, left)
                except StitchError:
                    continue
                if program.digest != answer.digest and program.manifest is not None and program.manifest.launchers:
                    yield Worsened("fusion_undone", "slower", program)

    def _example(self, worse: Worsened, answer: Program, verified: Evaluation) -> Example | None:
        """None where the program is not what its fault says: a bug that no input shows, a change that costs nothing."""
        evaluation = self.bench.evaluate(worse.program, "screen")
        if evaluation.status in ("infrastructure_error", "dishonest", "impossible"):
            return None
        if evaluation.passed != (worse.kind == "slower"):
            return None
        profile = None
        if evaluation.passed:
            if gain(evaluation, verified) < 1 / SLOWER:
                return None
            profile = self.bench.profile(worse.program)
        feedback = self._feedback(worse.program, evaluation, profile)
        asked = CodeRequest(
            task=self.task,
            facts=self.facts,
            device=self.device,
            idea=self.idea,
            step=self.step,
            program=worse.program if evaluation.passed else None,
            failed=None if evaluation.passed else worse.program,
            feedback=feedback,
            evaluation=evaluation,
            baselines=self.baselines,
        )
        return Example(asked, answer, verified, worse.fault)

    def _feedback(self, program: Program, evaluation: Evaluation, profile: Profile | None) -> Feedback:
        """By rule: of a failure what a model's Verifier says without asking its model, of a slower program what the
        recipes' Verifier and the profile's rules say."""
        request = VerifyRequest(
            task=self.task,
            device=self.device,
            idea=self.idea,
            step=self.step,
            program=program,
            evaluation=evaluation,
            profile=profile,
            reference_profile=self.reference,
            last_step=True,
        )
        if not evaluation.passed or profile is None:
            return plain_feedback(request)
        said = RecipeVerifier().verify(request)
        # The rules give up what is slower than eager; here it is known that the idea is good and its code is not.
        told = {
            "route": "optimise",
            "diagnosis": f"{said.diagnosis} The program is {profile.bottleneck}: {profile.evidence}",
            "suggestion": profile.suggestion or said.suggestion,
        }
        return said.model_copy(update=told)
