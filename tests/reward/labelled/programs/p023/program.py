import torch
from bindings import mean_square, scale_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        rows, n = x.shape
        y, m = torch.empty_like(x), x.new_empty(rows)
        mean_square(x, residual, m, rows, n)
        scale_rows(x, residual, m, self.weight.detach(), y, rows, n)
        return y
