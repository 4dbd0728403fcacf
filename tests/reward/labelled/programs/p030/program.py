import torch
from bindings import gate_all
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, gate):
        total = torch.cumsum(x, dim=1)
        y = torch.empty_like(total)
        gate_all(total, gate, y, y.numel())
        return y
