"""The trusted process that audits Tasks, one after the other: ``python -m stitchcuda.evaluation.audit_worker FD``.

Reads one JSON request a line from stdin (``task``, ``seconds``, ``exact``, ``tolerance``) and writes one JSON answer a
line to the file descriptor FD; what the Tasks' sources print goes elsewhere. Started by ``task.audit`` under its
limits; it ends itself after a CUDA error, which leaves the context unusable. No Program ever runs here.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

from stitchcuda.evaluation.battery import Situation, run_battery
from stitchcuda.evaluation.dead_work import dead_work
from stitchcuda.evaluation.expectation import Expectation
from stitchcuda.evaluation.variety import Variety
from stitchcuda.task import probe


def main() -> None:
    """Serve requests until stdin ends."""
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as replies:
        for line in sys.stdin:
            answer = audit(json.loads(line))
            lost = answer.pop("lost", False)
            replies.write(json.dumps(answer) + "\n")
            replies.flush()
            if lost:
                os._exit(3)


def audit(request: dict[str, Any]) -> dict[str, Any]:
    """Everything about one Task, or ``{"error": ...}``; never raises for what a source does."""
    began = time.monotonic()
    task = SimpleNamespace(**request["task"])
    task.target = SimpleNamespace(**request["task"]["target"])
    try:
        answer = _audit(task, request)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:500]
        lost = "CUDA error" in text or "device-side assert" in text
        answer = {"error": text, "memory": isinstance(error, MemoryError | torch.OutOfMemoryError), "lost": lost}
        error.__traceback__ = None
    with contextlib.suppress(RuntimeError):
        _free(task.target.kind)
    return answer | {"seconds": round(time.monotonic() - began, 3)}


def _free(kind: str) -> None:
    gc.collect()
    if kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _audit(task: Any, request: dict[str, Any]) -> dict[str, Any]:
    kind = task.target.kind
    facts = probe.look(task, 0)
    if "error" in facts:
        return {"problem": facts["error"]}
    expectation = Expectation(task, facts["training"], facts["stochastic"], facts["seedable"])
    expectation.exact_on_host = kind == "cpu"
    expectation.observe()
    expectation.renew(b"audit")
    if not request["exact"]:
        expectation.exact_note = "eager"
    case = next(iter(facts["cases"]), None)
    inputs = expectation.reference.inputs(5, case)
    if kind == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    expectation.eager(inputs, 0)
    if kind == "cuda":
        torch.cuda.synchronize()
    eager = time.monotonic() - began
    peak = torch.cuda.max_memory_allocated() if kind == "cuda" else 0
    outputs: list[dict[str, Any]] = []

    def see(situation: Situation) -> None:
        outputs.extend(statistics(tensor) for tensor in situation.eager)

    variety = Variety(expectation, task.source)
    found = run_battery(expectation, request["tolerance"], variety, case, seconds=request["seconds"], see=see)
    with expectation.under(expectation.pristine):
        dead = dead_work(expectation, inputs)
    if kind == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "training": facts["training"],
        "parameters": facts["parameters"],
        "stochastic": facts["stochastic"],
        "fixed_inputs": expectation.fixed_inputs,
        "mutates_state": facts["mutates_state"],
        "eager_seconds": eager,
        "peak_bytes": peak,
        "reference": "eager" if facts["stochastic"] else expectation.exact_note,
        "outputs": outputs,
        "dead_work": dead,
        "battery": vars(found),
    }


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape, dtype, and over the finite elements: smallest, largest, mean, standard deviation, share of zeros."""
    described: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if tensor.numel() == 0 or tensor.is_complex():
        return described
    count = zeros = finite = 0
    total = square = 0.0
    low, high = float("inf"), float("-inf")
    for part in torch.split(tensor.detach().reshape(-1), 1 << 26):
        values = part.double()
        good = torch.isfinite(values)
        if not bool(good.all()):
            values = values[good]
        count += part.numel()
        finite += values.numel()
        if values.numel():
            zeros += int((values == 0).sum())
            total += float(values.sum())
            square += float((values * values).sum())
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    if not finite:
        return described | {"finite": 0.0}
    mean = total / finite
    return described | {
        "min": low,
        "max": high,
        "mean": mean,
        "std": max(square / finite - mean * mean, 0.0) ** 0.5,
        "zeros": zeros / finite,
        "finite": finite / count,
    }


if __name__ == "__main__":
    main()
