"""Decides whether outputs are right: hidden inputs, exact results, tolerances. Never loads or runs a program; what it
is given are numbers that another process fetched.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coder_experiment import stock
from coder_experiment.operators import Array
from coder_experiment.tasks import Task, reference

TOLERANCE, GOLD_TOLERANCE = 2e-4, 1e-2
OWN_ROUNDING = 10.0
"""A program may be off by so many times what float32 itself is off."""

SMALL = 1 << 15
"""Elements of a small input set, about."""
SAMPLED_ROWS, SAMPLED_COLS = 8, 1024

REWARD_SETS, GOLD_SETS = ("usual", "tails", "sparse"), ("large", "tiny")
"""What the reward's correctness is decided by, and what is only looked at afterwards."""


@dataclass(frozen=True)
class InputSet:
    """Inputs of one size. ``keys`` are secret until the outputs are there; ``rows_sampled`` is () where all are."""

    name: str
    rows: int
    cols: int
    mode: int
    scale: float
    keys: dict[str, int]
    places: NDArray[np.int32] | None = None
    rows_sampled: tuple[int, ...] = ()
    cols_sampled: tuple[int, ...] = ()

    def elements(self, task: Task) -> int:
        """How many numbers are fetched."""
        if self.places is not None:
            return int(self.places.size)
        return self.rows if task.reduced else self.rows * self.cols


def small_sets(task: Task) -> list[InputSet]:
    """The sets that decide, then the gold ones, with fresh keys."""
    rows = min(max(SMALL // task.cols, 4), 128)
    few = max(3, rows // 4 - 1)
    return [
        InputSet("usual", rows, task.cols, 0, 1.0, _keys(task)),
        InputSet("tails", few, task.cols + 3, 0, 1.0, _keys(task)),
        InputSet("sparse", few, task.cols, 1, 0.5, _keys(task)),
        InputSet("large", few, task.cols, 0, 8.0, _keys(task)),
        InputSet("tiny", few, task.cols, 0, 2.0**-12, _keys(task)),
    ]


def full_set(task: Task, elements: int) -> InputSet:
    """The set that is timed, of which a sample is fetched."""
    rows = max(4, elements // task.cols)
    draw = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    some = np.sort(draw.choice(rows, min(rows, SAMPLED_ROWS), replace=False))
    cols = np.sort(draw.choice(task.cols, min(task.cols, SAMPLED_COLS), replace=False))
    if task.reduced:
        places = some
    elif task.transposed:
        places = (cols[:, None] * rows + some[None, :]).ravel()
    else:
        places = (some[:, None] * task.cols + cols[None, :]).ravel()
    return InputSet(
        "full",
        rows,
        task.cols,
        0,
        1.0,
        _keys(task),
        places.astype(np.int32),
        tuple(int(v) for v in some),
        tuple(int(v) for v in cols),
    )


@dataclass(frozen=True)
class Expected:
    """What outputs of one set have to be: exact values, and what each may be off by."""

    want: Array
    allowed: Array


def expect(task: Task, inputs: InputSet) -> Expected:
    """The exact output's fetched elements, flat."""
    rows = np.asarray(inputs.rows_sampled or range(inputs.rows), dtype=np.uint32)
    places = rows[:, None] * np.uint32(inputs.cols) + np.arange(inputs.cols, dtype=np.uint32)[None, :]
    single: dict[str, Any] = {
        name: stock.values(key, places, inputs.mode, inputs.scale) for name, key in inputs.keys.items()
    }
    exact = reference(task, {name: value.astype(np.float64) for name, value in single.items()})
    rounded = np.asarray(reference(task, single), dtype=np.float64)
    if inputs.cols_sampled and not task.reduced:
        cols = np.asarray(inputs.cols_sampled)
        exact, rounded = (v[cols, :] if task.transposed else v[:, cols] for v in (exact, rounded))
    want = exact.ravel()
    size = np.abs(want) + np.sqrt(np.mean(want * want)) + 1e-30
    own = float(np.max(np.abs(rounded.ravel() - want) / size))
    least = GOLD_TOLERANCE if inputs.name in GOLD_SETS else TOLERANCE
    return Expected(want, max(least, OWN_ROUNDING * own if np.isfinite(own) else least) * size)


def differs(expected: Expected, got: NDArray[np.float32]) -> str:
    """How an output is wrong, in a few words; empty where it is right."""
    with np.errstate(invalid="ignore", over="ignore"):
        bad = ~(np.abs(got.astype(np.float64) - expected.want) <= expected.allowed)
    if not bad.any():
        return ""
    share = float(bad.mean())
    if np.isnan(got).any():
        unset = float(np.isnan(got).mean())
        return f"{unset:.0%} never written or not a number"
    return f"{share:.0%} of the values are wrong"


def _keys(task: Task) -> dict[str, int]:
    return {name: int.from_bytes(os.urandom(4), "little") for name in task.inputs}
