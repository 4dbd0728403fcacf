"""Programs with known marks, and trying a judge on them. What becomes of the figures is ``reward.judge_calibration``.

A file of them is JSON Lines, one ``KnownProgram`` a line: everything that was seen of a program, so that nothing is run
again, and the marks that people gave it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from stitchcuda.errors import RewardError
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.judge import Judge
from stitchcuda.reward.judge_calibration import Calibration, Marks, calibrate
from stitchcuda.reward.judge_model import JudgeOutcome
from stitchcuda.reward.model import DIMENSIONS, Dimension, Level
from stitchcuda.reward.seen import Seen


class KnownProgram(Seen):
    """What was seen of one program, and its known marks."""

    id: str
    marks: dict[Dimension, Level] = Field(description="the mean, where several people gave them")

    @model_validator(mode="after")
    def _complete(self) -> KnownProgram:
        if missing := [name for name in DIMENSIONS if name not in self.marks]:
            raise ValueError(f"{self.id} has no mark for {', '.join(missing)}")
        return self


def read(path: Path) -> list[KnownProgram]:
    """All programs of a file. Raises RewardError for a line that is none, and for an empty file."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(KnownProgram.model_validate_json(line))
        except ValidationError as error:
            first = " ".join(str(error).splitlines()[:3])
            raise RewardError(f"line {number} of {path} is no program with known marks ({first})") from None
    if not found:
        raise RewardError(f"{path} holds no program; each line is one with its known marks")
    return found


def try_judge(
    judge: Judge,
    known: Sequence[KnownProgram],
    *,
    labels: str = "",
    at_once: int = 4,
    tell: Callable[[str], None] | None = None,
) -> tuple[Calibration, dict[str, JudgeOutcome]]:
    """Judge every correct program, ``at_once`` of them at a time, and compare with the known marks.

    A program that gets nothing anyway is not asked about and does not count. Raises RewardError where fewer than two
    judgements can be used.
    """
    asked = [program for program in known if program.evaluation.passed]
    say = tell or (lambda sentence: None)

    def one(program: KnownProgram) -> JudgeOutcome:
        found = judge.judge(program.task, program.observed, mark(program.observed, program.skill))
        say(f"{program.id}: {found.outcome}{f', {found.reason}' if found.reason else ''}")
        return found

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        outcomes = list(pool.map(one, asked))
    judged: list[Marks | None] = [found.medians or None for found in outcomes]
    calibration = calibrate(
        [program.marks for program in asked],
        judged,
        model=judge.settings.model,
        prompt=judge.prompt,
        labels=labels or digest(asked),
        measured_on=datetime.now(UTC).date().isoformat(),
    )
    return calibration, {program.id: found for program, found in zip(asked, outcomes, strict=True)}


def digest(known: Sequence[KnownProgram]) -> str:
    """Names a set of programs and marks."""
    text = "\n".join(program.model_dump_json() for program in known)
    return f"{len(known)} programs, sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"
