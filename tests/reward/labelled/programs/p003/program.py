import torch
from bindings import product_rows
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, gate):
        total, share = torch.cumsum(x, dim=1), torch.sigmoid(gate)
        y = torch.empty_like(x)
        product_rows(total, share, y, x.shape[0], x.shape[1])
        return y
