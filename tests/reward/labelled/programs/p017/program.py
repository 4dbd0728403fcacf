import torch
from bindings import cell_rows, linear_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.of_input = nn.Linear(width, 4 * hidden)
        self.of_state = nn.Linear(hidden, 4 * hidden)

    def forward(self, x, h, c):
        rows, n = x.shape[0], self.of_input.out_features
        a, b = x.new_empty(rows, n), x.new_empty(rows, n)
        linear_rows(x, self.of_input.weight.detach(), self.of_input.bias.detach(), a, rows, x.shape[1], n)
        linear_rows(h, self.of_state.weight.detach(), self.of_state.bias.detach(), b, rows, h.shape[1], n)
        y, state = torch.empty_like(c), torch.empty_like(c)
        cell_rows(a, b, c, y, state, *c.shape)
        return y, state
