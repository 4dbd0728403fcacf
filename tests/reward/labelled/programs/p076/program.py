import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels)

    def prepare(self):
        scale = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
        self.weight = (self.conv.weight * scale[:, None, None, None]).detach()
        self.shift = (self.bn.bias + (self.conv.bias - self.bn.running_mean) * scale).detach()

    def forward(self, x):
        return torch.relu_(F.conv2d(x, self.weight, self.shift, padding=1))
