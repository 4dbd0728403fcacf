import torch
from bindings import squeeze_excite
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.down = nn.Linear(channels, squeezed)
        self.up = nn.Linear(squeezed, channels)

    def forward(self, x):
        y = torch.empty_like(x)
        squeeze_excite(
            x,
            self.down.weight.detach(),
            self.down.bias.detach(),
            self.up.weight.detach(),
            self.up.bias.detach(),
            y,
            x.shape[0],
            x.shape[1],
            self.down.out_features,
            x.shape[2] * x.shape[3],
        )
        return y
