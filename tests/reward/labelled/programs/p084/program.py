from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, gate):
        return x.cumsum(1).mul_(gate.sigmoid())
