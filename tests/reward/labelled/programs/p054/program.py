import torch
import torch.nn.functional as F
from bindings import scale_relu
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels)

    def fold(self):
        scale = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
        return scale.detach(), (self.bn.bias + (self.conv.bias - self.bn.running_mean) * scale).detach()

    def forward(self, x):
        scale, shift = self.fold()
        z = F.conv2d(x, self.conv.weight, None, padding=1).detach()
        y = torch.empty_like(z)
        scale_relu(z, scale, shift, y, z.shape[0] * z.shape[1], z.shape[1], z.shape[2] * z.shape[3])
        return y
