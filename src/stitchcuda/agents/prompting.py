"""Requests of the roles rendered as prompts, from the Jinja files in ``prompts``.

Each prompt is a pair: instructions that are equal for a whole run, or nearly so (providers can cache them),
and the message. Lengths are bounded here; what the words say is in the templates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from stitchcuda.agents.difference import difference
from stitchcuda.agents.feedback import Route
from stitchcuda.agents.fingerprint import digest
from stitchcuda.agents.memory import beside, calibration, futile, measured, outcomes
from stitchcuda.agents.metrics24 import COUNTERS
from stitchcuda.agents.plan import Step
from stitchcuda.agents.references import References
from stitchcuda.agents.rendering import render
from stitchcuda.agents.roles import Attempt, CodeRequest, PlanRequest, VerifyRequest
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.agreement import agreement
from stitchcuda.profiling.compare import compare
from stitchcuda.profiling.digest import changes
from stitchcuda.profiling.digest import digest as digest_of
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program

SOURCE_LIMIT = 24_000
"""Characters of a task's source that are shown."""
PROGRAM_LIMIT = 32_000
"""Characters of a program that are shown."""
PLANNED_LIMIT = 16_000
"""Characters of the best program that a Planner is shown."""
FUTILE_SHOWN, OUTCOMES_SHOWN = 6, 4
"""Steps that gave nothing, and predictions beside what came, the latest."""
TRIES_SHOWN, OTHERS_SHOWN = 6, 2
"""Earlier tries on an idea or its like that a Coder is told of, and programs of other ideas."""
DIFFERENCE_LIMIT = 2_400
"""Characters of what changed between two programs."""
IDEAS_SHOWN = 12
"""Earlier ideas of which a Planner is told, the latest."""
SHORT_SOURCE = 12_000
"""Characters of a task's source that are shown beside a long program and long references."""

Purpose = Literal["draft", "optimise", "repair"]

MEANINGS: dict[Route, str] = {
    "retry": "the idea stands; this program has a defect that can be repaired",
    "optimise": "correct; one more change to this step's code promises a gain",
    "next": "this step has done what it can; go on to the next step, or after the last to other ideas",
    "replan": "the idea is refuted by what was measured, or its defect is beyond repair: it is given up, other ideas go"
    " on, and when none is left a new plan is made",
    "stop": "the program is so near its bound that nothing worth having is left: this attempt at the idea ends. If the"
    " program is the best of the run, the whole run ends, as soon as ideas under way have had a first attempt",
}


@dataclass(frozen=True)
class Prompt:
    """What a model is sent."""

    instructions: str
    message: str


def planner_prompt(request: PlanRequest) -> Prompt:
    """For a Plan."""
    message = render(
        "planner.j2",
        task=request.task,
        facts=request.facts,
        device=request.device,
        profile=request.profile,
        **_agreed(request),
        **_standing(request),
        room=request.room,
        attempts=request.attempts,
        futile=futile(request.tried)[-FUTILE_SHOWN:],
        outcomes=outcomes(request.tried)[-OUTCOMES_SHOWN:],
        calibration=calibration(outcomes(request.tried)),
        ideas=request.ideas[-IDEAS_SHOWN:],
        program=request.best,
        limit=PLANNED_LIMIT,
        program_profile=_digest(request, request.best_profile, request.best_seconds),
        references=request.references,
        source_limit=SOURCE_LIMIT if request.best is None else SHORT_SOURCE,
    )
    instructions = render(
        "planner_system.j2", kind=request.task.target.kind, precision=request.task.precision, source_limit=SOURCE_LIMIT
    )
    return Prompt(instructions, message)


def coder_prompt(request: CodeRequest) -> Prompt:
    """For a Program: a draft, an improvement of ``program``, or a repair of ``failed``."""
    purpose, shown = coder_purpose(request)
    evaluation = request.evaluation
    message = render(
        f"coder_{purpose}.j2",
        task=request.task,
        facts=request.facts,
        device=request.device,
        idea=request.idea,
        step=request.step,
        number=_number(request.idea.steps, request.step),
        draft=request.draft,
        drafts=1 + max([request.draft, *request.others]),
        others={number: attempt for number, attempt in sorted(request.others.items()) if attempt is not None},
        **_standing(request),
        heading="Your step",
        program=shown,
        limit=PROGRAM_LIMIT,
        evaluation=evaluation,
        outdone=request.outdone,
        log=_log(evaluation),
        feedback=request.feedback,
        tries=_tries(request, purpose),
        measured=measured(request.tried, request.idea, request.step),
        techniques=techniques(request.step, request.task.target.kind),
        references=request.references,
        source_limit=_source_room(shown, request.references),
    )
    instructions = render(
        "coder_system.j2",
        kind=request.task.target.kind,
        precision=request.task.precision,
        edits=shown is not None,
        may_refuse=request.may_refuse,
    )
    return Prompt(instructions, message)


def coder_purpose(request: CodeRequest) -> tuple[Purpose, Program | None]:
    """'repair' of a failed program, 'optimise' of a correct one, else 'draft'; and the program that it starts from."""
    correct = request.evaluation is not None and request.evaluation.passed
    if request.failed is not None and not correct:
        return "repair", request.failed
    subject = request.failed or request.program
    if subject is not None and request.feedback is not None and request.feedback.route == "optimise":
        return "optimise", subject
    return "draft", request.program


def verifier_prompt(request: VerifyRequest, routes: list[Route]) -> Prompt:
    """For Feedback that takes one of ``routes``."""
    message = render(
        "verifier.j2",
        task=request.task,
        device=request.device,
        idea=request.idea,
        step=request.step,
        number=_number(request.idea.steps, request.step),
        program=request.program,
        limit=20_000,
        evaluation=request.evaluation,
        log=_log(request.evaluation),
        profile=_digest(request, request.profile, _timed(request.evaluation)),
        unprofiled=request.unprofiled,
        start=request.start,
        said=request.program.notes,
        parent=request.parent,
        difference=_difference(request),
        measured=request.gain,
        start_profile=_digest(request, request.start_profile, 0.0),
        same_as=request.same_as,
        changes=_changes(request),
        **_standing(request),
        room=request.room,
        last_step=request.last_step,
        attempts=request.attempts,
        references=request.references,
        heading="The step that it implements",
        source_limit=8_000,
    )
    instructions = render(
        "verifier_system.j2",
        kind=request.task.target.kind,
        correct=request.evaluation.passed,
        routes=routes,
        meanings=MEANINGS,
        cite=request.references is not None,
    )
    return Prompt(instructions, message)


def _tries(request: CodeRequest, purpose: Purpose) -> list[Attempt]:
    """What the Coder is told of earlier tries; a draft is told of the other drafts apart."""
    others = request.others.values() if purpose == "draft" else []
    known = {other.number for other in others if other is not None}
    tried = request.tried or request.attempts
    near = beside(tried, request.idea, request.step, limit=TRIES_SHOWN, besides=OTHERS_SHOWN)
    return [attempt for attempt in near if attempt.number not in known]


def _digest(request: PlanRequest | VerifyRequest, profile: Profile | None, timed_seconds: float) -> str:
    if profile is None:
        return ""
    return digest_of(profile, timed_seconds=timed_seconds, kind=request.task.target.kind).rstrip()


def _timed(evaluation: Evaluation) -> float:
    """Seconds of the Program's median call; 0 where it was not timed."""
    timing = evaluation.timings.get("program")
    return timing.median if timing is not None else 0.0


def _agreed(request: PlanRequest) -> dict[str, str]:
    """Why the reference's Profile is doubtful, and what a timed call has on top; '' where there is nothing to say."""
    agreed = agreement(request.profile, request.baselines.get("eager", 0.0), request.task.target.kind)
    if agreed is None:
        return {"disagreement": "", "overhead": ""}
    return {"disagreement": agreed.sentence, "overhead": agreed.overhead}


def _difference(request: VerifyRequest) -> str:
    if request.parent_program is None:
        return ""
    return difference(request.parent_program, request.program, DIFFERENCE_LIMIT)


def _standing(request: PlanRequest | CodeRequest | VerifyRequest) -> dict[str, Any]:
    """What there is to beat: the stock options, the fastest by name, and the best program so far."""
    stock = request.baselines
    if not stock and isinstance(request, PlanRequest):
        stock = {"eager": request.facts.eager_seconds}
    return {
        "baselines": stock,
        "stock_name": min(stock, key=lambda name: stock[name]) if stock else "",
        "best_number": request.best_number,
        "best_speedup": request.best_speedup,
        "best_seconds": request.best_seconds,
    }


def _changes(request: VerifyRequest) -> str:
    """What a Program's Profile shows beside the reference's; '' without both."""
    if request.profile is None or request.reference_profile is None:
        return ""
    unit = "launches" if request.task.target.kind == "cuda" else "operator calls"
    return changes(compare(request.reference_profile, request.profile), unit=unit).rstrip()


def judge_prompt(request: VerifyRequest) -> Prompt:
    """For the judge of the coder-judge scheme: one program, no step, no history."""
    profile = request.profile
    message = render(
        "scheme_judge.j2",
        task=request.task,
        device=request.device,
        program=request.program,
        limit=20_000,
        evaluation=request.evaluation,
        log=_log(request.evaluation),
        profile=profile,
        disagreement="",
        overhead="",
        counters=profile.counters if profile else [],
        selected=frozenset(COUNTERS),
        source_limit=SOURCE_LIMIT,
    )
    instructions = render("scheme_judge_system.j2", kind=request.task.target.kind, correct=request.evaluation.passed)
    return Prompt(instructions, message)


_GRAPH = re.compile(r"(?i)\bcuda ?graphs?\b|\bgraph (?:capture|replay)|\bcaptur\w+ .{0,40}graph|\bin (?:a|one) graph\b")
_ROWS = re.compile(
    r"(?i)softmax|layer ?norm|rms ?norm|group ?norm|row[- ](?:wise|reduction)|last[- ]dim|reduction|variance"
)
_OVERLAP = re.compile(r"(?i)pinned|overlap\w* .{0,30}cop|cop\w+ .{0,30}overlap|staging|host[- ]resident")


def techniques(step: Step, kind: str) -> list[str]:
    """Templates of the techniques that ``step`` names; an example that the plan did not ask for distracts."""
    words = " ".join([step.title, step.fusion, step.host, step.acceptance, *step.operators])
    names = []
    if kind == "cuda" and _GRAPH.search(words):
        names.append("_technique_graph.j2")
    if _ROWS.search(words):
        names.append(f"_technique_rows_{kind}.j2")
    if kind == "cuda" and _OVERLAP.search(words):
        names.append("_technique_overlap.j2")
    return names


def _source_room(program: Program | None, references: References | None) -> int:
    """How much of a task's source is shown: less than usual only where program and references need the room."""
    shown = min(PROGRAM_LIMIT, sum(map(len, program.files.values()))) if program else 0
    beside = shown + (len(references.text) if references else 0)
    return min(SOURCE_LIMIT, max(SHORT_SOURCE, SOURCE_LIMIT + PROGRAM_LIMIT - beside))


def _number(steps: list[Step], step: Step) -> int:
    return next((i for i, other in enumerate(steps, start=1) if other == step), 1)


def _log(evaluation: Evaluation | None) -> str:
    if evaluation is None or not evaluation.log or evaluation.passed:
        return ""
    return digest(evaluation.log)
