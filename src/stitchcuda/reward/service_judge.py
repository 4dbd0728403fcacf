"""The language-model Judge as the reward service asks it: in threads of its own, and under a name that its marks depend
on. What a Judge does is in ``reward.judge``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stitchcuda.reward.judge import Judge
from stitchcuda.reward.judge_model import JudgeOutcome
from stitchcuda.reward.model import RubricScore
from stitchcuda.reward.observed import Observed
from stitchcuda.reward.score import dumped, hashed
from stitchcuda.reward.task_rubric import TaskRubric
from stitchcuda.task.model import Task

THREADS = 16
"""Programs that are judged at once; apart from the loop's own threads, which must never wait for a model."""


class ModelJudge:
    """A Judge for ``RewardService(judge=...)``.

    ``keep`` gets every outcome of a judgement that was made, for the record; ``asked`` gives what a task asks for,
    where it has a rubric of its own.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        keep: Callable[[JudgeOutcome], None] = lambda outcome: None,
        asked: Callable[[Task], TaskRubric | None] = lambda task: None,
    ) -> None:
        self._judge, self._keep, self._asked = judge, keep, asked
        self._pool = ThreadPoolExecutor(THREADS, "stitchcuda-judge")
        calibration = judge.calibration
        self._stamp = hashed(
            dumped(judge.settings.model_copy(update={"prices": {}})).decode(),
            judge.prompt,
            dumped(calibration).decode() if calibration is not None else "",
        )

    @property
    def stamp(self) -> str:
        """Settings, prompt and calibration."""
        return self._stamp

    async def judge(self, task: Task, observed: Observed, evidence: RubricScore) -> JudgeOutcome:
        """As the Judge says; what failed says so."""
        loop = asyncio.get_running_loop()
        asked = self._asked(task)
        outcome = await loop.run_in_executor(self._pool, self._judge.judge, task, observed, evidence, asked)
        self._keep(outcome)
        return outcome
