import torch
from bindings import norm_silu
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        y = torch.empty_like(x)
        norm_silu(
            x,
            self.norm.weight.detach(),
            self.norm.bias.detach(),
            y,
            x.shape[0],
            x.shape[1],
            self.norm.num_groups,
            x.shape[2] * x.shape[3],
        )
        return y
