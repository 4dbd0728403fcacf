import torch
from bindings import tanh_all
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.table = nn.Embedding(count, width)

    def forward(self, index):
        mean = self.table(index).mean(dim=1).detach()
        y = torch.empty_like(mean)
        tanh_all(mean, y, y.numel())
        return y
