"""A 3x3 convolution, BatchNorm with its running statistics, and ReLU."""

import torch
from torch import nn

MODE = "eval"


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(8, 32, 28, 28)]


def get_init_inputs() -> list[int]:
    return [32]
