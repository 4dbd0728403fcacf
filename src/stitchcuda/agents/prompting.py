"""Requests of the roles rendered as prompts, from the Jinja files in ``prompts``.

Each prompt is a pair: instructions that are equal for a whole run, or nearly so (providers can cache them),
and the message. Lengths are bounded here; what the words say is in the templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from stitchcuda.agents.feedback import Route
from stitchcuda.agents.fingerprint import digest
from stitchcuda.agents.metrics24 import COUNTERS
from stitchcuda.agents.plan import Step, TensorContract
from stitchcuda.agents.references import References
from stitchcuda.agents.roles import CodeRequest, PlanRequest, VerifyRequest
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.compare import compare
from stitchcuda.profiling.digest import changes
from stitchcuda.profiling.digest import digest as digest_of
from stitchcuda.program.model import MANIFEST, Program
from stitchcuda.task.model import TensorFacts

SOURCE_LIMIT = 24_000
"""Characters of a task's source that are shown."""
PROGRAM_LIMIT = 32_000
"""Characters of a program that are shown."""
PLANNED_LIMIT = 16_000
"""Characters of the best program that a Planner is shown."""
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
    baselines = request.baselines or {"eager": request.facts.eager_seconds}
    best = min(baselines, key=lambda name: baselines[name])
    message = _render(
        "planner.j2",
        task=request.task,
        facts=request.facts,
        device=request.device,
        profile=request.profile,
        baselines=baselines,
        best_name=best,
        best_seconds=baselines[best],
        attempts=request.attempts,
        ideas=request.ideas[-IDEAS_SHOWN:],
        program=request.best,
        limit=PLANNED_LIMIT,
        best_speedup=request.best_speedup,
        program_seconds=request.best_seconds,
        program_profile=digest_of(request.best_profile).rstrip() if request.best_profile else "",
        references=request.references,
        source_limit=SOURCE_LIMIT if request.best is None else SHORT_SOURCE,
    )
    instructions = _render(
        "planner_system.j2", kind=request.task.target.kind, precision=request.task.precision, source_limit=SOURCE_LIMIT
    )
    return Prompt(instructions, message)


def coder_prompt(request: CodeRequest) -> Prompt:
    """For a Program: a draft, an improvement of ``program``, or a repair of ``failed``."""
    purpose, shown = coder_purpose(request)
    evaluation = request.evaluation
    message = _render(
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
        baselines=request.baselines,
        heading="Your step",
        program=shown,
        limit=PROGRAM_LIMIT,
        evaluation=evaluation,
        outdone=request.outdone,
        log=_log(evaluation),
        feedback=request.feedback,
        attempts=request.attempts,
        techniques=techniques(request.step, request.task.target.kind),
        references=request.references,
        source_limit=_source_room(shown, request.references),
    )
    instructions = _render(
        "coder_system.j2",
        kind=request.task.target.kind,
        precision=request.task.precision,
        edits=purpose != "draft",
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
    message = _render(
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
        profile=digest_of(request.profile).rstrip() if request.profile else "",
        unprofiled=request.unprofiled,
        start=request.start,
        start_profile=digest_of(request.start_profile).rstrip() if request.start_profile else "",
        same_as=request.same_as,
        changes=_changes(request),
        best_speedup=request.best_speedup,
        best_seconds=request.best_seconds,
        last_step=request.last_step,
        attempts=request.attempts,
        references=request.references,
        heading="The step that it implements",
        baselines={},
        source_limit=8_000,
    )
    instructions = _render(
        "verifier_system.j2",
        kind=request.task.target.kind,
        correct=request.evaluation.passed,
        routes=routes,
        meanings=MEANINGS,
        cite=request.references is not None,
    )
    return Prompt(instructions, message)


def _changes(request: VerifyRequest) -> str:
    """What a Program's Profile shows beside the reference's; '' without both."""
    if request.profile is None or request.reference_profile is None:
        return ""
    return changes(compare(request.reference_profile, request.profile)).rstrip()


def judge_prompt(request: VerifyRequest) -> Prompt:
    """For the judge of the coder-judge scheme: one program, no step, no history."""
    profile = request.profile
    message = _render(
        "scheme_judge.j2",
        task=request.task,
        device=request.device,
        program=request.program,
        limit=20_000,
        evaluation=request.evaluation,
        log=_log(request.evaluation),
        profile=profile,
        counters=profile.counters if profile else [],
        selected=frozenset(COUNTERS),
        source_limit=SOURCE_LIMIT,
    )
    instructions = _render("scheme_judge_system.j2", kind=request.task.target.kind, correct=request.evaluation.passed)
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


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("stitchcuda.agents", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,
    )
    environment.filters.update(
        tensor=_tensor,
        contract=_contract,
        seconds=_seconds,
        bytes=_bytes,
        rate=_rate,
        count=_count,
        percent=lambda share: f"{100 * share:.1f} %",
        factor=lambda value: f"{value:.2f}x",
        short=_short,
        quoted=lambda text: _quoted(text.replace(_KEPT_NEWLINE, " ")),
        fit=lambda text, limit: _quoted(fit(text, limit)),
        isa=_isa,
        listing=_listing,
        language=_language,
    )
    return environment


def _render(template: str, **values: Any) -> str:
    kind = values["kind"] if "kind" in values else values["task"].target.kind
    precision = values["precision"] if "precision" in values else values["task"].precision if "task" in values else ""
    text = _environment().get_template(template).render({**values, "kind": kind, "precision": precision})
    text = re.sub(r"\n+(?=#{2,3} )", "\n\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).replace(_KEPT_NEWLINE, "\n").strip() + "\n"


_KEPT_NEWLINE = "\ue000"
"""Stands for the newlines of quoted files while blank lines are tidied: edits must find a file's exact text."""


def _quoted(text: str) -> str:
    return text.replace("\n", _KEPT_NEWLINE)


def fit(text: str, limit: int) -> str:
    """``text`` with its middle left out where it is longer than ``limit`` characters; the cut is marked."""
    if len(text) <= limit:
        return text.rstrip()
    head, tail = limit * 2 // 3, limit // 3
    left_out = len(text) - head - tail
    return f"{text[:head].rstrip()}\n# [... {left_out:,} characters left out ...]\n{text[-tail:].lstrip()}"


def _listing(program: Program, limit: int) -> Iterator[tuple[str, str]]:
    """Files in reading order with their text, the manifest last, within ``limit`` characters together."""
    files = {path: text for path, text in program.files.items() if path != MANIFEST}
    share = max(2_000, limit // max(1, len(files)))
    spare = limit - sum(min(len(text), share) for text in files.values())
    for path in sorted(files, key=lambda name: (name != "program.py", name)):
        room = share + max(0, spare) if len(files[path]) > share else share
        yield path, _quoted(fit(files[path], room))
    if program.manifest is not None:
        yield MANIFEST, program.manifest.model_dump_json(exclude_defaults=True)


def _language(path: str) -> str:
    return {"py": "python", "cu": "cuda", "cuh": "cuda", "cpp": "cpp", "h": "cpp", "json": "json"}.get(
        path.rpartition(".")[2], ""
    )


def _tensor(item: TensorFacts | str) -> str:
    if isinstance(item, str):
        return f"the value {_short(item, 120)}"
    return f"{item.dtype} [{', '.join(map(str, item.shape))}]"


def _contract(item: TensorContract) -> str:
    return f"{item.name}: {item.dtype} [{', '.join(map(str, item.shape))}], {item.layout}"


def _short(text: str, limit: int) -> str:
    flat = " ".join(str(text).split()).replace("|", "/")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _isa(features: list[str]) -> str:
    return ", ".join(name for name in features if re.match(r"(avx|fma|sse4|amx|neon|sve|asimd|f16c)", name))


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1.0 or unit == "µs":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024
    raise AssertionError


def _rate(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 1000 or prefix == "P":
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    raise AssertionError


def _count(value: float) -> str:
    return _rate(value, "").strip()
