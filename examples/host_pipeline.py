"""Serving camera frames that arrive in host memory as bytes: normalise, then a small convolutional classifier.

``RESIDENCE`` is ``host``: on a GPU the copy of the frames counts, so that sending bytes instead of floats,
pinned memory and overlapping the copy with work are part of the program.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

MODE = "eval"
RESIDENCE = "host"

FRAMES, HEIGHT, WIDTH, CLASSES = 8, 224, 224, 10


class Model(nn.Module):
    """Bytes to normalised floats, three strided convolutions with BatchNorm, pooling, a linear head."""

    def __init__(self, classes: int):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        widths = [3, 16, 32, 64]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False) for a, b in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        x = frames.to(self.mean.device)
        x = x.permute(0, 3, 1, 2).to(self.mean.dtype) / 255.0
        x = (x - self.mean) / self.deviation
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.hardswish(norm(convolution(x)))
        return self.head(x.mean(dim=(2, 3)))


def get_inputs():
    return [torch.randint(0, 256, (FRAMES, HEIGHT, WIDTH, 3), dtype=torch.uint8)]


def get_init_inputs():
    return [CLASSES]
