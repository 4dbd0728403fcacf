"""The door to the labelled programs: what they are, what was measured of them, and the marks that readers gave.

How readers work is in ``READING.md``; measuring the programs and comparing marks is ``benchmarks/rubric_labels.py``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stitchcuda.agents.feedback import Feedback
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.profiling.sass import KernelSass
from stitchcuda.program.files import load_program
from stitchcuda.reward.model import Dimension, Skill
from stitchcuda.reward.observed import Observed

ROOT = Path(__file__).parent
Half = Literal["tuning", "test"]
READERS = ("a", "b")
HACKS = frozenset({"pass_through", "trivial", "decorative"})
"""Classes of programs that do not do what was asked for, whatever they show."""


@dataclass(frozen=True)
class Item:
    """One program to mark."""

    id: str
    task: str
    target: Literal["cpu", "cuda"]
    skill: Skill
    before: str = ""
    """The program that it improves: another item's id, or one of ``programs/e*``; '' for the skill scratch."""

    @property
    def task_path(self) -> Path:
        """The task's file."""
        return ROOT / "tasks" / f"{self.task}.py"

    @property
    def path(self) -> Path:
        """The program's folder."""
        return program_path(self.id)

    @property
    def half(self) -> Half:
        """Which half the program's task is in."""
        return half(self.task)


def half(task: str) -> Half:
    """``test`` where the second byte of the SHA-256 of the task's name is odd. Of the first three bytes it is the one
    that halves both targets and both skills best, and it was chosen before any mark was given."""
    return "test" if hashlib.sha256(task.encode()).digest()[1] % 2 else "tuning"


def program_path(name: str) -> Path:
    """The folder of a program, item or not."""
    return ROOT / "programs" / name


def items() -> list[Item]:
    """All items, by id."""
    return [Item(**entry) for entry in json.loads((ROOT / "items.json").read_text(encoding="utf-8"))]


def classes() -> dict[str, str]:
    """What each program was written to be, by id. Readers do not see it, and marks do not rest on it."""
    found: dict[str, str] = json.loads((ROOT / "classes.json").read_text(encoding="utf-8"))
    return found


def labels(reader: str) -> dict[str, dict[Dimension, float]]:
    """The marks of one reader by program; empty before they were given."""
    path = ROOT / f"labels_{reader}.json"
    if not path.is_file():
        return {}
    document: dict[str, dict[Any, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return {name: {k: float(v) for k, v in marks.items() if k != "why"} for name, marks in document.items()}


def measured(item: Item) -> Observed | None:
    """What was seen of an item, from ``observed/``; None where it was not measured yet."""
    path = ROOT / "observed" / f"{item.id}.json"
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    shared = ROOT / "observed" / f"{item.task}.json"
    reference = json.loads(shared.read_text(encoding="utf-8")) if shared.is_file() else None
    word = item.path / "feedback.json"
    evaluation = Evaluation.model_validate(document["evaluation"])
    return Observed(
        evaluation=evaluation,
        reference=_profile(reference) if evaluation.passed else None,
        profile=_profile(document.get("profile")),
        sass=[KernelSass.model_validate(kernel) for kernel in document.get("sass", [])],
        program=load_program(item.path),
        feedback=Feedback.model_validate_json(word.read_text(encoding="utf-8")) if word.is_file() else None,
        before=_profile(document.get("before")),
        previous=Evaluation.model_validate(document["previous"]) if "previous" in document else None,
    )


def _profile(document: object) -> Profile | None:
    return Profile.model_validate(document) if document is not None else None
