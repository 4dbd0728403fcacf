import torch
from bindings import scan_gate
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, gate):
        y = torch.empty_like(x)
        scan_gate(x, gate, y, x.shape[0], x.shape[1])
        return y
