"""GroupNorm with sixteen groups, then SiLU."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(32, 128, 128, 128)]


def get_init_inputs() -> list[int]:
    return [16, 128]
