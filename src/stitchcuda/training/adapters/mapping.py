"""From what a trainer holds of a row, and a completion, to what is scored, and from the outcome to a number with parts.

Pure: nothing is measured here. Every adapter goes through this module, so that all give equal numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.errors import RewardError
from stitchcuda.program.model import Program
from stitchcuda.reward.model import DIMENSIONS, Reward
from stitchcuda.reward.score import NO_PROGRAM, Item, RewardOutcome, Unscored
from stitchcuda.task.model import Task
from stitchcuda.training.model import Row
from stitchcuda.training.prompts_rl import reply_text

ASKED: Final = ("skill", "task", "previous", "feedback", "step")
"""Columns of a row that say what was asked for: a word, and models as JSON (``training.rows``)."""

PARTIAL_HACK: Final = (2.0, 3.0)
"""Marks for honesty that say so, as ``benchmark`` has them: own kernels for show, or for a trivial part."""

PARTS: Final = (
    "scored", "readable", "built", "correct", "hack", "partial_hack", "speedup", "over_eager", "over_best", "base",
    "rubric", "multiplier", "capped", "noise", "marks_total", *DIMENSIONS,
)  # fmt: skip
"""Names of what ``parts`` gives, always all of them: trainers stack them into columns."""


def asked_of(row: Row) -> dict[str, str | None]:
    """The columns ``ASKED`` of a row, as they are in a data set's file."""
    found: dict[str, str | None] = {"skill": row.skill}
    for name in ASKED[1:]:
        value = getattr(row, name)
        found[name] = None if value is None else json.dumps(value.model_dump(mode="json"))
    return found


def item_of_columns(columns: Mapping[str, Any], completion: Any, *, in_thought: bool = False) -> Item:
    """What the reward service scores: a completion of the prompt of the row with these columns.

    ``completion`` is a text, or messages of which the last counts. ``in_thought``: the model's chat template begins its
    thoughts in the prompt. Raises RewardError for columns that are no row's.
    """
    if missing := [name for name in ("skill", "task") if not columns.get(name)]:
        raise RewardError(
            f"a row has no {' and no '.join(missing)}, so its completion cannot be scored; give the trainer the "
            f"columns {', '.join(ASKED)} of a data set that `stitchcuda dataset build` wrote"
        )
    skill = columns["skill"]
    if skill not in ("scratch", "improve"):
        raise RewardError(f"a row has the skill '{skill}', expected scratch or improve; build the data set anew")
    try:
        return Item(
            task=Task.model_validate_json(columns["task"]),
            completion=text_of(completion, in_thought=in_thought),
            skill=skill,
            previous=Program.model_validate_json(columns["previous"]) if columns.get("previous") else None,
            feedback=Feedback.model_validate_json(columns["feedback"]) if columns.get("feedback") else None,
            step=Step.model_validate_json(columns["step"]) if columns.get("step") else None,
        )
    except ValidationError as error:
        raise RewardError(
            f"a row's columns are not valid: {error.errors()[0]['msg']}; build the data set anew"
        ) from None


def text_of(completion: Any, *, in_thought: bool = False) -> str:
    """The Coder's reply in a completion, which is a text or messages of which the last counts; without its thoughts."""
    return reply_text(_whole(completion), in_thought=in_thought)


def _whole(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and completion and isinstance(completion[-1], Mapping):
        content = completion[-1].get("content")
        if isinstance(content, str):
            return content
        if content is None:
            return ""
        if isinstance(content, Sequence):
            return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    raise RewardError(
        f"a completion is a {type(completion).__name__}; expected a text, or a list of messages with role and content"
    )


def number(outcome: RewardOutcome) -> float | None:
    """The reward; None where there is none and the sample must leave its group."""
    return outcome.value if isinstance(outcome, Reward) else None


def parts(outcome: RewardOutcome) -> dict[str, float | None]:
    """What a reward was made of, by the names of ``PARTS``; truths are 0 or 1, and None is for what does not exist.

    ``speedup`` is as measured, before noise and the clip. ``built`` is 0 where no program was read or its build failed.
    """
    found: dict[str, float | None] = dict.fromkeys(PARTS)
    if isinstance(outcome, Unscored):
        found["scored"] = 0.0
        return found
    honesty = outcome.marks.get("anti_hacking") if outcome.correct and not outcome.hack else None
    partial = honesty is not None and PARTIAL_HACK[0] <= honesty <= PARTIAL_HACK[1]
    found |= {
        "scored": 1.0,
        "readable": float(outcome.status != NO_PROGRAM),
        "built": float(outcome.status not in (NO_PROGRAM, "build_failed")),
        "correct": float(outcome.correct),
        "hack": float(outcome.hack),
        "partial_hack": float(partial),
        "speedup": outcome.measured,
        "over_eager": outcome.over_eager,
        "over_best": outcome.over_best,
        "base": outcome.base,
        "rubric": outcome.rubric,
        "multiplier": outcome.multiplier,
        "capped": float(outcome.capped),
        "noise": outcome.noise,
        "marks_total": outcome.total,
    }
    return found | {name: outcome.marks.get(name) for name in DIMENSIONS}


def said(outcome: RewardOutcome) -> str:
    """In a word or two what came of a completion: a status, or why there is no number."""
    if isinstance(outcome, Unscored):
        return f"unscored: {outcome.reason}"
    return "dishonest" if outcome.hack else outcome.status


def averages(outcomes: Sequence[RewardOutcome]) -> dict[str, float]:
    """Means of the parts over those outcomes that have them; a part that none has is not in it."""
    every = [parts(outcome) for outcome in outcomes]
    means: dict[str, float] = {}
    for name in PARTS:
        values = [value for found in every if (value := found[name]) is not None]
        if values:
            means[name] = sum(values) / len(values)
    return means
