"""The scorecards of a run's programs, from what its folder holds; nothing is run. Showing them is in ``terminal`` and
``run_html``.

Programs are marked as written from scratch for the whole task: what their steps asked for is the search's business.
Machine code is not in a run's folder, so ``stitchcuda rubric`` sees more of a cuda program.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.errors import InfrastructureError, ProgramError, RewardError, RunError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.formula import reward
from stitchcuda.reward.model import Dimension, Reward, RewardSettings, RubricScore
from stitchcuda.reward.observed import Observed
from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.result import Best

TITLES: dict[Dimension, str] = {
    "anti_hacking": "Anti-hacking",
    "cuda_engineering": "CUDA engineering",
    "operator_coverage": "Operator coverage",
    "skill_compliance": "Skill compliance",
}
"""What people read."""


class Scorecard(BaseModel):
    """One program's marks and reward."""

    model_config = ConfigDict(frozen=True)

    number: int
    tier: str = Field(description="of the evaluation that it rests on")
    status: str
    message: str = Field(default="", description="of the Evaluation")
    marks: RubricScore
    reward: Reward | None = Field(default=None, description="None: it cannot be computed")
    problem: str = Field(default="", description="why it cannot be computed")
    profiled: bool = Field(default=False, description="the marks rest on profiles of program and reference too")


def scorecards(folder: RunFolder, settings: RewardSettings | None = None) -> dict[int, Scorecard]:
    """By number: the programs that were evaluated; the best by its final check. Raises RunError for a damaged file."""
    reference = profile_of(folder, "reference")
    found: dict[int, Scorecard] = {}
    for path in sorted((folder.path / "programs").glob("[0-9]*.json")):
        document = _document(folder, f"programs/{path.name}")
        evaluation = _evaluation(folder, f"programs/{path.name}", document)
        if evaluation is not None and path.stem.isdigit():
            number = int(path.stem)
            found[number] = _scored(folder, number, evaluation, reference, settings)
    if (document := _document(folder, "best.json")) is not None:
        try:
            best = Best.model_validate(document)
        except ValidationError as error:
            raise _damaged(folder, "best.json", error) from None
        found[best.number] = _scored(folder, best.number, best.evaluation, reference, settings)
    return found


def formula_text(found: Reward) -> str:
    """How a reward came about, on one line."""
    if found.speedup is None or found.multiplier is None:
        why = ", ".join(found.hacks) if found.hack else "not correct"
        return f"reward 0: {why}"
    level = ", whose difference lies within the measured interval" if found.within_interval else ""
    clipped = f" (measured {found.measured:.3f})" if found.measured and found.measured != found.speedup else ""
    return (
        f"reward {found.value:.3f} = min(({found.speedup:.3f} + {found.settings.tau:g}) x {found.multiplier:.3f}, "
        f"{found.settings.largest:g}), speed over {found.against}{level}{clipped}"
    )


def _scored(
    folder: RunFolder,
    number: int,
    evaluation: Evaluation,
    reference: Profile | None,
    settings: RewardSettings | None,
) -> Scorecard:
    profile = profile_of(folder, f"{number:03d}")
    observed = Observed(
        evaluation=evaluation,
        reference=reference if evaluation.passed else None,
        profile=profile,
        program=_program(folder, number),
    )
    card = Scorecard(
        number=number,
        tier=evaluation.tier,
        status=evaluation.status,
        message=evaluation.message,
        marks=mark(observed, "scratch"),
        profiled=profile is not None and reference is not None,
    )
    try:
        return card.model_copy(update={"reward": reward(evaluation, card.marks, "scratch", settings)})
    except (InfrastructureError, RewardError) as error:
        return card.model_copy(update={"problem": str(error)})


def _program(folder: RunFolder, number: int) -> Program | None:
    try:
        return folder.load(str(number))
    except (RunError, ProgramError):
        return None


def profile_of(folder: RunFolder, name: str) -> Profile | None:
    """The Profile of a run's reference ('reference') or of a program ('001'); None where none was taken."""
    document = _document(folder, f"profiles/{name}.json")
    try:
        return Profile.model_validate(document) if document is not None else None
    except ValidationError as error:
        raise _damaged(folder, f"profiles/{name}.json", error) from None


def _evaluation(folder: RunFolder, name: str, document: Any) -> Evaluation | None:
    """What a program's file holds; None where the machine failed, which says nothing about it."""
    try:
        found = Evaluation.model_validate(document["evaluation"])
    except (ValidationError, KeyError, TypeError) as error:
        raise _damaged(folder, name, error) from None
    return None if found.status == "infrastructure_error" else found


def _document(folder: RunFolder, name: str) -> Any:
    """A JSON file of the run; None where there is none."""
    path = folder.path / name
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(folder, name, error) from None


def _damaged(folder: RunFolder, name: str, error: Exception) -> RunError:
    why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
    return RunError(
        f"{folder.path / name} is damaged ({why}); delete it, and the scorecard is shown without what it held."
    )
