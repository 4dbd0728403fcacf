"""A 3x3 depthwise convolution and hardswish."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(self.conv(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(8, 64, 56, 56)]


def get_init_inputs() -> list[int]:
    return [64]
