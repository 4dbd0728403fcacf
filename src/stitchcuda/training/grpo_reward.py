"""The reward of GRPO's completions: the adapter's function with what a training wants besides, and early measuring.

What a reward is comes from ``training.adapters``; where programs are measured from ``compute``.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from stitchcuda.errors import StitchError, TrainingError
from stitchcuda.reward.model import Reward
from stitchcuda.reward.score import RewardOutcome, Unscored
from stitchcuda.reward.service import Backend, ServiceSettings
from stitchcuda.reward.service_blocking import BlockingService
from stitchcuda.training.adapters.mapping import ASKED, asked_of, averages, item_of_columns, said
from stitchcuda.training.adapters.trl import trl_reward
from stitchcuda.training.config import Rewards, TrainConfig
from stitchcuda.training.model import Row
from stitchcuda.training.prompts_rl import prompt_of, reply_text

SAMPLES = "samples.jsonl"
RECORDED = "recorded:"
SAMPLINGS = 5
"""Samplings over which failures of the machine are counted."""
BY_SKILL = ("built", "correct", "hack", "partial_hack")
"""Parts of a reward that are logged by skill, too."""


def columns_of(row: Row) -> dict[str, Any]:
    """A row as a trainer's data set has it: the prompt, and what the reward needs."""
    return {"prompt": prompt_of(row), **asked_of(row)}


class Samples:
    """Appends what came of each completion to a file; of those that are asked for, the text."""

    def __init__(self, path: Path, texts: Literal["none", "correct", "all"], start: int = 1) -> None:
        self.path, self.texts, self.start = path, texts, start

    def write(
        self,
        mode: str,
        step: int,
        columns: Sequence[Mapping[str, Any]],
        texts: Sequence[str],
        outcomes: Sequence[RewardOutcome],
    ) -> None:
        """One line a completion."""
        if self.texts == "none":
            return
        lines = []
        for asked, text, outcome in zip(columns, texts, outcomes, strict=True):
            line: dict[str, Any] = {"mode": mode, "step": step, "start": self.start, "skill": asked["skill"]}
            line["verdict"] = said(outcome)
            task = json.loads(asked["task"])
            line["task"] = task["name"]
            if isinstance(outcome, Reward):
                kept = outcome.model_dump(mode="json", exclude={"settings", "labels", "skill"}, exclude_defaults=True)
                line["reward"] = kept
            if self.texts == "all" or (isinstance(outcome, Reward) and outcome.correct):
                line["text"] = text
            lines.append(json.dumps(line) + "\n")
        with self.path.open("ab") as file:
            file.write("".join(lines).encode())


class Rewarder:
    """Scores batches for a trainer, and remembers of the last one what the trainer's numbers do not say."""

    def __init__(
        self,
        service: BlockingService,
        samples: Samples | None = None,
        *,
        unscored_limit: float = 1.0,
        in_thought: bool = False,
    ) -> None:
        self.service, self.samples, self.unscored_limit = service, samples, unscored_limit
        self.in_thought = in_thought
        self.mode, self.step = "train", 0
        self.outcomes: Sequence[RewardOutcome] = ()
        """Of the last batch, in its order."""
        self._failed: deque[tuple[int, int]] = deque(maxlen=SAMPLINGS)
        self._early: list[_Early] = []
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="early rewards")
        self._inner = trl_reward(service, watch=self._watch, name="reward")

    def noise(self) -> list[float]:
        """Standard error of each reward of the last batch; NaN where it is not known."""
        return [
            outcome.noise if isinstance(outcome, Reward) and outcome.noise is not None else math.nan
            for outcome in self.outcomes
        ]

    def correct(self) -> list[float]:
        """1 for each completion of the last batch that was correct and honest, else 0."""
        return [float(isinstance(one, Reward) and one.correct and not one.hack) for one in self.outcomes]

    @property
    def failing(self) -> bool:
        """The machine failed on more of the last samplings' completions than is allowed."""
        failed, total = map(sum, zip(*self._failed, strict=True)) if self._failed else (0, 0)
        return failed > self.unscored_limit * total

    def function(self) -> Callable[..., Coroutine[Any, Any, list[float | None]]]:
        """What TRL calls; TRL tells such functions by their being coroutines."""

        async def reward(*, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
            return await self._reward(prompts, self._replies(completions), columns)

        return reward

    def begin_early(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> None:
        """Have completions measured from now on; the function, asked for the same, then waits for what is left."""
        self._early.append(_Early(self.service, self._threads, rows, self._replies(texts)))

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _replies(self, completions: Sequence[Any]) -> list[str]:
        return [reply_text(one, in_thought=self.in_thought) for one in completions]

    def _watch(self, outcomes: Sequence[RewardOutcome]) -> None:
        self.outcomes = outcomes

    async def _reward(self, prompts: Sequence[Any], texts: list[str], columns: dict[str, Any]) -> list[float | None]:
        asked_at = time.monotonic()
        numbers = await self._inner(prompts=prompts, completions=texts, **columns)
        rows = [
            dict(zip(ASKED, values, strict=True)) for values in zip(*(columns[name] for name in ASKED), strict=True)
        ]
        if self.mode == "train":
            self._failed.append((sum(isinstance(one, Unscored) for one in self.outcomes), len(self.outcomes)))
        if self.samples is not None:
            self.samples.write(self.mode, self.step, rows, texts, self.outcomes)
        log = columns.get("log_metric")
        if log is not None:
            for name, value in self._details(rows, texts).items():
                log(name, value)
            if self._early:
                log("overlap/seconds", sum(one.before(asked_at) for one in self._early))
        self._early.clear()
        return numbers

    def _details(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> dict[str, float]:
        """Numbers by skill, and how many different completions there are."""
        found: dict[str, float] = {
            "reward/distinct": len(set(zip((row["task"] for row in rows), texts, strict=True))) / len(texts)
        }
        for skill in ("scratch", "improve"):
            chosen = [one for row, one in zip(rows, self.outcomes, strict=True) if row["skill"] == skill]
            values = [one.value for one in chosen if isinstance(one, Reward)]
            if values:
                means = averages(chosen)
                found[f"{skill}/reward"] = sum(values) / len(values)
                found |= {f"{skill}/{name}": means[name] for name in BY_SKILL if name in means}
        return found


class _Early:
    """Completions that are measured before they are asked for."""

    def __init__(
        self, service: BlockingService, threads: ThreadPoolExecutor, rows: Sequence[Mapping[str, Any]], texts: list[str]
    ) -> None:
        self._began, self._ended = time.monotonic(), math.inf
        self._work: Future[None] = threads.submit(self._score, service, rows, texts)

    def before(self, moment: float) -> float:
        """Seconds of measuring up to a moment."""
        return max(0.0, min(moment, self._ended) - self._began)

    def _score(self, service: BlockingService, rows: Sequence[Mapping[str, Any]], texts: list[str]) -> None:
        try:
            service.score_all([item_of_columns(row, text) for row, text in zip(rows, texts, strict=True)])
        except StitchError:
            pass  # comes again, and is told, where the trainer asks
        finally:
            self._ended = time.monotonic()


@contextmanager
def open_rewards(
    config: TrainConfig,
    compute: str,
    target: Literal["auto", "cuda", "cpu"],
    rows: Sequence[Row],
    out: Path,
    backend: Backend | None = None,
) -> Iterator[tuple[BlockingService, Callable[[Row], Row]]]:
    """The reward service over a compute place, and what turns a row into one for the device there.

    ``recorded:PATH`` scores what was recorded and runs nothing; what is measured elsewhere is recorded in
    ``out/measured.jsonl``. ``backend`` measures instead of a place. Raises TrainingError where the rows are for another
    kind of device.
    """
    from stitchcuda.reward.service_backends import RecordedEvaluations, Recorder

    kinds = sorted({row.task.target.kind for row in rows})
    with ExitStack() as stack:
        prepare: Callable[[Row], Row] = _as_it_is
        if backend is not None:
            pass
        elif compute.startswith(RECORDED):
            backend = _Known(RecordedEvaluations(Path(compute.removeprefix(RECORDED))))
        else:
            measuring, prepare = _measuring(stack, config.rewards, compute, target, kinds)
            backend = Recorder(measuring, out / "measured.jsonl")
        settings = ServiceSettings(
            tries=1 if compute.startswith(RECORDED) else 3,
            reward=config.rewards.settings,
            profile=config.rewards.profile,
            concurrency=config.rewards.concurrency,
            patience_seconds=config.rewards.patience_seconds,
        )
        yield stack.enter_context(BlockingService(backend, settings, cache=out / "measured.sqlite")), prepare


def _as_it_is(row: Row) -> Row:
    return row


def _measuring(
    stack: ExitStack, rewards: Rewards, compute: str, target: Literal["auto", "cuda", "cpu"], kinds: Sequence[str]
) -> tuple[Backend, Callable[[Row], Row]]:
    from stitchcuda.compute import open_compute
    from stitchcuda.reward.service_backends import ComputeBackend

    if len(kinds) != 1 or (target != "auto" and list(kinds) != [target]):
        raise TrainingError(
            f"the rows' programs are for {' and '.join(kinds)}, and the target is {target}; build the data set for one "
            "target, and train for that"
        )
    place = stack.enter_context(open_compute(compute))
    kind: Literal["cuda", "cpu"] = "cuda" if list(kinds) == ["cuda"] else "cpu"
    backend = ComputeBackend.on(place, kind, settings=rewards.evaluation)

    def on_the_device(row: Row) -> Row:
        if row.task.target == backend.device.target:
            return row
        return row.model_copy(update={"task": row.task.model_copy(update={"target": backend.device.target})})

    return backend, on_the_device


class _Known:
    """Recorded evaluations, where a program that was not recorded is no reward instead of the end of a training."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.stamp = backend.stamp

    async def evaluate(self, task: Any, program: Any) -> Any:
        """As recorded. Raises InfrastructureError."""
        from stitchcuda.errors import InfrastructureError, RecordMissing

        try:
            return await self._backend.evaluate(task, program)
        except RecordMissing as error:
            raise InfrastructureError(str(error)) from None

    async def profile(self, task: Any, program: Any) -> Any:
        """As recorded."""
        return await self._backend.profile(task, program)
