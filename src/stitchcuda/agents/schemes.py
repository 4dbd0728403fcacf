"""Other ways to arrange the roles, so that what each part of the loop gains is measured in the same harness.

Ablations switch one part off. Comparison systems are other people's schemes: ``coder-judge`` (CudaForge, arXiv
2511.01884: two roles, one critical issue or one bottleneck a round, no history) and ``single`` (one answer, or the best
of several, from one model). Nothing is asked here but what the wrapped mind asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Idea, Plan, Step
from stitchcuda.agents.roles import Coder, CodeRequest, Mind, Planner, PlanRequest, Verifier, VerifyRequest
from stitchcuda.profiling.model import Profile, Timeline
from stitchcuda.program.model import Program

Agents = Literal["full", "coder-judge", "single"]
Part = Literal["planner", "verifier", "profile", "knowledge", "recipes"]
"""What can be switched off. ``recipes`` are the ideas of model-free rewrites beside the Planner's own."""

WHOLE = Idea(
    name="the whole program",
    rationale="",
    steps=[
        Step(
            title="Make the whole program faster",
            operators=["all of the forward"],
            fusion="as you see fit",
            acceptance="every output is right, and the whole call takes less time",
        )
    ],
)
"""What is to be done where nobody plans."""


class NoPlanner:
    """One idea with one step, whatever the task."""

    def plan(self, request: PlanRequest) -> Plan:
        """Nothing after the first time."""
        ideas = [WHOLE] if request.first else []
        return Plan(summary="No plan: the whole program at once.", bottleneck="not looked at", ideas=ideas)


class NoVerifier:
    """What was measured, as it is: the first error to repair, or that it should be faster still."""

    def verify(self, request: VerifyRequest) -> Feedback:
        """Never 'stop' or 'replan': nobody judges."""
        from stitchcuda.agents.llm import plain_feedback

        plain = plain_feedback(request)
        if not request.evaluation.passed:
            return plain
        return plain.model_copy(update={"route": "optimise", "suggestion": "Make it faster."})


class _Blind:
    """A Planner and a Verifier that see times, but not where they go."""

    def __init__(self, planner: Planner, verifier: Verifier) -> None:
        self._planner, self._verifier = planner, verifier

    def plan(self, request: PlanRequest) -> Plan:
        blind = {"profile": _nothing_but_time(request.profile), "best_profile": None}
        return self._planner.plan(request.model_copy(update=blind))

    def verify(self, request: VerifyRequest) -> Feedback:
        blind = {"profile": None, "reference_profile": None, "start_profile": None, "unprofiled": ""}
        return self._verifier.verify(request.model_copy(update=blind))


class _WithoutHistory:
    """A Coder and a Verifier that see the last program and its Feedback, no earlier attempt and no best one."""

    def __init__(self, coder: Coder, verifier: Verifier) -> None:
        self._coder, self._verifier = coder, verifier

    def code(self, request: CodeRequest) -> Program:
        return self._coder.code(request.model_copy(update={"attempts": [], "tried": [], "others": {}, "baselines": {}}))

    def verify(self, request: VerifyRequest) -> Feedback:
        return self._verifier.verify(request.model_copy(update={"attempts": [], "reference_profile": None}))


def arranged(mind: Mind, agents: Agents, ablate: Sequence[Part], *, judge: Verifier | None = None) -> Mind:
    """``mind`` with other roles around it. ``judge`` is the second role of ``coder-judge``.

    ``knowledge`` is the librarian's business, and ``recipes`` are ``recipes.seeds``': neither is switched off here.
    """
    if agents == "coder-judge":
        if judge is None:
            raise ValueError("coder-judge needs a judge")
        bare = _WithoutHistory(mind.coder, judge)
        mind = replace(mind, name=f"{mind.name} (coder-judge)", planner=NoPlanner(), coder=bare, verifier=bare)
    elif agents == "single":
        mind = replace(mind, name=f"{mind.name} (single)", planner=NoPlanner(), verifier=NoVerifier())
    if "planner" in ablate:
        mind = replace(mind, planner=NoPlanner())
    if "verifier" in ablate:
        mind = replace(mind, verifier=NoVerifier())
    if "profile" in ablate or agents == "single":
        blind = _Blind(mind.planner, mind.verifier)
        mind = replace(mind, planner=blind, verifier=blind)
    if ablate:
        mind = replace(mind, name=mind.name + "".join(f" without {part}" for part in ablate))
    return mind


def _nothing_but_time(profile: Profile) -> Profile:
    """What a stopwatch tells."""
    seconds = profile.timeline.wall_seconds
    return Profile(
        subject=profile.subject,
        source="no profiler",
        timeline=Timeline(wall_seconds=seconds, busy_seconds=seconds, gap_seconds=0.0, copy_seconds=0.0, launches=0),
        kernels=[],
        bottleneck="unknown",
        evidence="it was not profiled",
    )
