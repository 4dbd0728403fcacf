import torch
from bindings import gelu_norm_rows, linear_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        rows, n = x.shape[0], self.linear.out_features
        hidden = x.new_empty(rows, n)
        linear_rows(x, self.linear.weight.detach(), self.linear.bias.detach(), hidden, rows, x.shape[1], n)
        y = torch.empty_like(hidden)
        gelu_norm_rows(hidden, self.norm.weight.detach(), self.norm.bias.detach(), y, hidden.shape[0], hidden.shape[1])
        return y
