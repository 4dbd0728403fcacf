"""Tasks from a data set, and their reward. What both are made of is in ``stitchcuda.training.adapters.verifiers``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import verifiers.v1 as vf

from stitchcuda.errors import StitchError
from stitchcuda.training.adapters.verifiers import Remote, reward_of, tasks_of


class CoderData(vf.TaskData):
    """One request to the Coder."""

    skill: str
    """scratch: write from scratch; improve: repair or optimise from feedback."""
    asked: str
    """What the reward needs of the row, as JSON."""


class CoderTaskConfig(vf.TaskConfig):
    """Where rewards come from."""

    endpoint: str = ""
    """Address of a reward server, http://HOST:PORT."""
    token_file: str = ""
    """File with the server's token."""
    max_concurrent: int = 64
    """Completions that wait for the server at once."""


class CoderTask(vf.Task[CoderData, vf.State, CoderTaskConfig]):
    """One reply, measured."""

    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        """The reward of the last reply; its parts become metrics. Raises where there is none."""
        replies = trace.assistant_messages
        config = self.config
        if not config.endpoint:
            raise StitchError(
                "no reward server is named; start one with `python -m stitchcuda.training.adapters` and give "
                "--env.taskset.task.endpoint"
            )
        answers = _answers(config.endpoint, config.token_file, config.max_concurrent)
        score, parts = await reward_of(answers, self.data.asked, (replies[-1].content or "") if replies else "")
        trace.record_metrics(parts)
        return score


class CoderConfig(vf.TasksetConfig):
    """Which rows."""

    data: Path = Path("data")
    """Folder of a data set that `stitchcuda dataset build` wrote."""
    part: Literal["train", "held_out"] = "held_out"
    """Which rows of it."""
    skill: Literal["both", "scratch", "improve"] = "both"
    """Of which skill."""
    task: CoderTaskConfig = CoderTaskConfig()


class CoderTaskset(vf.Taskset[CoderTask, CoderConfig]):
    """The rows of a data set."""

    def load(self) -> Iterator[CoderTask]:
        """A task a row."""
        for fields in tasks_of(self.config.data, self.config.part):
            if self.config.skill in ("both", fields["skill"]):
                yield CoderTask(CoderData(**fields), self.config.task)


@cache
def _answers(endpoint: str, token_file: str, max_concurrent: int) -> Remote:
    return Remote(endpoint, token_file, max_concurrent=max_concurrent)
