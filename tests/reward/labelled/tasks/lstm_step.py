"""One step of an LSTM cell, spelled out."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(width, 4 * hidden)
        self.of_state = nn.Linear(hidden, 4 * hidden)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = (self.of_input(x) + self.of_state(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(256, 128), torch.randn(256, 256), torch.randn(256, 256)]


def get_init_inputs() -> list[int]:
    return [128, 256]
