"""One step of training at a time: supervised on verified answers, and GRPO on rollouts. Which steps make an arm is in
``arms``; nothing here reads or writes files.

GRPO as used here: one update for each batch of rollouts (so that there is nothing to clip a ratio against), advantages
against the other samples of the group without dividing by their deviation, a loss summed over tokens and divided by a
constant, no KL term. A sample that did not end in time is worth 0; one at which the machine failed is left out.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coder_experiment.evaluate import Evaluator, Job
from coder_experiment.generate import Generator, Sample
from coder_experiment.llama import Llama, padded
from coder_experiment.prompts import Row
from coder_experiment.ranks import ALONE, Ranks
from coder_experiment.rewards import Scheme, Score, dropped, score
from coder_experiment.tokens import Tokenizer


@dataclass
class Bench:
    """What training works with."""

    model: Llama
    tokenizer: Tokenizer
    generator: Generator
    evaluator: Evaluator
    baselines: dict[str, float]
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Grpo:
    """Settings of the rollouts and the update. ``lr``: of Adam, after ``warmup`` steps; ``clip``: of the gradient's
    norm."""

    prompts: int = 16
    group: int = 16
    lr: float = 1e-4
    warmup: int = 5
    clip: float = 0.2
    micro: int = 64
    temperature: float = 1.0


@dataclass(frozen=True)
class Rollout:
    """A sample with its worth; ``score`` None where the machine failed. ``text`` is empty, which is refused, for an
    answer that did not end in time."""

    row: Row
    sample: Sample
    text: str
    score: Score | None

    @property
    def value(self) -> float:
        """The reward."""
        return self.score.value if self.score is not None else 0.0


def optimiser(model: Llama, lr: float) -> torch.optim.Optimizer:
    """Adam over the changes."""
    return torch.optim.AdamW(list(model.changes().values()), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)


def sft_step(
    bench: Bench, adam: torch.optim.Optimizer, rows: Sequence[Row], lr: float, micro: int = 32
) -> dict[str, float]:
    """One update on verified answers, the end token included. Returns the mean loss of a token in nats."""
    for group in adam.param_groups:
        group["lr"] = lr
    encoded = [_encoded(bench.tokenizer, row.prompt, row.answer) for row in rows]
    total = sum(len(tokens) - start for tokens, start in encoded)
    loss = 0.0
    adam.zero_grad(set_to_none=True)
    for begin in range(0, len(encoded), micro):
        tokens, mask = _batch(encoded[begin : begin + micro], bench)
        values, _ = bench.model.log_probabilities(tokens)
        part = -(values * mask).sum() / total
        part.backward()  # type: ignore[no-untyped-call]
        loss += float(part.detach())
    norm = torch.nn.utils.clip_grad_norm_(list(bench.model.changes().values()), 1.0)
    adam.step()
    return {"loss": loss, "gradient": float(norm), "tokens": float(total)}


def rollouts(
    bench: Bench,
    rows: Sequence[Row],
    count: int,
    scheme: Scheme,
    seed: int,
    temperature: float = 1.0,
    drop: bool = False,
) -> list[Rollout]:
    """``count`` answers to each row, evaluated and scored; those of one row next to each other. ``drop``: each row's
    group counts another choice of the rubric's checks."""
    began = time.monotonic()
    prompts = [bench.tokenizer.encode(row.prompt) for row in rows]
    asked = [prompt for prompt in prompts for _ in range(count)]
    samples = bench.generator.sample(asked, seed=seed, temperature=temperature)
    generated = time.monotonic()
    texts = [bench.tokenizer.decode(sample.tokens) if sample.ended else "" for sample in samples]
    owners = [row for row in rows for _ in range(count)]
    outcomes = bench.evaluator.evaluate([Job(r.request.task, text) for r, text in zip(owners, texts, strict=True)])
    found = []
    for at, (row, sample, text, outcome) in enumerate(zip(owners, samples, texts, outcomes, strict=True)):
        without = dropped(seed * 1000 + at // count) if drop else ()
        baseline = bench.baselines.get(row.request.task.key, 0.0)
        found.append(Rollout(row, sample, text, score(row.request, text, outcome, baseline, scheme, without)))
    bench.seconds = {"generate": generated - began, "evaluate": time.monotonic() - generated}
    return found


def advantages(values: Sequence[float | None]) -> list[float]:
    """Of one group: each against the mean of the others, 0 for a sample that is left out."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return [0.0] * len(values)
    total, others = sum(known), len(known) - 1
    return [0.0 if value is None else value - (total - value) / others for value in values]


def grpo_step(
    bench: Bench,
    adam: torch.optim.Optimizer,
    rows: Sequence[Row],
    settings: Grpo,
    scheme: Scheme,
    *,
    step: int,
    seed: int,
    shuffled: bool = False,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Rollouts of ``rows`` and one update; what is logged of it. ``shuffled``: each group's rewards go to its samples
    in another order, so that nothing can be learned from them. ``ranks``: who else works on this step; each takes a
    share of the rows, what is logged is of all of them, and a phase's seconds are the slowest one's."""
    draws = seed * 100_003 + step + ranks.rank * 1_000_000_007
    found = rollouts(bench, ranks.part(rows), settings.group, scheme, draws, settings.temperature, drop=True)
    began = time.monotonic()
    weights: list[float] = []
    flat = 0
    draw = random.Random(seed * 7919 + step)
    for at in range(0, len(found), settings.group):
        group = found[at : at + settings.group]
        values: list[float | None] = [None if r.score is None else r.value for r in group]
        if shuffled:
            draw.shuffle(values)
        part = advantages(values)
        flat += not any(part)
        weights += part
    rate = settings.lr * min(1.0, (step + 1) / settings.warmup)
    update = _update(bench, adam, found, weights, settings, rate, ranks)
    bench.seconds["update"] = time.monotonic() - began
    bench.generator.refresh()
    everyone = [rollout for some in ranks.gather(found) for rollout in some]
    seconds = {phase: max(each[phase] for each in ranks.gather(bench.seconds)) for phase in bench.seconds}
    flat = sum(ranks.gather(flat))
    return {"step": step, **summary(everyone, settings.group), "flat_groups": flat, **update, "seconds": seconds}


def _update(
    bench: Bench,
    adam: torch.optim.Optimizer,
    found: Sequence[Rollout],
    weights: Sequence[float],
    settings: Grpo,
    lr: float,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    for group in adam.param_groups:
        group["lr"] = lr
    used = [(r, w) for r, w in zip(found, weights, strict=True) if w]
    if not any(ranks.gather(bool(used))):
        return {"gradient": 0.0, "entropy": 0.0}
    # Rows of like lengths share a batch, so that little of it is padding.
    used.sort(key=lambda pair: len(pair[0].sample.tokens))
    constant = len(found) * ranks.world * bench.generator.answer
    entropies, count = 0.0, 0.0
    adam.zero_grad(set_to_none=True)
    for begin in range(0, len(used), settings.micro):
        part = used[begin : begin + settings.micro]
        encoded = []
        for rollout, _ in part:
            prompt = bench.tokenizer.encode(rollout.row.prompt)
            end = [bench.tokenizer.end] if rollout.sample.ended else []
            encoded.append(([*prompt, *rollout.sample.tokens, *end], len(prompt)))
        tokens, mask = _batch(encoded, bench)
        values, entropy = bench.model.log_probabilities(tokens)
        advantage = torch.tensor([weight for _, weight in part], device=values.device)
        loss = -(advantage[:, None] * values * mask).sum() / constant
        loss.backward()  # type: ignore[no-untyped-call]
        entropies += float((entropy * mask).sum())
        count += float(mask.sum())
    changes = list(bench.model.changes().values())
    ranks.sum_gradients(changes)
    norm = torch.nn.utils.clip_grad_norm_(changes, settings.clip)
    adam.step()
    totals = ranks.gather((entropies, count))
    return {"gradient": float(norm), "entropy": sum(e for e, _ in totals) / max(sum(n for _, n in totals), 1.0)}


def summary(found: Sequence[Rollout], group: int) -> dict[str, Any]:
    """Rates and means of rollouts, overall and by skill."""
    known = [r for r in found if r.score is not None]
    record: dict[str, Any] = {"dropped": 1 - len(known) / len(found), **_rates(known)}
    for skill in ("scratch", "improve"):
        some = [r for r in known if r.row.request.skill == skill]
        if some:
            record[skill] = _rates(some)
    record["distinct"] = statistics.mean(
        len({r.text for r in found[at : at + group]}) / group for at in range(0, len(found), group)
    )
    return record


def _rates(known: Sequence[Rollout]) -> dict[str, float]:
    scores = [r.score for r in known if r.score is not None]
    n, correct = max(len(scores), 1), [s for s in scores if s.correct]
    c = max(len(correct), 1)
    return {
        "reward": sum(r.value for r in known) / n,
        "correct": len(correct) / n,
        "compiled": sum(s.status not in ("refused", "build_failed") for s in scores) / n,
        "hack": sum(s.hack for s in scores) / n,
        "partial_hack_of_correct": sum(s.partial_hack for s in scores) / c,
        "lazy_of_correct": sum(s.lazy for s in scores) / c,
        "shortcut_of_correct": sum(s.shortcut for s in scores) / c,
        "speedup": sum(s.speedup for s in correct) / c,
        "rubric": sum(s.rubric for s in correct) / c,
        "truncated": sum(not r.sample.ended for r in known) / n,
        "length": sum(len(r.sample.tokens) for r in known) / n,
    }


def _encoded(tokenizer: Tokenizer, prompt: str, answer: str) -> tuple[list[int], int]:
    start = tokenizer.encode(prompt)
    return [*start, *tokenizer.encode(answer), tokenizer.end], len(start)


def _batch(encoded: Sequence[tuple[list[int], int]], bench: Bench) -> tuple[Tensor, Tensor]:
    """Tokens padded, and a mask ``[batch, time - 1]`` of those that are learned."""
    device = bench.model.embedding.device
    tokens, _ = padded([row for row, _ in encoded], bench.tokenizer.end, device)
    mask = torch.zeros(tokens.shape[0], tokens.shape[1] - 1)
    for at, (row, start) in enumerate(encoded):
        mask[at, start - 1 : len(row) - 1] = 1.0
    return tokens, mask.to(device)
