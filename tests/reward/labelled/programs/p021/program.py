import torch
from bindings import moments, norm_silu
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        n, c, h, w = x.shape
        groups = self.norm.num_groups
        m, y = x.new_empty(n * groups, 2), torch.empty_like(x)
        moments(x, m, n * groups, c // groups * h * w)
        norm_silu(x, m, self.norm.weight.detach(), self.norm.bias.detach(), y, n * c, c, c // groups, h * w)
        return y
