import torch
from bindings import depthwise
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        y = torch.empty_like(x)
        weight, bias = self.conv.weight.detach(), self.conv.bias.detach()
        batch, channels, height, width = x.shape
        depthwise(x, weight, bias, y, batch, channels, height, width)
        return y
