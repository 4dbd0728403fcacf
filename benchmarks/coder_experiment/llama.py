"""The model: a Llama of 135 million weights in plain torch, with low-rank changes to its matrices and batched
generation.

Its base weights never change; what is learned are pairs of small matrices (LoRA), added to the weights themselves
before each use, so that generation and training compute with the very same numbers. Generation keeps keys and values
in fixed buffers, and on a GPU replays one CUDA graph for each token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from coder_experiment.gguf import Gguf
from coder_experiment.tokens import BytePairs

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama."""

    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    vocabulary: int
    head: int = 64
    theta: float = 1e5
    epsilon: float = 1e-5

    def matrix(self, name: str) -> tuple[int, int]:
        """Rows and columns of a layer's matrix."""
        q, kv = self.heads * self.head, self.groups * self.head
        return {
            "q": (q, self.width),
            "k": (kv, self.width),
            "v": (kv, self.width),
            "o": (self.width, q),
            "gate": (self.inner, self.width),
            "up": (self.inner, self.width),
            "down": (self.width, self.inner),
        }[name]


TINY = Shape(layers=2, width=32, inner=64, heads=2, groups=1, vocabulary=128, head=16)


class Llama(nn.Module):
    """Weights, low-rank changes, and the forward pass. ``rank`` of the changes; they begin as zero."""

    def __init__(self, shape: Shape, rank: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.rank, self.dtype = shape, rank, dtype
        self.scale = 2.0
        self.embedding = nn.Parameter(torch.empty(shape.vocabulary, shape.width, device=device), requires_grad=False)
        self.last_norm = nn.Parameter(torch.ones(shape.width, device=device), requires_grad=False)
        self.norms = nn.Parameter(torch.ones(shape.layers, 2, shape.width, device=device), requires_grad=False)
        self.base = nn.ParameterDict()
        for name in MATRICES:
            base = torch.empty(shape.layers, *shape.matrix(name), device=device)
            self.base[name] = nn.Parameter(base, requires_grad=False)
        self.begin(rank, 0)

    def randomise(self, seed: int) -> None:
        """Random base weights: a model that knows nothing, for tests."""
        made = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in (self.embedding, *self.base.values()):
                tensor.copy_(torch.randn(tensor.shape, generator=made) * (0.5 / math.sqrt(tensor.shape[-1])))
            # Embeddings make the logits too: small ones could not tell one token from another.
            self.embedding.mul_(4)

    def begin(self, rank: int, seed: int) -> None:
        """New changes of a rank, which change nothing yet."""
        made = torch.Generator().manual_seed(seed)
        self.rank = rank
        self.low, self.high = nn.ParameterDict(), nn.ParameterDict()
        for name in MATRICES:
            base = self.base[name]
            low = torch.randn(base.shape[0], rank, base.shape[2], generator=made) / math.sqrt(base.shape[2])
            self.low[name] = nn.Parameter(low.to(base.device))
            self.high[name] = nn.Parameter(torch.zeros(*base.shape[:2], rank, device=base.device))

    def changes(self) -> dict[str, Tensor]:
        """The learned matrices by name."""
        return {f"{kind}.{name}": getattr(self, kind)[name] for kind in ("low", "high") for name in MATRICES}

    def take(self, changes: dict[str, Tensor]) -> None:
        """Learned matrices as ``changes`` gives them; their rank becomes the model's."""
        self.begin(changes[f"low.{MATRICES[0]}"].shape[1], 0)
        with torch.no_grad():
            for name, value in self.changes().items():
                value.copy_(changes[name])

    def merge(self) -> None:
        """Make the changes part of the base weights; ``begin`` anew afterwards."""
        with torch.no_grad():
            for name in MATRICES:
                self.base[name].add_(self.scale * (self.high[name] @ self.low[name]))

    def weights(self) -> dict[str, Tensor]:
        """The matrices in use, ``[layers, rows, cols]``, in the compute type; gradients reach the changes."""
        return {
            name: (self.base[name] + self.scale * (self.high[name] @ self.low[name])).to(self.dtype)
            for name in MATRICES
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden values ``[batch, time, width]`` behind the last norm (float32); what pads rows on the right is seen by
        nothing before it."""
        return self.run(tokens, self.weights())

    def log_probabilities(self, tokens: Tensor, chunk: int = 4096) -> tuple[Tensor, Tensor]:
        """Of each token after the first, given those before it, and the entropies there (no gradient): ``[batch,
        time - 1]`` each, in float32. The logits are never held all at once."""
        hidden = self.forward(tokens)[:, :-1].reshape(-1, self.shape.width)
        targets = tokens[:, 1:].reshape(-1)
        found, spread = [], []
        for begin in range(0, hidden.shape[0], chunk):
            part, target = hidden[begin : begin + chunk], targets[begin : begin + chunk]
            if torch.is_grad_enabled():
                values, entropy = checkpoint(self._picked, part, target, use_reentrant=False)
            else:
                values, entropy = self._picked(part, target)
            found.append(values)
            spread.append(entropy)
        shape = tokens.shape[0], tokens.shape[1] - 1
        return torch.cat(found).reshape(shape), torch.cat(spread).reshape(shape)

    def _picked(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = functional.log_softmax(hidden @ self.embedding.T, dim=-1)
        with torch.no_grad():
            entropy = -(logits.exp() * logits).sum(-1)
        return logits.gather(-1, targets[:, None])[:, 0], entropy

    def run(self, tokens: Tensor, weights: dict[str, Tensor], keep: list[Tensor] | None = None) -> Tensor:
        """Whole sequences at once with given matrices; keys and values go to ``keep``, two tensors a layer."""
        shape = self.shape
        value = functional.embedding(tokens, self.embedding).to(self.dtype)
        cos, sin = rotation(torch.arange(tokens.shape[1], device=tokens.device), shape)
        for layer in range(shape.layers):
            x = self.norm(value, self.norms[layer, 0])
            q, k, v = (self._heads(x @ weights[name][layer].T) for name in ("q", "k", "v"))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if keep is not None:
                keep += [k, v]
            times = shape.heads // shape.groups
            mixed = functional.scaled_dot_product_attention(
                q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), is_causal=True
            )
            value = value + mixed.transpose(1, 2).flatten(2) @ weights["o"][layer].T
            x = self.norm(value, self.norms[layer, 1])
            inner = functional.silu(x @ weights["gate"][layer].T) * (x @ weights["up"][layer].T)
            value = value + inner @ weights["down"][layer].T
        return self.norm(value.float(), self.last_norm)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.shape.head).transpose(1, 2)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm, computed in float32."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.epsilon) * weight).to(x.dtype)


def rotation(positions: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, ``[..., head]``."""
    steps = torch.arange(0, shape.head, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * shape.theta ** (-steps / shape.head)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys ``[..., head]`` turned by their positions, halves paired."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x.float() * cos + turned * sin).to(x.dtype)


def load(path: Path, rank: int, device: torch.device, dtype: torch.dtype) -> tuple[Llama, BytePairs]:
    """Model and tokenizer of a GGUF file, de-quantised. Raises ValueError for another architecture."""
    file = Gguf(path)
    s: dict[str, Any] = file.settings
    if s.get("general.architecture") != "llama":
        raise ValueError(f"{path} holds a '{s.get('general.architecture')}'; a Llama is wanted")
    heads, width = s["llama.attention.head_count"], s["llama.embedding_length"]
    shape = Shape(
        layers=s["llama.block_count"],
        width=width,
        inner=s["llama.feed_forward_length"],
        heads=heads,
        groups=s["llama.attention.head_count_kv"],
        vocabulary=file.places["token_embd.weight"].shape[0],
        head=width // heads,
        theta=s["llama.rope.freq_base"],
        epsilon=s["llama.attention.layer_norm_rms_epsilon"],
    )
    model = Llama(shape, rank, device, dtype)
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"} | {n: f"ffn_{n}" for n in MATRICES[4:]}
    with torch.no_grad():
        model.embedding.copy_(torch.from_numpy(file.tensor("token_embd.weight")))
        model.last_norm.copy_(torch.from_numpy(file.tensor("output_norm.weight")))
        for layer in range(shape.layers):
            for at, norm in enumerate(("attn_norm", "ffn_norm")):
                model.norms[layer, at].copy_(torch.from_numpy(file.tensor(f"blk.{layer}.{norm}.weight")))
            for name in MATRICES:
                values = torch.from_numpy(file.tensor(f"blk.{layer}.{names[name]}.weight"))
                if name in ("q", "k"):
                    values = _unpermuted(values, shape.heads if name == "q" else shape.groups)
                model.base[name][layer].copy_(values)
    tokenizer = BytePairs(s["tokenizer.ggml.tokens"], s["tokenizer.ggml.merges"], s["tokenizer.ggml.eos_token_id"])
    return model, tokenizer


def _unpermuted(values: Tensor, heads: int) -> Tensor:
    """The rows of queries and keys with rotary halves together: the file has them as alternating pairs."""
    rows, cols = values.shape
    return values.reshape(heads, rows // heads // 2, 2, cols).transpose(1, 2).reshape(rows, cols)


def padded(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of tokens as one tensor padded on the right, and their lengths."""
    longest = max(len(row) for row in rows)
    tokens = torch.full((len(rows), longest), fill, dtype=torch.long)
    for at, row in enumerate(rows):
        tokens[at, : len(row)] = torch.tensor(row, dtype=torch.long)
    return tokens.to(device), torch.tensor([len(row) for row in rows], device=device)
