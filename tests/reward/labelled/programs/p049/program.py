import torch
from bindings import bias_gelu
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x):
        z = x @ self.linear.weight.detach().t()
        y = torch.empty_like(z)
        bias_gelu(z, self.linear.bias.detach(), y, z.numel(), z.shape[1])
        return y
