"""Recipes beside a language model: their best idea joins the first plan, so that the search starts from what can be had
for nothing and no run ends below it. Where the model gives no plan to begin with, all of theirs are the plan.
"""

from __future__ import annotations

from dataclasses import replace

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Idea, Plan
from stitchcuda.agents.roles import Coder, CodeRequest, Mind, NoPlan, Planner, PlanRequest, Verifier, VerifyRequest
from stitchcuda.errors import StitchError
from stitchcuda.program.model import Program
from stitchcuda.recipes.mind import mind as recipes

SEEDS = 1
"""Ideas of the recipes that join the first plan."""


def seeded(mind: Mind) -> Mind:
    """``mind`` with the recipes' best idea in its first plan; what is a recipe's is written and judged by recipes."""
    return replace(
        mind,
        planner=_Planner(mind.planner),
        coder=_Coder(mind.coder),
        verifier=_Verifier(mind.verifier),
    )


class _Planner:
    def __init__(self, inner: Planner) -> None:
        self._inner, self._recipes = inner, recipes().planner

    def plan(self, request: PlanRequest) -> Plan:
        try:
            plan = self._inner.plan(request)
        except NoPlan as error:
            own = self._ideas(request)
            if not own:
                raise
            return Plan(summary=f"Recipes alone: {error}", bottleneck=request.profile.bottleneck, ideas=own)
        taken = {idea.name for idea in plan.ideas}
        own = [idea for idea in self._ideas(request)[:SEEDS] if idea.name not in taken]
        return plan.model_copy(update={"ideas": [*own, *plan.ideas]})

    def _ideas(self, request: PlanRequest) -> list[Idea]:
        """What recipes would do, to begin with."""
        if not request.first:
            return []
        try:
            own = self._recipes.plan(request).ideas
        except StitchError:  # what recipes cannot read is no reason to do without the model
            return []
        return [idea.model_copy(update={"name": f"recipes: {idea.name}"}) for idea in own]


class _Coder:
    def __init__(self, inner: Coder) -> None:
        self._inner, self._recipes = inner, recipes().coder

    def code(self, request: CodeRequest) -> Program:
        return (self._recipes if request.idea.by_recipes else self._inner).code(request)


class _Verifier:
    def __init__(self, inner: Verifier) -> None:
        self._inner, self._recipes = inner, recipes().verifier

    def verify(self, request: VerifyRequest) -> Feedback:
        feedback = (self._recipes if request.idea.by_recipes else self._inner).verify(request)
        ends = request.idea.by_recipes and feedback.route == "stop"
        return feedback.model_copy(update={"route": "next"}) if ends else feedback
