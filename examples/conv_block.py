"""An inverted residual block as in MobileNetV2 with SiLU: expand, depthwise, project, each with BatchNorm.

Inference on a batch of feature maps (8 x 32 x 56 x 56, expanded four times). Folding BatchNorm into the
convolutions and fusing bias, activation and residual saves most passes over the wide maps.
"""

import torch
from torch import nn

MODE = "eval"

BATCH, CHANNELS, SIZE, EXPANSION = 8, 32, 56, 4


class Model(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project by 1x1, add the input."""

    def __init__(self, channels: int, expansion: int):
        super().__init__()
        wide = channels * expansion
        self.expand = nn.Conv2d(channels, wide, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(wide)
        self.filter = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.project = nn.Conv2d(wide, channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(channels)
        self.activation = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.norm1(self.expand(x)))
        y = self.activation(self.norm2(self.filter(y)))
        return x + self.norm3(self.project(y))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, EXPANSION]
