from bindings import linear_gelu_norm
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        rows, n = x.shape[0], self.linear.out_features
        hidden, y = x.new_empty(rows, n), x.new_empty(rows, n)
        linear_gelu_norm(
            x,
            self.linear.weight.detach(),
            self.linear.bias.detach(),
            self.norm.weight.detach(),
            self.norm.bias.detach(),
            hidden,
            y,
            rows,
            x.shape[1],
            n,
        )
        return y
