"""Rewards for many completions at once: measured on a pool, each thing once, a bounded number at a time.

A program's fault is a reward of zero; the machine's fault is ``Unscored`` and never a number. What is measured, and
where, is a ``Backend``'s business (``reward.service_backends``); how marks and the number follow, ``reward.score``'s.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step
from stitchcuda.errors import InfrastructureError, ProfilerError, ProgramError, RewardError, ToolMissing
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.program.model import Program
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.judge_model import JudgeOutcome
from stitchcuda.reward.model import Reward, RewardSettings, RubricScore, Skill
from stitchcuda.reward.observed import Observed
from stitchcuda.reward.score import (
    Item,
    RewardOutcome,
    Unscored,
    dumped,
    hashed,
    pays_over_previous,
    read_completion,
    rewarded,
    task_key,
    unreadable,
)
from stitchcuda.reward.service_cache import Disk, Lru
from stitchcuda.reward.service_flights import Flights
from stitchcuda.task.model import Task

SCHEMA = 1
"""Of what is kept; raise when equal programs must be measured anew."""

LONG = 1 << 16
"""Characters of a completion that is read in a thread."""

T = TypeVar("T")
Kept = TypeVar("Kept", bound=BaseModel)


class Backend(Protocol):
    """Measures Programs somewhere.

    Raises InfrastructureError or OSError when the machine or the pool failed; whatever a Program does, its own
    time-out included, is an Evaluation. May be called many times at once.
    """

    @property
    def stamp(self) -> str:
        """What measurements depend on besides task and Program: device, versions, settings, tier."""
        ...

    async def evaluate(self, task: Task, program: Program) -> Evaluation:
        """Build, check and time a Program."""
        ...

    async def profile(self, task: Task, program: Program | None) -> Profile | None:
        """Where time goes, of the reference for None; None where nothing there can profile."""
        ...


class Judge(Protocol):
    """Marks beside the evidence, as ``reward.judge`` does. Off unless one is passed."""

    @property
    def stamp(self) -> str:
        """What its marks depend on: model, prompt, votes, calibration."""
        ...

    async def judge(self, task: Task, observed: Observed, evidence: RubricScore) -> JudgeOutcome:
        """The marks that count; the evidence's where it fails. Raises nothing."""
        ...


class ServiceSettings(BaseModel):
    """Limits of the service, and what rewards are made with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reward: RewardSettings = Field(default_factory=RewardSettings)
    concurrency: int = Field(default=8, ge=1, description="completions in work at once; the others wait, unread")
    tries: int = Field(default=3, ge=1, description="how often a measurement is begun before a completion is unscored")
    retry_seconds: float = Field(default=1.0, ge=0, description="before the second try, twice that before the third")
    patience_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="for all that one completion needs, with the pool's queue; when it is up, the pool has failed",
    )
    profile: bool = Field(default=True, description="profile correct programs and their references: marks rest on it")
    memory_bytes: int = Field(default=256 << 20, ge=0, description="of results kept in memory")
    disk_bytes: int = Field(default=4 << 30, ge=1 << 20, description="of measurements kept on disk, compressed")


class Measured(BaseModel):
    """What is kept of one Program."""

    model_config = ConfigDict(frozen=True)

    evaluation: Evaluation
    profile: Profile | None = None
    hidden: bool = Field(default=False, description="it keeps the profiler out; never kept")


class Referred(BaseModel):
    """What is kept of a task's reference."""

    model_config = ConfigDict(frozen=True)

    profile: Profile | None = Field(description="None where nothing there can profile")


class RewardService:
    """Scores completions; for one event loop (``service_blocking`` serves callers without one).

    Equal completions that are asked for at once are measured once, equal Programs too, and what was measured is kept:
    in memory, and with ``cache`` in that file, which several processes may share. ``remark`` gets a sentence for
    whatever could not be had.
    """

    def __init__(
        self,
        backend: Backend,
        settings: ServiceSettings | None = None,
        *,
        cache: Path | None = None,
        judge: Judge | None = None,
        remark: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.backend, self.judge, self.remark = backend, judge, remark
        self.settings = settings or ServiceSettings()
        half = self.settings.memory_bytes // 2
        self._outcomes, self._seen = Lru(half), Lru(half)
        self._disk = Disk(cache, self.settings.disk_bytes, remark) if cache is not None else None
        self._slots = asyncio.Semaphore(self.settings.concurrency)
        self._scoring: Flights[RewardOutcome] = Flights()
        self._measuring: Flights[bytes] = Flights()
        self._about = hashed(
            str(SCHEMA), backend.stamp, self.settings.reward.model_dump_json(), judge.stamp if judge else ""
        )

    @property
    def memory(self) -> int:
        """Bytes of the results in memory."""
        return self._outcomes.bytes + self._seen.bytes

    async def score(
        self,
        task: Task,
        completion: str,
        *,
        skill: Skill = "scratch",
        previous: Program | None = None,
        feedback: Feedback | None = None,
        step: Step | None = None,
    ) -> RewardOutcome:
        """The reward of one completion. Raises TaskError when the task itself cannot be evaluated."""
        return await self.score_item(Item(task, completion, skill, previous, feedback, step))

    async def score_item(self, item: Item) -> RewardOutcome:
        """The same for an Item."""
        key = hashed(item.digest, self._about)
        known = self._outcomes.get(key)
        if known is not None:
            return Reward.model_validate_json(known)
        return await self._scoring.run(key, lambda: self._score(item, key))

    async def score_all(self, items: Sequence[Item]) -> list[RewardOutcome]:
        """The outcomes in the items' order."""
        return list(await asyncio.gather(*(self.score_item(item) for item in items)))

    def close(self) -> None:
        """Close the cache's file."""
        if self._disk is not None:
            self._disk.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _score(self, item: Item, key: str) -> RewardOutcome:
        async with self._slots:
            try:
                # Short ones take a millisecond, less than going to a thread may take.
                long = len(item.completion) > LONG
                program = await asyncio.to_thread(read_completion, item) if long else read_completion(item)
            except ProgramError as error:
                outcome: RewardOutcome = unreadable(item, error, self.settings.reward)
            else:
                outcome = await self._patiently(item, program)
        if isinstance(outcome, Reward) and outcome.status != "timed_out" and not outcome.judged.startswith("failed"):
            self._outcomes.put(key, outcome.model_dump_json().encode())
        return outcome

    async def _patiently(self, item: Item, program: Program) -> RewardOutcome:
        limit = self.settings.patience_seconds
        try:
            async with asyncio.timeout(limit):
                return await self._reward(item, program)
        except TimeoutError:
            return Unscored(kind="infrastructure", reason=f"the pool gave no verdict within {limit:g} s", tries=1)
        except InfrastructureError as error:
            return Unscored(kind="infrastructure", reason=str(error), tries=self.settings.tries)

    async def _reward(self, item: Item, program: Program) -> RewardOutcome:
        """Measured, marked and computed; measured anew where a number cannot be."""
        for attempt in range(1, self.settings.tries + 1):
            observed = await self._observe(item, program)
            marks = mark(observed, item.skill)
            judged = ""
            if self.judge is not None and observed.evaluation.passed:
                outcome = await self._judged(self.judge, item, observed, marks)
                marks = outcome.score
                judged = f"{outcome.outcome}: {outcome.reason}" if outcome.reason else outcome.outcome
            try:
                found = rewarded(item, observed, marks, self.settings.reward)
                return found.model_copy(update={"judged": judged})
            except RewardError as error:
                reason = str(error)
                for measured in (program, item.previous if pays_over_previous(item.skill, item.step) else None):
                    if measured is not None:
                        self._forget(self._key(item.task, measured))
                if attempt < self.settings.tries:
                    self.remark(f"measuring anew: {reason}")
        return Unscored(kind="measurement", reason=reason, tries=self.settings.tries)

    async def _judged(self, judge: Judge, item: Item, observed: Observed, marks: RubricScore) -> JudgeOutcome:
        """What a judge says of what was seen; kept like a measurement, for it is paid."""
        assert observed.program is not None
        about = dataclasses.replace(item, completion=observed.program.digest)
        key = hashed("judged", judge.stamp, about.digest, dumped(marks).decode(), dumped(observed.evaluation).decode())

        async def ask() -> tuple[bytes, bool]:
            outcome = await judge.judge(item.task, observed, marks)
            return dumped(outcome), outcome.outcome != "failed"

        return await self._kept(JudgeOutcome, key, ask, item.task)

    async def _observe(self, item: Item, program: Program) -> Observed:
        """All that marks rest on, from what is known or measured now."""
        before = await self._measured(item.task, item.previous) if item.previous is not None else None
        found = await self._measured(item.task, program)
        reference = None
        if found.evaluation.passed and self.settings.profile:
            key = hashed("reference", task_key(item.task), self._stamp())
            kept = await self._kept(Referred, key, lambda: self._reference(item.task), item.task)
            reference = kept.profile
        return Observed(
            evaluation=found.evaluation,
            reference=reference,
            profile=found.profile,
            program=program,
            step=item.step,
            feedback=item.feedback,
            hidden=found.hidden,
            before=before.profile if before is not None else None,
            previous=before.evaluation if before is not None else None,
        )

    async def _measured(self, task: Task, program: Program) -> Measured:
        return await self._kept(Measured, self._key(task, program), lambda: self._measure(task, program), task)

    async def _kept(
        self, kind: type[Kept], key: str, work: Callable[[], Coroutine[Any, Any, tuple[bytes, bool]]], task: Task
    ) -> Kept:
        """What is kept under ``key``, read; found anew where another version wrote it."""
        try:
            return kind.model_validate_json(await self._once(key, work, task))
        except ValidationError:
            self._forget(key)
            return kind.model_validate_json(await self._once(key, work, task))

    async def _measure(self, task: Task, program: Program) -> tuple[bytes, bool]:
        """A Measured as JSON, and whether it may be kept."""
        evaluation = await self._tried(lambda: self._evaluate(task, program))
        profile, hidden = None, False
        durable = evaluation.status != "timed_out"
        if evaluation.passed and self.settings.profile:
            try:
                profile = await self._tried(lambda: self._profile(task, program))
            except InfrastructureError as error:
                # Where its reference can be profiled now, it is the program that keeps the profiler out; where not,
                # this raises, and it was the machine.
                await self._tried(lambda: self._profile(task, None))
                self.remark(f"a correct program cannot be profiled, and is marked as one that hides: {error}")
                durable, hidden = False, True
        return dumped(Measured(evaluation=evaluation, profile=profile, hidden=hidden)), durable

    async def _reference(self, task: Task) -> tuple[bytes, bool]:
        profile = await self._tried(lambda: self._profile(task, None))
        return dumped(Referred(profile=profile)), True

    async def _evaluate(self, task: Task, program: Program) -> Evaluation:
        evaluation = await self.backend.evaluate(task, program)
        if evaluation.status == "infrastructure_error":
            raise InfrastructureError(evaluation.message or "the machine failed")
        return evaluation

    async def _profile(self, task: Task, program: Program | None) -> Profile | None:
        try:
            return await self.backend.profile(task, program)
        except (ToolMissing, ProfilerError) as error:
            self.remark(f"not profiled: {error}")
            return None

    async def _tried(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work``, begun again where the machine failed. Raises InfrastructureError in the end."""
        for attempt in range(1, self.settings.tries + 1):
            try:
                return await work()
            except (InfrastructureError, OSError) as error:
                if attempt == self.settings.tries:
                    raise InfrastructureError(str(error) or type(error).__name__) from error
                self.remark(f"the machine failed, trying again: {error}")
                await asyncio.sleep(self.settings.retry_seconds * 2 ** (attempt - 1))
        raise AssertionError("there is at least one try")

    async def _once(self, key: str, work: Callable[[], Coroutine[Any, Any, tuple[bytes, bool]]], task: Task) -> bytes:
        """What is kept under ``key``, else what ``work`` finds, done once for all who ask."""
        known = self._seen.get(key)
        if known is not None:
            return known

        async def find() -> bytes:
            disk = self._disk if task.search_path is None else None  # a user's package may change under its task
            kept = disk.get(key) if disk is not None else None
            if kept is None:
                kept, durable = await work()
                if not durable:
                    return kept
                if disk is not None:
                    await asyncio.to_thread(disk.put, key, kept)
            self._seen.put(key, kept)
            return kept

        return await self._measuring.run(key, find)

    def _key(self, task: Task, program: Program) -> str:
        return hashed("measured", task_key(task), program.digest, self._stamp())

    def _stamp(self) -> str:
        return f"{SCHEMA}:{self.settings.profile}:{self.backend.stamp}"

    def _forget(self, key: str) -> None:
        self._seen.drop(key)
        if self._disk is not None:
            self._disk.drop(key)
