"""The reward service for callers without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.program.model import Program
from stitchcuda.reward.model import Skill
from stitchcuda.reward.score import Item, RewardOutcome
from stitchcuda.reward.service import Backend, Judge, RewardService, ServiceSettings
from stitchcuda.task.model import Task


class BlockingService:
    """A RewardService for callers without an event loop, such as a trainer's reward function; for several threads."""

    def __init__(
        self,
        backend: Backend,
        settings: ServiceSettings | None = None,
        *,
        cache: Path | None = None,
        judge: Judge | None = None,
        remark: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward service", daemon=True)
        self._thread.start()

        async def make() -> RewardService:
            return RewardService(backend, settings, cache=cache, judge=judge, remark=remark)

        self.service = asyncio.run_coroutine_threadsafe(make(), self._loop).result()

    def score(
        self,
        task: Task,
        completion: str,
        *,
        skill: Skill = "scratch",
        previous: Program | None = None,
        feedback: Feedback | None = None,
        step: Step | None = None,
    ) -> RewardOutcome:
        """See ``RewardService.score``; waits for it."""
        return self.score_all([Item(task, completion, skill, previous, feedback, step)])[0]

    def score_all(self, items: Sequence[Item]) -> list[RewardOutcome]:
        """The outcomes in the items' order; waits for all of them."""
        work = asyncio.run_coroutine_threadsafe(self.service.score_all(items), self._loop)
        try:
            return work.result()
        except BaseException:
            work.cancel()
            raise

    def close(self) -> None:
        """Stop working and close the cache's file."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        here = asyncio.current_task()
        running = [task for task in asyncio.all_tasks() if task is not here]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
