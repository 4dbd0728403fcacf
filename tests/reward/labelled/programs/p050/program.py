import torch
from bindings import cell_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.of_input = nn.Linear(width, 4 * hidden)
        self.of_state = nn.Linear(hidden, 4 * hidden)

    def forward(self, x, h, c):
        a, b = self.of_input(x).detach(), self.of_state(h).detach()
        y, state = torch.empty_like(c), torch.empty_like(c)
        cell_rows(a, b, c, y, state, *c.shape)
        return y, state
