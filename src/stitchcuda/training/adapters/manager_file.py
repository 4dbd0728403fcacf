"""What verl loads by its path into its trainer and its reward workers: a reward manager, and advantages whose scale
has a floor. Needs torch, and verl once ``Manager`` is asked for; not this package.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

ESTIMATOR = "stitchcuda_grpo"
LEAST_DEVIATION = 0.05
"""Where the settings name none, in units of reward."""


def advantages(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO's advantages, and again as returns: floats of the shape (samples, tokens), 0 where ``response_mask`` is.

    A sample's reward is the sum of its row of ``token_level_rewards``; ``index`` names its group. Its advantage is the
    reward less the group's mean, divided by the group's standard deviation but by ``config.least_deviation`` at least,
    so that noise of the clocks is not made large where nothing else differs. With ``config.norm_adv_by_std_in_grpo``
    false it is not divided. A sample that is alone in its group has 0: there is nothing to compare it with. Samples
    without tokens are no members.
    """
    options = {} if config is None else config
    floor = float(options.get("least_deviation", LEAST_DEVIATION))
    divide = bool(options.get("norm_adv_by_std_in_grpo", True))
    with torch.no_grad():
        scores = token_level_rewards.sum(dim=-1)
        found = torch.zeros_like(scores)
        groups: dict[Any, list[int]] = {}
        for at, name in enumerate(index):
            if response_mask[at].any():
                groups.setdefault(name, []).append(at)
        for places in groups.values():
            if len(places) > 1:
                of_group = scores[places]
                away = of_group - of_group.mean()
                scale = max(float(of_group.std()), floor) if divide else 1.0
                found[places] = away / scale if scale else torch.zeros_like(away)
        spread = found.unsqueeze(-1) * response_mask
    return spread, spread


def _manager() -> type[Any]:
    """verl's plain reward manager, which lets failures through; names the advantages to verl in passing."""
    core_algos = importlib.import_module("verl.trainer.ppo.core_algos")
    naive = importlib.import_module("verl.experimental.reward_loop.reward_manager.naive")
    if ESTIMATOR not in core_algos.ADV_ESTIMATOR_REGISTRY:
        core_algos.register_adv_est(ESTIMATOR)(advantages)
    manager: type[Any] = naive.NaiveRewardManager
    return manager


def __getattr__(name: str) -> Any:
    if name == "Manager":
        return _manager()
    raise AttributeError(f"this file has no {name}; verl is to ask for Manager")
