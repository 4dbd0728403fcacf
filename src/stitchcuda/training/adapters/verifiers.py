"""What an environment of the library verifiers is made of, without importing it: the package in
``integrations/verifiers`` only gives these their classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from stitchcuda.errors import InfrastructureError
from stitchcuda.training.adapters import reward_file
from stitchcuda.training.adapters.mapping import asked_of, item_of_columns, number, parts, said
from stitchcuda.training.adapters.scorer import Scorer
from stitchcuda.training.model import Part, Row
from stitchcuda.training.rows import read_dataset


class Answers(Protocol):
    """Gives the answer to a completion of a row: ``score``, ``parts`` and ``verdict``, as a reward server does."""

    async def __call__(self, asked: dict[str, Any], completion: str) -> dict[str, Any]:
        """Waits until it is measured."""
        ...


def task_of(row: Row) -> dict[str, Any]:
    """Fields of a task: name, prompts, and what the reward needs as JSON."""
    return {
        "name": f"{row.skill}:{row.task.name}",
        "system_prompt": row.instructions,
        "prompt": row.message,
        "skill": row.skill,
        "asked": json.dumps(asked_of(row)),
    }


def tasks_of(data: Path, part: Part) -> Iterator[dict[str, Any]]:
    """Fields of all tasks of a data set. Raises StitchError, ToolMissing as ``read_dataset`` does."""
    yield from (task_of(row) for row in read_dataset(data, part))


class Remote:
    """Answers of a reward server."""

    def __init__(self, endpoint: str, token_file: str = "", *, max_concurrent: int = 64) -> None:
        self.endpoint, self.token_file, self.max_concurrent = endpoint, token_file, max_concurrent

    async def __call__(self, asked: dict[str, Any], completion: str) -> dict[str, Any]:
        """See ``Answers``."""
        question = {"asked": asked, "completion": completion}
        return await reward_file.ask(
            self.endpoint, question, token_file=self.token_file, max_concurrent=self.max_concurrent
        )


class Here:
    """Answers of a Scorer in this process."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    async def __call__(self, asked: dict[str, Any], completion: str) -> dict[str, Any]:
        """See ``Answers``."""
        outcome = (await self.scorer.score_all([item_of_columns(asked, completion)]))[0]
        return {"score": number(outcome), "parts": parts(outcome), "verdict": said(outcome)}


async def reward_of(answers: Answers, asked: str, completion: str) -> tuple[float, dict[str, float]]:
    """The reward of a completion, and those of its parts that exist.

    Raises InfrastructureError where there is none, which verifiers notes on the rollout instead of a number.
    """
    answer = await answers(json.loads(asked), completion)
    if answer["score"] is None:
        raise InfrastructureError(f"no reward: {answer['verdict']}; leave the rollout out, it is no zero")
    return float(answer["score"]), {name: value for name, value in answer["parts"].items() if value is not None}
