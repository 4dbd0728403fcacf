import torch
from bindings import excite, mean_planes, scale_planes
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.down = nn.Linear(channels, squeezed)
        self.up = nn.Linear(squeezed, channels)

    def forward(self, x):
        n, c, h, w = x.shape
        mean, gate, y = x.new_empty(n, c), x.new_empty(n, c), torch.empty_like(x)
        mean_planes(x, mean, n * c, h * w)
        excite(
            mean,
            self.down.weight.detach(),
            self.down.bias.detach(),
            self.up.weight.detach(),
            self.up.bias.detach(),
            gate,
            n,
            c,
            self.down.out_features,
        )
        scale_planes(x, gate, y, n * c, h * w)
        return y
