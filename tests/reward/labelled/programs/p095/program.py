import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        return F.cross_entropy(logits, target, reduction="none", label_smoothing=self.smoothing)
