import torch
from bindings import hardswish_all
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        z = self.conv(x).detach()
        y = torch.empty_like(z)
        hardswish_all(z, y, z.numel())
        return y
