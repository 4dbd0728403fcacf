"""The Planner without a model: which recipes apply to the reference, what they should save, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stitchcuda.agents.plan import Idea, Plan, Step
from stitchcuda.agents.roles import PlanRequest
from stitchcuda.errors import StitchError
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Task

if TYPE_CHECKING:
    from stitchcuda.recipes.base import Gain, Rewriter

HOST = ("cuda_graph", "host_overlap")
LAUNCH_BOUND = 0.05
"""Share of the wall time that the device idles between launches, from which a CUDA graph is considered."""
WORTH_A_GRAPH = 1.02
"""Predicted speedup over the kernels alone from which a CUDA graph joins them."""
CERTAIN_GRAPH = 1.1
"""Predicted speedup from which the kernels are not measured without the graph first."""
GENERIC = ("pointwise", "row_reduction")
HELPERS = ("epilogue", "concat", "pool_first")
"""Recipes that prepare the ground for others: they may always join."""
CLEAR_FUSION = 0.1
"""Share of the wall time that generic fusion is predicted to save from which no program without it is measured."""
GRAPH_NODE_SECONDS = 1.2e-6
"""Kernel to kernel inside a CUDA graph (measured on an H200: 1.0 to 1.4 microseconds)."""


@dataclass(frozen=True)
class Survey:
    """What all recipes together would do to the reference."""

    rewriter: Rewriter
    gains: dict[str, list[Gain]]
    """By recipe, in the order in which they run; a recipe that does not apply is not in it."""

    @property
    def broken(self) -> str:
        """A sentence for each recipe that failed on this program, to follow a summary."""
        return "".join(
            f" {name} was left out: it failed on this program ({what})."
            for name, what in self.rewriter.left_out.items()
        )


class RecipePlanner:
    """Tries every recipe on the captured graph and plans with those that applied."""

    def plan(self, request: PlanRequest) -> Plan:
        """One or two ideas, the most promising first; none, with the reason, when no recipe applies."""
        bottleneck = f"{request.profile.bottleneck}: {request.profile.evidence}"
        try:
            survey = survey_recipes(request.task, request.device)
        except StitchError as error:
            return self._unreadable(request, bottleneck, str(error))
        broken = survey.broken
        if not survey.gains:
            summary = f"No rewrite found: no recipe applies to this program where it would pay.{broken}"
            return Plan(summary=summary, bottleneck=bottleneck)
        ideas = _ideas(survey, request)
        tried = {attempt.idea for attempt in request.attempts}
        left = [idea for idea in ideas if idea.name not in tried]
        if not left:
            summary = f"No rewrite found beyond those tried: every idea was measured.{broken}"
            return Plan(summary=summary, bottleneck=bottleneck)
        names = ", ".join(survey.gains)
        return Plan(summary=f"Recipes that apply: {names}.{broken}", bottleneck=bottleneck, ideas=left)

    def _unreadable(self, request: PlanRequest, bottleneck: str, reason: str) -> Plan:
        """The forward is no graph to read; on cuda it may still be captured while it runs."""
        facts = request.facts
        quiet = not facts.stochastic and not facts.mutates_state and request.task.residence == "device"
        tried = any(attempt.idea == "host only" for attempt in request.attempts)
        if request.device.target.kind != "cuda" or not quiet or tried:
            return Plan(summary=f"No rewrite found: {reason}", bottleneck=bottleneck)
        gain = _graph_speedup(request, None, 0.0)
        step = Step(
            title="Capture the unchanged forward as one CUDA graph",
            operators=["forward"],
            fusion="none: the program cannot be read as a graph of operators",
            host="one CUDA graph with static inputs, replayed on copies",
            predicted_gain=gain,
            acceptance="correct, and faster than eager",
            recipes=["whole_graph"],
        )
        idea = Idea(name="host only", rationale=f"{bottleneck} ({reason})", steps=[step])
        return Plan(summary=f"Host orchestration alone: {reason}", bottleneck=bottleneck, ideas=[idea])


def survey_recipes(task: Task, device: Device, *, last_resort: bool = False) -> Survey:
    """Apply all recipes, or those of the ``last_resort``, to a copy of the task's graph. Raises CaptureError when it
    cannot be read."""
    from stitchcuda.recipes.registry import all_recipes
    from stitchcuda.recipes.write import rewrite

    names = [recipe.name for recipe in all_recipes() if recipe.last_resort == last_resort]
    rewriter, gains = rewrite(task, device, names)
    by_recipe: dict[str, list[Gain]] = {}
    for recipe in all_recipes():
        mine = [gain for gain in gains if gain.recipe == recipe.name]
        if mine:
            by_recipe[recipe.name] = mine
    return Survey(rewriter, by_recipe)


def _ideas(survey: Survey, request: PlanRequest) -> list[Idea]:
    """One complete program where the prediction is clear, since each candidate costs time on the device."""
    kernels = [name for name in survey.gains if name not in HOST]
    host = [name for name in survey.gains if name in HOST]
    everything = f"{request.profile.bottleneck}: {request.profile.evidence}"
    if not kernels:
        step = _host_step(survey, host, request, 0.0)
        if step.predicted_gain < 1:
            lone = survey_recipes(request.task, request.device, last_resort=True)
            if lone.gains:
                step = _kernel_step(lone, list(lone.gains), request)
                why = f"no rewrite saves anything ({_evidence(survey, host)}); kernels of its own lose nothing"
                return [Idea(name="kernels only", rationale=why, steps=[step])]
        return [Idea(name="host only", rationale=_evidence(survey, host), steps=[step])]
    saved = sum(gain.seconds for name in kernels for gain in survey.gains[name])
    alone = _kernel_step(survey, kernels, request)
    more = _graph_speedup(request, survey, saved) / alone.predicted_gain if "cuda_graph" in host else 1.0
    joined = [name for name in host if name != "cuda_graph" or (_has_gaps(request) and more >= WORTH_A_GRAPH)]
    ideas = []
    if joined:
        after = _host_step(survey, joined, request, saved)
        steps = [_both(alone, after)] if "cuda_graph" not in joined or more >= CERTAIN_GRAPH else [alone, after]
        ideas.append(Idea(name="kernels and host", rationale=everything, steps=steps))
    else:
        ideas.append(Idea(name="kernels only", rationale=_evidence(survey, kernels), steps=[alone]))
    layers = [name for name in kernels if name not in GENERIC]
    generic = sum(gain.seconds for name in kernels if name in GENERIC for gain in survey.gains[name])
    doubtful = 0 < generic < CLEAR_FUSION * request.profile.timeline.wall_seconds
    if layers and doubtful and request.device.target.kind == "cpu":
        why = "the layers' own rewrites without generic fusion: " + _evidence(survey, layers)
        ideas.append(Idea(name="layers only", rationale=why, steps=[_kernel_step(survey, layers, request)]))
    return ideas


def _has_gaps(request: PlanRequest) -> bool:
    """The device waits for launches long enough that a CUDA graph can pay for its copies."""
    timeline = request.profile.timeline
    return timeline.gap_seconds >= LAUNCH_BOUND * timeline.wall_seconds


def _both(kernels: Step, host: Step) -> Step:
    """Kernels and host orchestration as one step."""
    return Step(
        title=f"{kernels.title}; {host.title}",
        operators=kernels.operators,
        fusion=kernels.fusion,
        host=f"{host.host}; {kernels.host}",
        predicted_gain=max(kernels.predicted_gain, host.predicted_gain),
        acceptance=host.acceptance,
        recipes=[*kernels.recipes, *host.recipes],
    )


def _kernel_step(survey: Survey, names: list[str], request: PlanRequest) -> Step:
    gains = [gain for name in names for gain in survey.gains.get(name, [])]
    saved = sum(gain.seconds for gain in gains)
    whats = sorted({gain.what for gain in gains})
    operators = sorted({operator for gain in gains for operator in gain.operators}) or ["forward"]
    helpers = [name for name in HELPERS if name not in names and name not in survey.rewriter.left_out]
    launches = sum(gain.launches for gain in gains)
    return Step(
        title=f"Write {len(gains)} rewrites: " + "; ".join(whats[:3]) + ("; ..." if len(whats) > 3 else ""),
        operators=operators,
        fusion="; ".join(whats),
        host="outputs allocated per call; memory that nobody reads again is overwritten in place",
        predicted_gain=_speedup(request, saved),
        acceptance=f"correct; {launches} fewer launches and faster than before",
        recipes=[*names, *helpers],
    )


def _host_step(survey: Survey, names: list[str], request: PlanRequest, saved: float) -> Step:
    """``saved``: seconds that the kernels of the step before take off the device's busy time."""
    gain = _graph_speedup(request, survey, saved) if "cuda_graph" in names else _speedup(request, saved)
    moved = sum(gain.seconds for gain in survey.gains.get("host_overlap", []))
    wall = request.profile.timeline.wall_seconds
    if moved and wall > moved:
        gain *= wall / (wall - moved)
    whats = sorted({gain.what for name in names for gain in survey.gains[name]})
    return Step(
        title="; ".join(whats),
        operators=["forward"],
        fusion="none: the kernels stay as they are",
        host="; ".join(whats),
        predicted_gain=gain,
        acceptance="correct, state updates included; launch gaps gone from the timeline",
        recipes=names,
    )


def _speedup(request: PlanRequest, saved: float) -> float:
    wall = request.profile.timeline.wall_seconds
    return wall / max(wall - saved, 0.2 * wall) if wall > 0 else 1.0


def _graph_speedup(request: PlanRequest, survey: Survey | None, saved: float) -> float:
    """Without launch gaps the device is busy all the time, but for graph nodes' own time and the copies in and out."""
    timeline = request.profile.timeline
    if timeline.wall_seconds <= 0:
        return 1.0
    copies = 0.0
    fewer = 0
    if survey is not None:
        copied = -sum(gain.bytes for gain in survey.gains.get("cuda_graph", []))
        copies = copied / survey.rewriter.bandwidth
        if saved:
            fewer = sum(g.launches for name, gains in survey.gains.items() if name not in HOST for g in gains)
            # What launches cost the host is no part of the device's busy time.
            saved -= fewer * survey.rewriter.launch_seconds / 2
    busy = timeline.busy_seconds - min(max(saved, 0.0), 0.8 * timeline.busy_seconds)
    nodes = max(timeline.launches - fewer, 1)
    # A node's gap hides behind a long kernel's tail no better than a launch's: bound it by the measured gap.
    gaps = min(nodes * GRAPH_NODE_SECONDS, timeline.gap_seconds)
    return timeline.wall_seconds / max(busy + gaps + copies, 1e-9)


def _evidence(survey: Survey, names: list[str]) -> str:
    parts = []
    for name in names:
        gains = survey.gains[name]
        seconds = sum(gain.seconds for gain in gains)
        parts.append(f"{name}: {len(gains)} places, {seconds * 1e6:.0f} us predicted")
    return "; ".join(parts)
