import torch
from bindings import sigmoid_all
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.down = nn.Linear(channels, squeezed)
        self.up = nn.Linear(squeezed, channels)

    def forward(self, x):
        s = self.up(torch.relu(self.down(x.mean(dim=(2, 3))))).detach()
        y = torch.empty_like(s)
        sigmoid_all(s, y, s.numel())
        return x * y[:, :, None, None]
