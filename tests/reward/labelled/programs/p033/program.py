import torch
import torch.nn.functional as F
from bindings import gelu_rows, norm_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        rows, n = x.shape[0], self.linear.out_features
        hidden = F.linear(x, self.linear.weight, self.linear.bias).detach()
        active, y = torch.empty_like(hidden), torch.empty_like(hidden)
        gelu_rows(hidden, active, rows * n)
        norm_rows(active, self.norm.weight.detach(), self.norm.bias.detach(), y, rows, n)
        return y
