"""Advantages within groups, with a floor under what divides them.

Two programs of one group whose times differ by the clocks' noise alone would be pushed apart as far as two that truly
differ, for a group's standard deviation is divided out. So it is floored at what noise alone would give: the root mean
square of the standard errors of the group's rewards (``Reward.noise``), or a constant where that is larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-6


@dataclass(frozen=True)
class Advantages:
    """Of all completions of a sampling, group by group."""

    values: Tensor
    """float32 of shape (completions,); 0 for one without a reward."""
    deviation: Tensor
    """float32 of shape (groups,): standard deviation of the rewards; 0 for a group with fewer than two."""
    floor: Tensor
    """float32 of shape (groups,): the least that the deviation counts as."""
    scored: Tensor
    """int64 of shape (groups,): completions with a reward."""

    @property
    def floored(self) -> float:
        """Share of the groups with differences, all of them below the floor."""
        return float(((self.deviation > 0) & (self.deviation < self.floor)).float().mean())

    @property
    def alike(self) -> float:
        """Share of the groups without any difference: nothing is learned from them."""
        return float((self.deviation == 0).float().mean())


def advantages(
    rewards: Tensor, noise: Tensor, group: int, *, scale: Literal["group", "none"] = "group", least: float = 0.0
) -> Advantages:
    """Rewards less their group's mean, divided by the group's standard deviation or the floor.

    ``rewards`` and ``noise`` are float of shape (completions,), groups of ``group`` one after another. A reward that is
    NaN is none: it is left out of its group, whose mean and deviation are the others'. A noise that is NaN counts as 0.
    """
    grouped = rewards.float().view(-1, group)
    there = ~torch.isnan(grouped)
    count = there.sum(dim=1)
    filled = torch.where(there, grouped, 0.0)
    mean = filled.sum(dim=1) / count.clamp(min=1)
    centred = torch.where(there, filled - mean.unsqueeze(1), 0.0)
    deviation = (centred.square().sum(dim=1) / (count - 1).clamp(min=1)).sqrt()
    # Equal rewards may differ in their last digit from their mean.
    deviation = torch.where(deviation < EPSILON, 0.0, deviation)
    errors = torch.where(there, torch.nan_to_num(noise.float()).view(-1, group), 0.0)
    floor = (errors.square().sum(dim=1) / count.clamp(min=1)).sqrt().clamp(min=least)
    divisor = torch.maximum(deviation, floor).clamp(min=EPSILON) if scale == "group" else torch.ones_like(deviation)
    return Advantages((centred / divisor.unsqueeze(1)).view(-1), deviation, floor, count)
