"""A task's rubric as a strong model drafts it, held to what was measured; the rule-based one where it cannot.

The draft may ask only for operators that the reference's profile shows, and promise no more than they take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.prompting import Prompt
from stitchcuda.agents.providers import check_access
from stitchcuda.agents.settings import Limits, MindSettings
from stitchcuda.agents.spending import Meter
from stitchcuda.evaluation.model import SpeedOfLight
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.model import Profile
from stitchcuda.reward.coverage import Operator, dominant, operators
from stitchcuda.reward.judge_prompt import environment
from stitchcuda.reward.judge_python import CannotBeShown
from stitchcuda.reward.judge_view import reference_text
from stitchcuda.reward.replies import Replies
from stitchcuda.reward.task_rubric import Ask, TaskRubric, make
from stitchcuda.task.model import Task

HOST = "host"
"""Names the host's side, launches and copies, among the operators of an ask."""
SLACK = 1.02
"""A promised gain may be above its limit by rounding."""
SOURCE_LIMIT = 24_000

Weight = Annotated[int, Field(strict=True, ge=1, le=5)]


class DraftAsk(BaseModel):
    """One thing that a good program for this task would do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = Field(min_length=15, max_length=400, description="one thing that can be seen in code or profile")
    operators: list[str] = Field(min_length=1, description="as the profile names them; 'host' for launches and copies")
    weight: Weight = Field(description="5: without it no program is good; 1: nice to have")
    gain: float = Field(strict=True, ge=1, allow_inf_nan=False, description="speedup of the whole call by this alone")


class Draft(BaseModel):
    """What is asked of a program for one task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    asks: list[DraftAsk] = Field(min_length=2, max_length=10)


def draft(
    task: Task,
    reference: Profile,
    device: Device,
    bound: SpeedOfLight | None = None,
    *,
    model: str,
    base_url: str | None = None,
    settings: MindSettings | None = None,
    notify: Callable[[str], None] | None = None,
) -> TaskRubric:
    """The model's rubric, after one re-ask at most; else the rule-based one, whose ``note`` says why.

    Raises StitchError for a bad name or address, KeyMissing without a key, ToolMissing without the ``llm`` extra, and
    RewardError when the Profile holds no work.
    """
    check_access(model, base_url)
    from stitchcuda.agents.asking import Conversation, NoUsableAnswer

    ruled = make(task, reference, device, bound)
    tell = notify or (lambda sentence: None)
    conversation = Conversation(
        model,
        base_url,
        log=Replies("rubric#0"),
        settings=settings or MindSettings(reasks=1),
        meter=Meter(Limits()),
        notify=tell,
    )

    def checked(found: Draft) -> None:
        check(found, reference, bound)

    try:
        found = conversation.typed("rubric", draft_prompt(task, reference, device, bound), Draft, checked)
    except NoUsableAnswer as error:
        return _ruled(ruled, f"{model} gave no usable rubric: {error}", tell)
    except Exception as error:
        # The rules are there whatever a model's client raises; the reason is kept with the rubric.
        return _ruled(ruled, f"{model} could not be asked: {type(error).__name__}: {error}", tell)
    asks = [
        Ask(text=" ".join(ask.text.split()), gain=ask.gain, weight=ask.weight, operators=ask.operators)
        for ask in sorted(found.asks, key=lambda ask: (-ask.weight, -ask.gain))
    ]
    return ruled.model_copy(update={"asks": asks, "author": model})


def check(found: Draft, reference: Profile, bound: SpeedOfLight | None = None) -> None:
    """Raise ValueError with everything in a draft that what was measured contradicts."""
    wall = reference.timeline.wall_seconds
    known = {operator.name: operator.seconds for operator in _merged(operators(reference))}
    names = ", ".join(known)
    problems = []
    for number, ask in enumerate(found.asks, start=1):
        if unknown := [name for name in ask.operators if name not in known and name != HOST]:
            problems.append(f"ask {number}: {', '.join(unknown)} is not in the profile; it has {names}, and '{HOST}'")
            continue
        seconds = sum(known.get(name, 0.0) for name in set(ask.operators))
        if HOST in ask.operators:
            seconds += reference.timeline.gap_seconds + reference.timeline.copy_seconds
        limit = 1 / max(1 - seconds / wall, 1e-6)
        if bound is not None and bound.bound_seconds > 0:
            limit = min(limit, max(wall / bound.bound_seconds, 1.0))
        if ask.gain > SLACK * limit:
            problems.append(
                f"ask {number}: a gain of {ask.gain:.3g} is more than {limit:.3g}, which is left if all of the time of "
                f"{', '.join(ask.operators)} were gone"
            )
    texts = [" ".join(ask.text.lower().split()) for ask in found.asks]
    if len(set(texts)) != len(texts):
        problems.append("two asks have the same text")
    asked = {name for ask in found.asks for name in ask.operators}
    if left := [operator.name for operator in dominant(_merged(operators(reference))) if operator.name not in asked]:
        problems.append(f"no ask is about {', '.join(left)}, which together with others takes most of the time")
    if problems:
        raise ValueError("; ".join(problems))


def draft_prompt(task: Task, reference: Profile, device: Device, bound: SpeedOfLight | None) -> Prompt:
    """What the model is sent. The reference is shown without comments where it can be read."""
    try:
        source = reference_text(task.source)
    except CannotBeShown:
        source = task.source
    message = (
        environment()
        .get_template("judge_rubric.j2")
        .render(
            task=task,
            source=source[:SOURCE_LIMIT],
            device=device,
            rate=device.ceilings.rate(task.precision) if device.ceilings else 0.0,
            bound=bound,
            reference=reference,
            operators=_merged(operators(reference))[:20],
            host=HOST,
        )
    )
    instructions = environment().get_template("judge_rubric_system.j2").render(kind=task.target.kind, host=HOST)
    return Prompt(instructions.strip() + "\n", message.strip() + "\n")


def _merged(found: list[Operator]) -> list[Operator]:
    """One entry a name, by falling time."""
    by_name: dict[str, Operator] = {}
    for operator in found:
        if (seen := by_name.get(operator.name)) is not None:
            operator = Operator(
                seen.name, seen.family, seen.seconds + operator.seconds, seen.share + operator.share, seen.covered
            )
        by_name[operator.name] = operator
    return sorted(by_name.values(), key=lambda operator: -operator.seconds)


def _ruled(rubric: TaskRubric, reason: str, tell: Callable[[str], None]) -> TaskRubric:
    note = reason[:500]
    tell(f"{note}; the rules' rubric is kept instead")
    return rubric.model_copy(update={"note": note})
