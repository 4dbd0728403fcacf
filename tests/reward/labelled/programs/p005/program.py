from bindings import loss_rows
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        y = logits.new_empty(logits.shape[0])
        loss_rows(logits, target, y, logits.shape[0], logits.shape[1], self.smoothing)
        return y
