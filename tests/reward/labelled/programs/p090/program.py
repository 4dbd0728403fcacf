import torch
from bindings import rms_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        y = torch.empty_like(x)
        rms_rows(x, residual, self.weight.detach(), y, x.shape[0], x.shape[1])
        return y
