import torch
from bindings import conv_scale_relu
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
        y = torch.empty_like(x)
        conv_scale_relu(x, self.conv.weight.detach(), scale, shift, y, *x.shape)
        return y
