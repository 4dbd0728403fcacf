"""The Coder without a model: the Program that a Step's recipes give, minus what was seen to fail."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.agents.roles import CodeRequest
from stitchcuda.errors import ProgramError
from stitchcuda.program.model import Program
from stitchcuda.recipes.planner import HOST

REPAIRS = 3
"""Repairs after which nothing more is left out one by one."""


class Choice(BaseModel):
    """What a generated Program was made from; its ``notes`` hold it, so that a repair can narrow it down."""

    model_config = ConfigDict(frozen=True)

    recipes: list[str]
    disabled: list[str] = Field(default_factory=list, description="launchers left out because they may be wrong")
    repairs: int = Field(default=0, description="how often something was left out")


class RecipeCoder:
    """Deterministic: the same request gives the same Program."""

    def code(self, request: CodeRequest) -> Program:
        """The Program of this step's recipes and those of the steps before it.

        After a failure, what is likely to blame is left out: the launchers that the messages name, else one half of
        them, then the other half, then all. Raises ProgramError when the step names no recipe, nothing is left, or the
        graph holds what cannot be printed.
        """
        from stitchcuda.recipes.capture import CaptureError

        try:
            return self._written(request)
        except CaptureError as error:
            raise ProgramError(str(error)) from None

    def _written(self, request: CodeRequest) -> Program:
        choice = Choice(recipes=self._recipes(request))
        if not choice.recipes:
            raise ProgramError(f"the step {request.step.title!r} names no recipe; plan with the recipes' Planner")
        if choice.recipes == ["whole_graph"]:
            if request.failed is not None:
                raise ProgramError("the forward cannot be captured as a CUDA graph, and no other recipe applies")
            from stitchcuda.recipes.assemble import whole_graph

            return whole_graph(request.task, notes=choice.model_dump_json())
        if request.failed is not None and request.feedback is not None:
            choice = self._narrowed(request, request.failed)
        from stitchcuda.recipes.write import write_program

        program = write_program(
            request.task,
            request.device,
            choice.recipes,
            disabled=choice.disabled,
            notes=choice.model_dump_json(),
        )
        if request.failed is not None and program.files == request.failed.files:
            raise ProgramError("the recipes give the same program again; nothing is left to change")
        return program

    def _recipes(self, request: CodeRequest) -> list[str]:
        names: list[str] = []
        for step in request.idea.steps:
            names += [name for name in step.recipes if name not in names]
            if step == request.step:
                return names
        return list(request.step.recipes)

    def _narrowed(self, request: CodeRequest, failed: Program) -> Choice:
        try:
            before = Choice.model_validate(json.loads(failed.notes))
        except (ValueError, ValidationError):
            return Choice(recipes=self._recipes(request))
        launchers = [launcher.name for launcher in failed.manifest.launchers] if failed.manifest else []
        messages = self._messages(request)
        host = [name for name in before.recipes if name in HOST]
        blamed = [name for name in launchers if name in messages]
        if before.repairs < REPAIRS and blamed and len(blamed) < len(launchers):
            return self._without(request, before, blamed)
        if host and (before.recipes == host or "capture" in messages or "graph" in messages.lower()):
            return self._left(before, [name for name in before.recipes if name not in HOST])
        if launchers and before.repairs == 0 and len(launchers) > 1:
            return self._without(request, before, launchers[: (len(launchers) + 1) // 2])
        if launchers and before.repairs == 1 and (before.disabled or before.recipes != self._recipes(request)):
            whole = Choice(recipes=self._recipes(request), repairs=before.repairs)
            return self._without(request, whole, launchers)
        return self._left(before, host if launchers else before.recipes[:-1])

    def _left(self, before: Choice, recipes: list[str]) -> Choice:
        if not recipes:
            raise ProgramError("every recipe of this step was left out in turn and the program still fails")
        return Choice(recipes=recipes, disabled=before.disabled, repairs=before.repairs + 1)

    def _without(self, request: CodeRequest, before: Choice, launchers: list[str]) -> Choice:
        """Leave out launchers; one that a whole recipe stands or falls with takes its recipe along."""
        from stitchcuda.recipes.registry import all_recipes
        from stitchcuda.recipes.write import rewrite

        rewriter, _ = rewrite(request.task, request.device, before.recipes, disabled=before.disabled)
        severable = {recipe.name for recipe in all_recipes() if recipe.severable}
        recipes = list(before.recipes)
        disabled = list(before.disabled)
        for launcher in launchers:
            owner = rewriter.owners.get(launcher, "")
            if owner in severable:
                disabled.append(launcher)
            elif owner in recipes:
                recipes.remove(owner)
        return self._left(before.model_copy(update={"disabled": disabled}), recipes)

    def _messages(self, request: CodeRequest) -> str:
        parts = []
        if request.feedback is not None:
            parts += [request.feedback.diagnosis, request.feedback.evidence]
        if request.evaluation is not None:
            parts += [request.evaluation.message, request.evaluation.log]
        return "\n".join(parts)
