import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.of_input = nn.Linear(width, 4 * hidden)
        self.of_state = nn.Linear(hidden, 4 * hidden)

    def forward(self, x, h, c):
        return torch._VF.lstm_cell(
            x, [h, c], self.of_input.weight, self.of_state.weight, self.of_input.bias, self.of_state.bias
        )
