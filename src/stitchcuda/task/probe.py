"""The process that runs a Task once and writes what it saw: ``python -m stitchcuda.task.probe TASK.json FACTS.json``.

Started by ``task.inspect`` under its limits. Standard library and torch; the answer is one JSON object,
either the facts or ``{"error": {...}}``. What it finds is taken as the user's own description of a Task, not
as evidence about a Program.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stitchcuda.task.reference import Malformed, Reference, seed_all

TOLERANCE = 1e-3
"""Relative difference of two calls on equal inputs above which a model draws random numbers even though no
generator that we watch moved; below it is what non-deterministic kernels do."""


def main() -> None:
    """Read the task, run it, write the answer."""
    source, answer = Path(sys.argv[1]), Path(sys.argv[2])
    raw = json.loads(source.read_text(encoding="utf-8"))
    limit = raw.pop("memory_limit")
    raw["target"] = SimpleNamespace(**raw["target"])
    result = look(SimpleNamespace(**raw), limit)
    answer.write_text(json.dumps(result), encoding="utf-8")


def look(task: Any, memory_limit: int) -> dict[str, Any]:
    """Facts of the task, or ``{"error": {...}}``, whatever its source raises. A ``memory_limit`` of 0 asks for no
    estimate of what it needs."""
    stage = ["running the source"]
    try:
        return run(task, memory_limit, stage)
    except Malformed as error:
        return {"error": {"kind": "sentence", "text": str(error)}}
    except BaseException as error:
        return {"error": describe(error, task.name, stage[0])}


def run(task: Any, memory_limit: int, stage: list[str]) -> dict[str, Any]:
    """Facts of the task; ``stage`` says what was going on when it raised."""
    reference = Reference(task)
    needed = estimate_bytes(reference) if memory_limit else 0
    result: dict[str, Any] = {"needed_bytes": needed}
    if memory_limit and needed > memory_limit:
        return {"error": {"kind": "memory", "needed": needed, "available": memory_limit}}
    stage[0] = "constructing Model"
    model = reference.model(0, on_device=True)
    stage[0] = "get_input_cases()"
    cases = reference.cases()
    stage[0] = "get_inputs()"
    inputs = reference.inputs(1)
    every = {name: reference.inputs(1, name) for name in cases}
    stage[0] = "forward"
    first = Call(model, inputs, seed=11)
    tensors = [leaf for leaf in pytree.tree_leaves(first.output) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        kinds = type(first.output).__name__
        return {"error": {"kind": "sentence", "text": f"forward returned {kinds} that holds no tensor to check"}}
    second = Call(model, inputs, seed=None)
    third = Call(model, inputs, seed=11)
    for name, values in every.items():
        stage[0] = f"forward on input case {name!r}"
        Call(model, values, seed=11)
    drawn = first.drew and not same(first.output, second.output, 0.0)
    stochastic = drawn or not same(first.output, second.output, TOLERANCE)
    result |= {
        "inputs": [facts(value) for value in inputs],
        "outputs": [facts(tensor) for tensor in tensors],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "stochastic": stochastic,
        "seedable": stochastic and same(first.output, third.output, TOLERANCE),
        "training": model.training,
        "mutates_state": first.mutated,
        "eager_seconds": min(second.seconds, third.seconds),
        "cases": cases,
    }
    return result


class Call:
    """One call on copies of the inputs: its output, seconds, and what it changed; the state is put back."""

    def __init__(self, model: nn.Module, inputs: list[Any], *, seed: int | None) -> None:
        arguments = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, inputs)
        before = state_of(model)
        copies = {name: tensor.detach().clone() for name, tensor in before.items()}
        if seed is not None:
            seed_all(seed)
        generators = generator_states()
        synchronise()
        start = time.perf_counter()
        with torch.no_grad():
            output = model(*arguments)
        synchronise()
        self.seconds = time.perf_counter() - start
        self.drew = generators != generator_states()
        self.output = pytree.tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, output)
        after = state_of(model)
        self.mutated = after.keys() != copies.keys() or any(
            tensor.shape != copies[name].shape or not equal(tensor, copies[name], 0.0) for name, tensor in after.items()
        )
        with torch.no_grad():
            for name, tensor in before.items():
                tensor.copy_(copies[name])


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers and tensors kept as plain attributes, by dotted name."""
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                state[f"{prefix}.{name}" if prefix else name] = value
    return state


def generator_states() -> list[Any]:
    """States of all generators that ``seed_all`` seeds, comparable by ``==``."""
    states: list[Any] = [torch.get_rng_state().tolist(), random.getstate()]
    if torch.cuda.is_available():
        states += [state.tolist() for state in torch.cuda.get_rng_state_all()]
    if "numpy" in sys.modules:
        states.append(repr(sys.modules["numpy"].random.get_state()))
    return states


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two outputs have the same structure and values, tensors up to a relative norm."""
    left, left_spec = pytree.tree_flatten(a)
    right, right_spec = pytree.tree_flatten(b)
    if left_spec != right_spec:
        return False
    for x, y in zip(left, right, strict=True):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if x.shape != y.shape or not equal(x, y, tolerance):
                return False
        elif isinstance(x, int | float | str | bool | None.__class__) and x != y:
            return False
    return True


def equal(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    """Equal with NaN equal to NaN, or within ``tolerance`` of ``||b||`` when that is above zero."""
    if not tolerance or not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))
    a, b = torch.nan_to_num(a).double(), torch.nan_to_num(b).double()
    return bool((a - b).norm() <= tolerance * b.norm().clamp_min(1e-30))


def facts(value: Any) -> Any:
    """A tensor as shape and dtype, anything else as its repr, cut at 200 characters."""
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    return repr(value)[:200]


def synchronise() -> None:
    """Wait for the device, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def estimate_bytes(reference: Reference) -> int:
    """Bytes of parameters, buffers and inputs, found on the meta device without allocating them; 0 if that fails.

    In a child process, because caches that the source keeps must not be left with meta tensors in them. Two
    copies of the state are held at once while it is cast or moved.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with os.fdopen(writing, "w") as pipe:
                pipe.write(str(_bytes_on_meta(reference)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return int(text) if text.isdigit() else 0


def _bytes_on_meta(reference: Reference) -> int:
    state = on_meta(lambda: reference.construct("Model", reference.init_inputs()))
    inputs = on_meta(lambda: reference.module.get_inputs())
    held = 0
    if isinstance(state, nn.Module):
        held += 2 * sum(tensor.numel() * tensor.element_size() for tensor in state_of(state).values())
    leaves = pytree.tree_leaves(inputs) if inputs is not None else []
    return held + sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


def on_meta(make: Callable[[], Any]) -> Any:
    """What ``make`` gives under the meta device, or None when it needs real values."""
    seed_all(0)
    try:
        with torch.device("meta"):
            return make()
    except Exception:
        return None


def describe(error: BaseException, name: str, stage: str) -> dict[str, Any]:
    """The error in JSON: its class, first line, and the last place in the task's own source."""
    text = str(error).strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(f"{name}.")]
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text
    return {
        "kind": "allocation" if memory else "exception",
        "stage": stage,
        "type": type(error).__name__,
        "text": text.splitlines()[0][:500] if text else "",
        "line": frames[-1].lineno if frames else None,
        "code": (frames[-1].line or "").strip() if frames else "",
    }


if __name__ == "__main__":
    main()
