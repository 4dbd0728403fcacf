"""Squeeze and excitation: channels are scaled by a small perceptron of their means."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.down = nn.Linear(channels, squeezed)
        self.up = nn.Linear(squeezed, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = torch.relu(self.down(x.mean(dim=(2, 3))))
        return x * torch.sigmoid(self.up(s))[:, :, None, None]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(16, 128, 32, 32)]


def get_init_inputs() -> list[int]:
    return [128, 16]
