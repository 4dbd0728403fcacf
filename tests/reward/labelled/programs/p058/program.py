import torch
from bindings import silu_all
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        z = self.norm(x).detach()
        y = torch.empty_like(z)
        silu_all(z, y, z.numel())
        return y
