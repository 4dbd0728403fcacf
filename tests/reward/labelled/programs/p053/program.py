import torch
import torch.nn.functional as F
from bindings import add_bias
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        hidden = x @ self.linear.weight.t()
        y = torch.empty_like(hidden)
        add_bias(hidden, self.linear.bias.detach(), y, hidden.shape[0], hidden.shape[1])
        return self.norm(F.gelu(y))
