"""Fifty completions of rows of both skills, and what was measured of their programs: for tests of rewards.

The programs and measurements are those of ``tests/reward/labelled``; nothing is run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

from stitchcuda.agents.plan import Step
from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.model import Evaluation, Finding
from stitchcuda.program.files import load_program
from stitchcuda.program.model import Program
from stitchcuda.reward.observed import Observed
from stitchcuda.reward.service_backends import REFERENCE, Recorded
from stitchcuda.task.model import Target, Task
from stitchcuda.training.model import Built, Row
from stitchcuda.training.reply import reply_of
from stitchcuda.training.rows import write_dataset
from tests.reward import labelled
from tests.workflow.world import FACTS

COMPLETIONS = 50
NO_PROGRAM = ("I would fuse these two loops.", "", "```python program.py\nclass ModelNew(nn.Module):\n    def forw")
CHEAT = Finding(rule="patched_clock", severity="reject", evidence="time.perf_counter", layer="static")


@functools.cache
def asked() -> list[tuple[Row, str]]:
    """Rows, each with a completion of its prompt: most hold a program that was measured, every tenth holds none."""
    found: list[tuple[Row, str]] = []
    for row, _ in _measured():
        kind = len(found) % 10
        found.append((row, NO_PROGRAM[len(found) // 10 % 3] if kind == 9 else row.completion))
        if len(found) == COMPLETIONS:
            break
    assert len(found) == COMPLETIONS
    return found


def write(folder: Path) -> Path:
    """The rows as a data set, and ``evaluations.jsonl`` with all that was measured."""
    rows = [row for row, _ in asked()]
    built = Built(rows=len(rows), by={}, tasks=len({row.task.digest for row in rows}), found=len(rows), dropped={})
    write_dataset(rows, built, folder)
    lines: dict[tuple[str, str, str], str] = {}
    for row, seen in _measured():
        known = (
            (row.answer, row.evaluation, seen.profile),
            (row.previous, row.previous_evaluation, seen.before),
            (None, None, seen.reference),
        )
        for program, evaluation, profile in known:
            digest = program.digest if program is not None else REFERENCE
            record = Recorded(task=row.task.digest, program=digest)
            if evaluation is not None:
                told = record.model_copy(update={"evaluation": evaluation})
                lines[record.task, digest, "evaluation"] = json.dumps(told.model_dump(mode="json"))
            if profile is not None:
                told = record.model_copy(update={"profile": profile})
                lines[record.task, digest, "profile"] = json.dumps(told.model_dump(mode="json"))
    (folder / "evaluations.jsonl").write_text("".join(f"{line}\n" for line in lines.values()), encoding="utf-8")
    return folder


@functools.cache
def _measured() -> list[tuple[Row, Observed]]:
    return list(_rows())


def _rows() -> Iterator[tuple[Row, Observed]]:
    """Labelled programs that were measured, as rows; every seventh has an evaluation that found a cheat, every eighth
    one that found a wrong output, instead of its own."""
    step = Step(title="all of it", operators=["everything"], fusion="one kernel", acceptance="correct and faster")
    number = 0
    for item in labelled.items():
        seen = labelled.measured(item)
        if seen is None or seen.program is None or item.target != "cpu":
            continue
        previous = load_program(labelled.program_path(item.before)) if item.before else None
        try:
            completion = reply_of(seen.program, previous, item.target)
        except ProgramError:
            continue
        number += 1
        evaluation = _altered(seen.evaluation, number)
        task = Task(
            name=item.task,
            origin=f"{item.task}.py",
            source=item.task_path.read_text(encoding="utf-8"),
            target=Target(kind=item.target, arch="native"),
        )
        row = Row(
            task=task,
            facts=FACTS,
            skill=item.skill,
            purpose="optimise" if previous else "draft",
            source="journal",
            step=step,
            instructions="You write programs.",
            message=f"Write {item.task} faster; request {item.id}.",
            completion=completion,
            answer=seen.program,
            evaluation=evaluation,
            previous=previous,
            previous_evaluation=_previous(previous, seen),
            feedback=seen.feedback,
            part="held_out" if number % 5 == 0 else "train",
        )
        yield row, seen


def _altered(evaluation: Evaluation, number: int) -> Evaluation:
    if number % 7 == 0:
        return evaluation.model_copy(update={"findings": [*evaluation.findings, CHEAT]})
    if number % 8 == 0:
        return evaluation.model_copy(update={"status": "wrong_output", "message": "element 3 is 7"})
    return evaluation


def _previous(previous: Program | None, seen: Observed) -> Evaluation | None:
    return seen.previous if previous is not None else None
