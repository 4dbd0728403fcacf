import torch
import torch.nn.functional as F
from bindings import blend
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        log_p = F.log_softmax(logits, dim=1)
        chosen, mean = log_p.gather(1, target[:, None])[:, 0], log_p.mean(dim=1)
        y = torch.empty_like(mean)
        blend(chosen, mean, y, y.numel(), self.smoothing)
        return y
