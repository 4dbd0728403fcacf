"""What the Judge is sent: dimensions, evidence, reference and program, each vote in an order of its own."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from stitchcuda.agents.prompting import Prompt
from stitchcuda.reward.judge_evidence import Item
from stitchcuda.reward.judge_model import JudgeSettings, Verdict
from stitchcuda.reward.judge_view import View
from stitchcuda.reward.model import DIMENSIONS, Dimension, Skill
from stitchcuda.reward.rubric import load
from stitchcuda.reward.task_rubric import TaskRubric
from stitchcuda.task.model import Task

TEMPLATES = ("judge.j2", "judge_system.j2")


def order(vote: int, seed: int, items: Sequence[Item]) -> tuple[list[Dimension], list[Item]]:
    """In which order one vote is shown dimensions and evidence: by chance, and the same when asked again."""
    chance = random.Random(f"{seed} {vote}")
    dimensions, shown = list(DIMENSIONS), list(items)
    chance.shuffle(dimensions)
    chance.shuffle(shown)
    return dimensions, shown


def judge_prompt(
    task: Task,
    skill: Skill,
    view: View,
    reference: str,
    dimensions: Sequence[Dimension],
    items: Sequence[Item],
    asked: TaskRubric | None,
) -> Prompt:
    """One vote's prompt. ``reference`` is the task's program in neutral text."""
    rubric = load(skill)
    message = (
        environment()
        .get_template("judge.j2")
        .render(
            skill=skill,
            criteria=[rubric.criterion(name) for name in dimensions],
            items=items,
            asked=asked,
            reference=reference,
            files=view.files,
        )
    )
    instructions = environment().get_template("judge_system.j2").render(kind=task.target.kind)
    return Prompt(instructions.strip() + "\n", message.strip() + "\n")


def prompt_digest(settings: JudgeSettings) -> str:
    """SHA-256 over all that makes this judge another one: templates, rubrics, the answer's form, how it is asked."""
    loader = environment().loader
    assert loader is not None
    parts = [loader.get_source(environment(), name)[0] for name in TEMPLATES]
    parts += [load(skill).model_dump_json() for skill in ("scratch", "improve")]
    parts += [str(Verdict.model_json_schema()), str(settings.temperature), str(settings.votes)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def environment() -> Environment:
    """Of the Judge's templates; nothing that is put in is taken for a template."""
    return Environment(
        loader=PackageLoader("stitchcuda.agents", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
