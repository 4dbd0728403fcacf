"""The reward function that TRL's GRPOTrainer calls. TRL itself is not needed here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from stitchcuda.reward.score import RewardOutcome
from stitchcuda.reward.service_blocking import BlockingService
from stitchcuda.training.adapters.mapping import ASKED, averages, item_of_columns, number, said
from stitchcuda.training.adapters.scorer import Scorer, scorer_of


class TrlReward(Protocol):
    """What TRL calls with every batch: one reward a completion, None for one that has none."""

    __name__: str

    def __call__(
        self, *, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Coroutine[Any, Any, list[float | None]]:
        """The rewards, in the completions' order."""
        ...


def trl_reward(
    service: Scorer | BlockingService,
    *,
    watch: Callable[[Sequence[RewardOutcome]], None] = lambda outcomes: None,
    name: str = "stitchcuda",
    in_thought: bool = False,
) -> TrlReward:
    """An asynchronous reward function over the reward service, for rows of a data set as ``training.rows`` writes them.

    It needs the columns skill, task, previous, feedback and step, which TRL passes on. A completion that cannot be
    scored gets None, which TRL leaves out of its group's mean and deviation. Each batch's means of the parts
    (``mapping.PARTS``) go to TRL's log as ``stitchcuda/...``, and each completion's verdict to its table of
    completions. ``watch`` gets the outcomes of every batch. ``in_thought``: the model's chat template begins its
    thoughts in the prompt (``prompts_rl.opens_thought``).
    """
    scorer = scorer_of(service)

    async def reward(*, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        told = [columns.get(column) or [None] * len(completions) for column in ASKED]
        items = [
            item_of_columns(dict(zip(ASKED, values, strict=True)), completion, in_thought=in_thought)
            for completion, *values in zip(completions, *told, strict=True)
        ]
        outcomes = await scorer.score_all(items)
        watch(outcomes)
        log_metric, log_extra = columns.get("log_metric"), columns.get("log_extra")
        if log_metric is not None:
            for part, value in averages(outcomes).items():
                log_metric(f"{name}/{part}", value)
        if log_extra is not None:
            log_extra(f"{name}_verdict", [said(outcome) for outcome in outcomes])
        return [number(outcome) for outcome in outcomes]

    reward.__name__ = name
    return reward
