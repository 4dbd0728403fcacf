"""Trivial answers to a Task: whether one that computes nothing, or far too little, would be judged right. What passes
makes a Task ``non_discriminating``; it says nothing about any Program. Oracle and audit only.

The Task is taken as it is written: its own inputs and the constructor's weights, judged as Programs are (fp64 and
error budget), and beside it by KernelBench's tolerances against eager. Answers that pass are then tried under perturbed
weights and every family of inputs: those that pass there too would pass a whole evaluation.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stitchcuda.evaluation import compare
from stitchcuda.evaluation.expectation import Expectation, derive, map_floats
from stitchcuda.evaluation.families import FAMILIES, leaves
from stitchcuda.evaluation.judging import ILL_CONDITIONED, Judge, Round, output_leaves
from stitchcuda.evaluation.variety import Variety

RULES = 2
"""Of budgets and of how weights are moved; what was found under others is tried anew."""

KERNELBENCH_TOLERANCES = {"1e-4": 1e-4, "1e-2": 1e-2}
"""Absolute and relative at once: fp32 today, and half precision or its earlier versions."""

SAMPLE_SHARE = 0.01
"""Of the largest dimension of an input: what a sampled answer reads."""

SAMPLED_INPUTS = 3

IN_EVALUATION = 5.0
"""Seconds for trying them in an evaluation, once for a Task."""

Answer = list[torch.Tensor]


@dataclass
class Found:
    """Names of the answers that pass, and what was not tried."""

    ours: list[str] = field(default_factory=list)
    """as written, by this project's budget"""
    kernelbench: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in KERNELBENCH_TOLERANCES})
    """as written, by KernelBench's tolerances"""
    whole: list[str] = field(default_factory=list)
    """of ``ours``, under perturbed weights and every family that the reference stands"""
    tried: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Answers or families that were not tried, and why."""
    ill_conditioned: bool = False
    amplification: float = 0.0
    """Relative norm that noise of the size of rounding moves the outputs by, over that noise."""
    budget: float = 0.0
    """The widest relative norm allowed."""


@dataclass
class Situation:
    """One state and one set of inputs, with what is right there."""

    expectation: Expectation
    judge: Judge
    this: Round
    eager: Answer
    judged: list[tuple[torch.Tensor, compare.Distance, compare.Budget]]

    def passes(self, answer: Answer) -> bool:
        """Whether a Program with this answer would be judged right."""
        if len(answer) != len(self.judged):
            return False
        return all(
            value.shape == want.shape and allowed.allows(compare.distance(value, want))
            for value, (want, _, allowed) in zip(answer, self.judged, strict=True)
        )

    def close(self, answer: Answer, tolerance: float) -> bool:
        """Whether ``torch.allclose`` to eager with this tolerance, absolute and relative."""
        if len(answer) != len(self.eager):
            return False
        return all(
            value.shape == near.shape and _allclose(value, near, tolerance)
            for value, near in zip(answer, self.eager, strict=True)
        )


def _allclose(value: torch.Tensor, near: torch.Tensor, tolerance: float) -> bool:
    if not near.is_floating_point():
        return torch.equal(value.to(near.dtype), near)
    left, right = value.reshape(-1), near.reshape(-1)
    for at in range(0, right.numel(), compare.CHUNK):
        b = right[at : at + compare.CHUNK].float()
        a = left[at : at + compare.CHUNK].to(b.device).float()
        if not bool(((a - b).abs() <= tolerance + tolerance * b.abs()).all()):
            return False
    return True


def situation(
    expectation: Expectation, tolerance: dict[str, float], inputs: list[Any], case: str | None, family: str = ""
) -> Situation:
    """The expectation's present state with these inputs, under budgets of its own."""
    seed = 0 if expectation.stochastic else -1
    judge = Judge(expectation, tolerance)
    this = Round("battery", case, inputs, [], seed, set(), None, family)
    eager = output_leaves(expectation.eager(inputs, seed)[0])
    names = [str(at) for at in range(len(eager))]
    return Situation(expectation, judge, this, eager, judge.budgets_for(this, names, eager))


def answers(at: Situation, others: list[Any], perturbed: dict[str, torch.Tensor]) -> Iterator[tuple[str, Any]]:
    """Name and maker of every trivial answer to a situation, cheap ones first.

    ``others``: inputs of another call; ``perturbed``: another state of the model.
    """
    inputs, run = at.this.inputs, at.expectation

    def called(values: list[Any]) -> Answer:
        return output_leaves(run.eager(values, at.this.seed)[0])

    def under(state: dict[str, torch.Tensor], values: list[Any]) -> Answer:
        with run.under(state):
            return called(values)

    yield "zeros", lambda: [torch.zeros_like(t) for t in at.eager]
    yield "constant", lambda: [_constant(t) for t in called(others)]
    given = leaves(inputs)
    if all(any(_like(t, out) for t in given) for out in at.eager):
        yield "identity", lambda: [next(t for t in given if _like(t, out)) for out in at.eager]
    yield "previous", lambda: called(others)
    if run.perturbed:
        yield "other_weights", lambda: under(perturbed, inputs)
        yield "other_seed", lambda: under(perturbed, others)
    if run.precision in ("fp32", "tf32"):
        yield "bf16", lambda: under(_rounded_state(run), map_floats(inputs, _rounded))
    large = sorted(range(len(given)), key=lambda i: -given[i].numel())[:SAMPLED_INPUTS]
    large = [i for i in large if given[i].dim() and max(given[i].shape) >= 2]
    for i in large if len(large) > 1 else []:
        yield f"sample:{i}", lambda i=i: called(_tiled(inputs, {i}))
    if large:
        yield "sample", lambda: called(_tiled(inputs, set(range(len(given)))))


def _like(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    return tensor.shape == out.shape and tensor.dtype == out.dtype


def _constant(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() == 0:
        return tensor
    if tensor.is_floating_point():
        parts = torch.split(tensor.reshape(-1), compare.CHUNK)
        return torch.full_like(tensor, sum(float(part.double().sum()) for part in parts) / tensor.numel())
    if tensor.is_complex():
        return torch.full_like(tensor, tensor.mean().item())
    return torch.full_like(tensor, tensor.reshape(-1)[:: max(1, tensor.numel() >> 20)].mode().values.item())


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype)


def _rounded_state(expectation: Expectation) -> dict[str, torch.Tensor]:
    return {name: _rounded(t) if t.is_floating_point() else t for name, t in expectation.current.items()}


def _tiled(inputs: list[Any], chosen: set[int]) -> list[Any]:
    """Inputs of which the chosen tensors repeat the first hundredth of their largest dimension."""
    flat, structure = pytree.tree_flatten(inputs)
    places = [at for at, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    for i in chosen:
        tensor = flat[places[i]]
        if tensor.dim() == 0 or max(tensor.shape) < 2:
            continue
        dim = max(range(tensor.dim()), key=lambda d: tensor.shape[d])
        size = tensor.shape[dim]
        index = torch.arange(size, device=tensor.device) % max(1, int(size * SAMPLE_SHARE))
        flat[places[i]] = tensor.index_select(dim, index)
    return list(pytree.tree_unflatten(flat, structure))


def run_battery(
    expectation: Expectation,
    tolerance: dict[str, float],
    variety: Variety,
    case: str | None,
    *,
    seconds: float,
    whole: bool = True,
    see: Callable[[Situation], None] = lambda situation: None,
) -> Found:
    """Try every trivial answer; those that time does not allow after ``seconds`` are named in ``left_out``.

    ``whole``: also under other weights and families; ``see`` is shown the Task as written. The expectation is left in
    the state that it was in.
    """
    found = Found()
    if expectation.stochastic and not expectation.seedable:
        found.left_out["every answer"] = "the task draws random numbers that no seed repeats"
        return found
    deadline = time.monotonic() + seconds
    nonce = b"battery"
    perturbed = expectation.current
    with expectation.under(expectation.pristine):
        at = situation(expectation, tolerance, expectation.inputs(nonce, "one", case), case)
        _conditioning(at, found)
        see(at)
        others = expectation.inputs(nonce, "two", case)
        for name, make in answers(at, others, perturbed):
            if time.monotonic() > deadline and found.tried:
                found.left_out[name] = "no time was left"
                continue
            answer = _made(name, make, found)
            if answer is None:
                continue
            if at.passes(answer):
                found.ours.append(name)
            for label, limit in KERNELBENCH_TOLERANCES.items():
                if at.close(answer, limit):
                    found.kernelbench[label].append(name)
            del answer
        del at, others
    alive = set(found.ours)
    for family in ("", *FAMILIES) if whole else ():
        if not alive:
            break
        if time.monotonic() > deadline:
            found.left_out[family or "perturbed weights"] = "no time was left"
            continue
        alive &= _survivors(expectation, tolerance, variety, case, family, alive, nonce, found)
    found.whole = [name for name in found.ours if whole and name in alive]
    return found


def passing(
    expectation: Expectation, tolerance: dict[str, float], variety: Variety, case: str | None, cache: Path | None
) -> list[str]:
    """Names of the trivial answers that pass the Task as written; tried within ``IN_EVALUATION`` seconds unless the
    file ``cache`` knows them. Empty when they could not be tried."""
    if cache is not None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(cache.read_text())
            if known["rules"] == RULES:
                return [str(name) for name in known["passing"]]
    try:
        found = run_battery(expectation, tolerance, variety, case, seconds=IN_EVALUATION, whole=False)
    except (RuntimeError, MemoryError):
        return []
    if cache is not None:
        with contextlib.suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            scratch = cache.with_name(f".{cache.name}.{os.getpid()}")
            scratch.write_text(json.dumps({"rules": RULES, "passing": found.ours, "left_out": found.left_out}))
            scratch.replace(cache)
    return found.ours


def _conditioning(at: Situation, found: Found) -> None:
    noise = at.judge.tolerance["noise"]
    floats = [i for i, t in enumerate(at.eager) if t.is_floating_point()]
    moved = [at.judge.moved.get((at.this.key, str(i)), compare.ZERO).relative for i in floats]
    found.amplification = max(moved, default=0.0) / noise
    found.budget = max((at.judged[i][2].relative for i in floats), default=0.0)
    found.ill_conditioned = found.budget > ILL_CONDITIONED


def _made(name: str, make: Any, found: Found) -> Answer | None:
    try:
        answer: Answer = make()
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        found.left_out[name] = f"the reference raises {type(error).__name__} on it"
        return None
    found.tried.append(name)
    return answer


def _survivors(
    expectation: Expectation,
    tolerance: dict[str, float],
    variety: Variety,
    case: str | None,
    family: str,
    alive: set[str],
    nonce: bytes,
    found: Found,
) -> set[str]:
    """Which answers pass under the present (perturbed) weights on a family of inputs too."""
    seed = 0 if expectation.stochastic else -1
    inputs = expectation.inputs(nonce, f"base:{family}", case)
    if family:
        judge = Judge(expectation, tolerance)
        earlier = Round("battery", case, inputs, [], seed, set())
        varied = variety.make(family, nonce, f"base:{family}", case, seed, earlier, judge)
        if not varied.family:
            found.left_out[family] = variety.skipped.get(str(case), {}).get(family, "it does not apply")
            return alive
        inputs = varied.inputs
    at = situation(expectation, tolerance, inputs, case, family)
    if family and at.judge.amplified(at.this.key):
        found.left_out[family] = "the reference's own rounding is amplified on it"
        return alive
    others = expectation.inputs(nonce, f"other:{family}", case)
    present = expectation.current
    expectation.reweigh(derive(nonce, f"state:{family}"))
    other = expectation.current
    expectation.bring(present)
    passing = set()
    for name, make in answers(at, others, other):
        if name in alive:
            answer = _made(name, make, Found())
            if answer is not None and at.passes(answer):
                passing.add(name)
    return passing
