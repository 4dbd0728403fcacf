"""A linear layer, GELU and LayerNorm over 256 rows."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(F.gelu(self.linear(x)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(256, 512)]


def get_init_inputs() -> list[int]:
    return [512, 1024]
