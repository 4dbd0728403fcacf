import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.run = torch.compile(lambda x: F.gelu(self.linear(x)))

    def forward(self, x):
        return self.run(x)
