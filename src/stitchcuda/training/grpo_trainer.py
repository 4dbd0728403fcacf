"""TRL's GRPOTrainer with this project's groups: a floored deviation, samples that leave them, early measuring.

Settings are turned into TRL's in ``grpo``.
"""

from __future__ import annotations

from typing import Any

import torch
from trl import GRPOTrainer

from stitchcuda.errors import TrainingError
from stitchcuda.training.config import Grpo
from stitchcuda.training.grpo_advantage import advantages
from stitchcuda.training.grpo_reward import Rewarder
from stitchcuda.training.metrics_trainer import Measured

OVERRIDDEN = ("_generate_single_turn", "_calculate_rewards", "_generate_and_score_completions")
"""Of TRL's own methods; a version without them would train without what they do here."""


class GroupTrainer(Measured, GRPOTrainer):  # type: ignore[misc]
    """``grpo`` and ``rewarder`` are set before anything is trained, ``phases`` before it is made.

    TRL is told to divide nothing (``scale_rewards="none"``): advantages are computed here from its gathered rewards.
    """

    grpo: Grpo
    rewarder: Rewarder

    def __init__(self, *arguments: Any, **named: Any) -> None:
        missing = [name for name in OVERRIDDEN if not hasattr(GRPOTrainer, name)]
        if missing:
            raise TrainingError(
                f"this version of TRL has no {', '.join(missing)}; install trl>=1.16,<2 as constraints.txt has it"
            )
        self._asked: list[dict[str, Any]] = []
        self._rewards = self._noise = self._correct = torch.empty(0)
        super().__init__(*arguments, **named)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        training = self.model.training
        self._asked = inputs
        with self.phases.phase("logprobs"):
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        size = self.num_generations if training else self.num_generations_eval
        found = advantages(self._rewards, self._noise, size, scale=self.grpo.scale, least=self.grpo.least_deviation)
        first = self.accelerator.process_index * len(inputs)
        output["advantages"] = found.values[first : first + len(inputs)].to(output["advantages"].device)
        log = self._metrics["train" if training else "eval"]
        log["group/deviation"].append(float(found.deviation.mean()))
        log["group/floor"].append(float(found.floor.mean()))
        log["group/floored"].append(found.floored)
        log["group/alike"].append(found.alike)
        log["group/solved"].append(float(self._correct.view(-1, size).amax(dim=1).mean()))
        log["group/unscored"].append(1 - float(found.scored.sum()) / self._rewards.numel())
        return output

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        *rest: Any,
        **named: Any,
    ) -> Any:
        parts = self._parts(len(prompt_ids))
        ids: list[list[int]] = []
        logprobs: list[Any] | None = None
        for begin, end in parts:
            with self.phases.phase("generate"):
                new, probs = super()._generate_single_turn(
                    prompt_ids[begin:end], images, multimodal_fields, num_generations, *rest, **named
                )
            ids += new
            if probs is not None:
                logprobs = [*(logprobs or []), *probs]
            if self.grpo.early and end < len(prompt_ids):
                texts = self.processing_class.batch_decode(new, skip_special_tokens=True)
                self.rewarder.begin_early(self._asked[begin:end], texts)
        return ids, logprobs

    def _parts(self, count: int) -> list[tuple[int, int]]:
        """Bounds of what is sampled at once: whole groups, which ``grpo_arguments`` sees to."""
        size = count // self.grpo.chunks if self.model.training else count
        return [(begin, begin + size) for begin in range(0, count, size)]

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
        self.rewarder.mode = "train" if self.model.training else "eval"
        self.rewarder.step = self.state.global_step
        with self.phases.phase("reward"):
            rewards = super()._calculate_rewards(*arguments, **named)
        seen = torch.tensor([self.rewarder.noise(), self.rewarder.correct()], dtype=torch.float32).T
        gathered = self.accelerator.gather(seen.contiguous().to(rewards.device)).cpu()
        self._noise, self._correct = gathered[:, 0], gathered[:, 1]
        self._rewards = rewards[:, 0].detach().cpu()
        return rewards
