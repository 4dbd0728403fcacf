import torch
from bindings import depthwise
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        y = torch.empty_like(x)
        depthwise(x, self.conv.weight.detach(), self.conv.bias.detach(), y, *x.shape)
        return y
