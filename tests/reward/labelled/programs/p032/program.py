from bindings import gelu_rows, linear_rows, norm_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        rows, n = x.shape[0], self.linear.out_features
        hidden, active, y = (x.new_empty(rows, n) for _ in range(3))
        linear_rows(x, self.linear.weight.detach(), self.linear.bias.detach(), hidden, rows, x.shape[1], n)
        gelu_rows(hidden, active, rows * n)
        norm_rows(active, self.norm.weight.detach(), self.norm.bias.detach(), y, rows, n)
        return y
