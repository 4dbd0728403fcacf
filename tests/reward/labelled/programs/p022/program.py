import torch
from bindings import scale_all
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        scaled = torch.empty_like(q)
        scale_all(q, scaled, q.numel(), q.shape[-1] ** -0.5)
        return torch.softmax(scaled @ k.transpose(-1, -2), dim=-1) @ v
