import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        return F.rms_norm(x + residual, (x.shape[1],), self.weight, 1e-6)
