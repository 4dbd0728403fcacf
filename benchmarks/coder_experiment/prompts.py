"""What the model is asked, in the same words in training and in tests, and the rows that a data set holds."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from coder_experiment.evaluate import Outcome
from coder_experiment.language import Program
from coder_experiment.rewards import Request
from coder_experiment.schedules import Schedule, any_schedule, faulty_program, mixed_program, own_program
from coder_experiment.tasks import Task

CHANGES = {
    "fix": "fix it",
    "vec4": "use 4 elements a thread",
    "warp": "use one warp a row",
    "block": "use one block a row",
    "tile": "use a tile",
    "own": "use own kernels only",
    "fuse": "fuse into one kernel",
}


def prompt(request: Request, result: str = "") -> str:
    """The text that a program is to follow. ``result``: what came of the old program."""
    head = f"task: y = {request.task.expression}\ncols: {request.task.cols}\n"
    if request.skill == "scratch":
        return f"{head}kernel:\n"
    return f"{head}old:\n{request.old}\nresult: {result}\nchange: {CHANGES[request.change]}\nkernel:\n"


def result_of(outcome: Outcome, baseline: float) -> str:
    """An outcome as a prompt says it."""
    if outcome.correct:
        return f"correct, {baseline / outcome.seconds:.1f}x"
    return f"{outcome.status.replace('_', ' ')}, {outcome.message[:40]}" if outcome.message else outcome.status


@dataclass(frozen=True)
class Row:
    """A request as text, with an answer that was verified (none in rows that are only asked)."""

    request: Request
    prompt: str
    answer: str = ""
    kind: str = "honest"

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        r = self.request
        fields = {"skill": r.skill, "old": r.old, "old_seconds": r.old_seconds, "change": r.change}
        return {"task": r.task.as_json(), **fields, "prompt": self.prompt, "answer": self.answer, "kind": self.kind}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Row:
        """From a file."""
        task = Task.from_json(record["task"])
        request = Request(task, record["skill"], record["old"], record["old_seconds"], record["change"])
        return cls(request, record["prompt"], record["answer"], record["kind"])


@dataclass(frozen=True)
class Worse:
    """An old program with the change that makes it better, and a program that has it."""

    old: Program
    change: str
    new: Program


def worsen(task: Task, draw: random.Random) -> Worse | None:
    """A program that is worse in a known way, at random; None where the draw does not suit the task."""
    schedule = any_schedule(draw)
    kinds = [s.operator.kind for s in task.chain]
    if draw.random() < 0.5:
        old = faulty_program(task, schedule, draw)
        return Worse(old, "fix", own_program(task, schedule)) if old else None
    if draw.random() < 0.4:
        old = mixed_program(task, schedule, draw)
        new = own_program(task, schedule)
        if old is None:
            return None
        return Worse(old, "fuse" if len(new.nodes) == 1 and draw.random() < 0.5 else "own", new)
    if "row" in kinds and "layout" not in kinds:
        better = "warp" if task.cols <= 1024 else "block"
        worse = "thread" if task.cols >= 64 else "block"
        old, new = (
            own_program(task, Schedule(group, schedule.threads, 1, schedule.nested)) for group in (worse, better)
        )
        return Worse(old, better, new)
    if kinds.count("layout") and "row" not in kinds:
        old, new = (own_program(task, Schedule("warp", schedule.threads, 1, True, tiled)) for tiled in (False, True))
        return Worse(old, "tile", new)
    if "row" not in kinds:
        old, new = (own_program(task, Schedule("warp", schedule.threads, vector, True)) for vector in (1, 4))
        return Worse(old, "vec4", new)
    return None
