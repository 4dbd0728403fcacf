"""A decoder block as in Llama: RMSNorm, rotary multi-head attention, RMSNorm, SwiGLU, two residuals.

Inference over a short prompt (batch 1, 128 tokens, width 256). The matrix products belong to the vendor
library; what can be won lies between them: norms, rotary embedding, SiLU and product, residual sums, and
the launches themselves.
"""

import torch
import torch.nn.functional as F
from torch import nn

MODE = "eval"

BATCH, TOKENS, WIDTH, HEADS, HIDDEN = 1, 128, 256, 8, 688


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, with a learned scale."""

    def __init__(self, width: int, epsilon: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):
    """Causal self-attention with rotary position embedding."""

    def __init__(self, width: int, heads: int, tokens: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(tokens).float(), frequencies)
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), -1))
        self.register_buffer("sin", torch.cat((angles.sin(), angles.sin()), -1))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-high, low), dim=-1) * self.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Model(nn.Module):
    """One block: attention and SwiGLU, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, hidden: int, tokens: int):
        super().__init__()
        self.norm1 = RMSNorm(width)
        self.attention = Attention(width, heads, tokens)
        self.norm2 = RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH)]


def get_init_inputs():
    return [WIDTH, HEADS, HIDDEN, TOKENS]
