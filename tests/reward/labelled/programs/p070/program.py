import torch
from bindings import attend
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        y = torch.empty_like(v)
        attend(q, k, v, y, *q.shape)
        return y
