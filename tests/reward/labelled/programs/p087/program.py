import torch
from bindings import softmax_rows
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-1, -2)
        y = torch.empty_like(scores)
        softmax_rows(scores, y, scores.shape[0] * scores.shape[1], scores.shape[2], q.shape[-1] ** -0.5)
        return y @ v
