from bindings import linear_gelu
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x):
        y = x.new_empty(x.shape[0], self.linear.out_features)
        linear_gelu(x, self.linear.weight.detach(), self.linear.bias.detach(), y, x.shape[0], x.shape[1], y.shape[1])
        return y
