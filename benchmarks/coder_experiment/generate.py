"""Batched generation: prompts once, then one token after the other for all rows. On a GPU the step is recorded as a
CUDA graph, for a small model's step is some hundred launches and would wait for the host; where recording fails it
runs as is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coder_experiment.llama import MATRICES, Llama, padded, rotate, rotation

LOOK = 16
"""Steps between looks whether all rows have ended."""


@dataclass(frozen=True)
class Sample:
    """One answer: its tokens without the end token, and whether that came in time."""

    tokens: list[int]
    ended: bool


class Generator:
    """Answers for up to ``rows`` prompts at a time, each of at most ``prompt`` tokens and ``answer`` new ones."""

    def __init__(self, model: Llama, end: int, *, rows: int, prompt: int, answer: int, graphs: bool = True) -> None:
        self.model, self.end, self.rows, self.prompt, self.answer = model, end, rows, prompt, answer
        shape, device = model.shape, model.embedding.device
        self.device = device
        size = shape.layers, rows, shape.groups, prompt + answer, shape.head
        self.keys = torch.zeros(size, device=device, dtype=model.dtype)
        self.values = torch.zeros(size, device=device, dtype=model.dtype)
        self.weights = {name: weight.detach().clone() for name, weight in model.weights().items()}
        self.token = torch.zeros(rows, dtype=torch.long, device=device)
        self.position = torch.zeros(rows, dtype=torch.long, device=device)
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.written = torch.zeros(rows, answer, dtype=torch.long, device=device)
        self.temperature = torch.ones((), device=device)
        self.places = torch.arange(prompt + answer, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.recorded = ""
        self.seconds, self.steps = 0.0, 0
        if graphs and device.type == "cuda":
            self._record()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the model's present weights."""
        for name, weight in self.model.weights().items():
            self.weights[name].copy_(weight)

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Sequence[int]], *, seed: int, temperature: float = 1.0, limit: int = 0
    ) -> list[Sample]:
        """An answer to each prompt, drawn at ``temperature`` (0: the likeliest token). Raises ValueError for a prompt
        that is too long."""
        if any(not 0 < len(prompt) <= self.prompt for prompt in prompts):
            raise ValueError(f"a prompt of {max(map(len, prompts))} tokens; at most {self.prompt} fit")
        torch.manual_seed(seed)
        self.temperature.fill_(temperature)
        began = time.monotonic()
        found: list[Sample] = []
        for begin in range(0, len(prompts), self.rows):
            found += self._batch(prompts[begin : begin + self.rows], min(limit or self.answer, self.answer))
        self.seconds += time.monotonic() - began
        return found

    def _batch(self, prompts: Sequence[Sequence[int]], limit: int) -> list[Sample]:
        count = len(prompts)
        self._prefill([*prompts, *([prompts[-1]] * (self.rows - count))])
        self.done.zero_()
        self.done[count:] = True
        self.step.zero_()
        self.written.fill_(self.end)
        for at in range(limit):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()
            self.steps += 1
            if at % LOOK == LOOK - 1 and bool(self.done.all()):
                break
        rows = self.written[:count].tolist()
        samples = []
        for row in rows:
            ended = self.end in row[:limit]
            samples.append(Sample(row[: row.index(self.end)] if ended else row[:limit], ended))
        return samples

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Keys and values of all but the last token of each prompt; equal prompts next to each other once."""
        unique: list[Sequence[int]] = []
        index: list[int] = []
        for prompt in prompts:
            if not unique or (unique[-1] is not prompt and list(unique[-1]) != list(prompt)):
                unique.append(prompt)
            index.append(len(unique) - 1)
        tokens, lengths = padded(unique, self.end, self.device)
        where = torch.tensor(index, device=self.device)
        for begin in range(0, len(unique), 64):
            kept: list[Tensor] = []
            self.model.run(tokens[begin : begin + 64], self.weights, kept)
            rows = torch.nonzero((where >= begin) & (where < begin + 64))[:, 0]
            chosen = where[rows] - begin
            for layer in range(self.model.shape.layers):
                self.keys[layer, rows, :, : tokens.shape[1]] = kept[2 * layer][chosen]
                self.values[layer, rows, :, : tokens.shape[1]] = kept[2 * layer + 1][chosen]
        self.position.copy_(lengths[where] - 1)
        self.token.copy_(tokens[where, lengths[where] - 1])

    def _step(self) -> None:
        """One token for every row, all in place."""
        model, shape = self.model, self.model.shape
        value = functional.embedding(self.token, model.embedding).to(model.dtype)
        cos, sin = rotation(self.position, shape)
        cos, sin = cos[:, None], sin[:, None]
        hidden = (self.places[None] > self.position[:, None])[:, None, None]
        mask = torch.zeros(hidden.shape, device=self.device, dtype=model.dtype).masked_fill(hidden, float("-inf"))
        place = self.position[:, None, None, None].expand(-1, shape.groups, 1, shape.head)
        for layer in range(shape.layers):
            x = model.norm(value, model.norms[layer, 0])
            q, k, v = ((x @ self.weights[n][layer].T).view(self.rows, -1, shape.head) for n in MATRICES[:3])
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            self.keys[layer].scatter_(2, place, k[:, :, None])
            self.values[layer].scatter_(2, place, v[:, :, None])
            # Queries of one group share its keys: they stand where other models have time.
            mixed = functional.scaled_dot_product_attention(
                q.view(self.rows, shape.groups, -1, shape.head), self.keys[layer], self.values[layer], attn_mask=mask
            )
            value = value + mixed.flatten(1) @ self.weights["o"][layer].T
            x = model.norm(value, model.norms[layer, 1])
            inner = functional.silu(x @ self.weights["gate"][layer].T) * (x @ self.weights["up"][layer].T)
            value = value + inner @ self.weights["down"][layer].T
        logits = model.norm(value.float(), model.last_norm) @ model.embedding.T
        # The largest of logits / T + Gumbel noise is a draw from the softmax; at T = 0 it is the likeliest.
        noise = -torch.empty_like(logits).exponential_().clamp_min(1e-20).log()
        token = (logits + self.temperature * noise).argmax(-1)
        token = token.masked_fill(self.done, self.end)
        self.written.index_copy_(1, self.step, token[:, None])
        self.done |= token == self.end
        self.token.copy_(token)
        self.position.add_(1).clamp_(max=self.places.shape[0] - 1)
        self.step.add_(1).clamp_(max=self.answer - 1)

    def _record(self) -> None:
        try:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph):
                self._step()
            self.graph = graph
            self.recorded = "graph"
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.recorded = f"eager: {str(error)[:120]}"
        for state in (self.token, self.position, self.step):
            state.zero_()
