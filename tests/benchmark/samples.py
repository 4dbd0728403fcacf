"""Records and sweeps as they come out of runs, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from stitchcuda.benchmark.folder import Sweep
from stitchcuda.benchmark.model import Item, Record, SweepConfig

PROVENANCE: dict[str, Any] = {
    "device": "NVIDIA H200",
    "driver": "580.95",
    "cuda": "13.0",
    "torch": "2.11.0+cu130",
    "stitchcuda": "0.1.0",
    "date": "2026-11-30T01:02:03+00:00",
    "confinement": "full",
}


def record(task: str, over_best: float | None = None, **more: Any) -> Record:
    """A task's record: solved with this speedup over the best stock option (CUDA graph), or not solved."""
    solved: dict[str, Any] = {}
    if over_best is not None:
        stock = {name: times * 1e-3 * over_best for name, times in (("cuda_graph", 1), ("compile", 2), ("eager", 3))}
        solved = {
            "tier": "publish",
            "seconds": {"program": 1e-3} | stock,
            "speedup": {"over_best": over_best, "eager": 3 * over_best, "compile": 2 * over_best},
            "interval": (0.9 * over_best, 1.1 * over_best),
            "sol": 0.4,
            "census": "hybrid",
            "own": 0.8,
            "partial_hack": False,
            "programs": {"correct": 2},
        }
    given: dict[str, Any] = {
        "item": f"{task}.{more.get('seed', 0)}",
        "task": task,
        "origin": f"{task}.py",
        "status": "correct" if over_best is not None else "nothing_correct",
        "precision": "fp32",
        "provenance": PROVENANCE,
        "usd": 0.0,
        "wall_seconds": 10.0,
        "device_seconds": 6.0,
    }
    return Record.model_validate(given | solved | more)


def sweep(records: list[Record], *, still_open: dict[str, str] | None = None, **config: Any) -> Sweep:
    """A sweep with these records, all of its items done but those still open."""
    items = [Item(task=r.origin, name=r.task, digest=r.task, seed=r.seed) for r in records]
    items += [Item(task=name, name=name.rpartition(".")[0], digest=name) for name in still_open or {}]
    return Sweep(
        config=SweepConfig.model_validate({"suite": "kernelbench", "levels": [3]} | config),
        items=items,
        records=records,
        open=still_open or {},
        complete=not still_open,
        begun="2026-11-30T00:00:00+00:00",
        machine={"stitchcuda": "0.1.0", "commit": "abc123"},
    )
