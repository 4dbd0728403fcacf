import torch
from bindings import gelu_norm_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        hidden = self.linear(x).detach()
        y = torch.empty_like(hidden)
        gelu_norm_rows(hidden, self.norm.weight.detach(), self.norm.bias.detach(), y, hidden.shape[0], hidden.shape[1])
        return y
