"""What a sweep's records come to: success, fast_p, speedups with intervals, cheating, cost. Pure arithmetic.

The unit is the task: repetitions of a task are averaged first, and intervals resample tasks. Tasks that draw random
numbers, that a trivial answer passes, or whose own rounding is out of bounds are counted apart; what the machine or the
reference itself is to blame for is not counted at all, and said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.benchmark.model import Record
from stitchcuda.benchmark.statistics import Statistic, geometric, interval, mean, median, wilson

BARS = (0.0, 1.0, 1.2, 1.5, 2.0)
"""The p of fast_p: share of tasks with a correct program and a speedup above p."""
OVER: dict[str, str] = {
    "over_best": "best stock option",
    "eager": "eager",
    "compile": "torch.compile",
}
"""What speedups are over, the headline first."""
APART = ("non_discriminating", "stochastic", "ill_conditioned")
"""Labels of tasks that are reported apart, in the order in which one with several is put."""


class Number(BaseModel):
    """A figure with its 95 % interval over tasks: by bootstrap, of plain shares by Wilson's score."""

    model_config = ConfigDict(frozen=True)

    value: float
    low: float | None = Field(default=None, description="None: fewer than two tasks")
    high: float | None = None
    n: int = Field(description="tasks that it is over")


class Speedups(BaseModel):
    """Speedups over one baseline."""

    model_config = ConfigDict(frozen=True)

    over: str = Field(description="'over_best', 'eager' or 'compile'")
    fast: dict[str, Number] = Field(description="fast_p by p: share of all tasks, correct and faster than p")
    mean: Number = Field(description="failures counted as 0")
    median: Number = Field(description="failures counted as 0")
    geometric: Number = Field(description="failures counted as 0: 0 when there is one")
    solved_mean: Number | None = Field(default=None, description="failures left out")
    solved_median: Number | None = Field(default=None, description="failures left out")
    solved_geometric: Number | None = Field(default=None, description="failures left out")
    missing: int = Field(default=0, description="solved tasks without this baseline, left out of all of these")


class Metrics(BaseModel):
    """Of one group of tasks."""

    model_config = ConfigDict(frozen=True)

    name: str
    tasks: int = Field(description="that count")
    runs: int
    success: Number | None = Field(default=None, description="share with a correct program")
    speedups: list[Speedups] = Field(default_factory=list)
    sol: Number | None = Field(default=None, description="mean fraction of the hardware's bound, of solved tasks")
    hack: Number | None = Field(default=None, description="share of tasks on which a program was caught cheating")
    hack_programs: float | None = Field(default=None, description="share of all programs that were caught cheating")
    partial_hack: Number | None = Field(
        default=None, description="share of tasks whose accepted program has 2 or 3 of 5 for honesty"
    )
    programs: dict[str, int] = Field(default_factory=dict, description="all programs by status")
    tokens: float | None = Field(default=None, description="mean a task and run")
    usd: float | None = Field(default=None, description="mean a task and run; None: a price is not known")
    usd_total: float | None = None
    wall_seconds: float | None = Field(default=None, description="mean a task and run")
    device_seconds: float | None = Field(default=None, description="mean a task and run")


class Summary(BaseModel):
    """All groups of a sweep: everything that counts, each level or folder, and those apart."""

    model_config = ConfigDict(frozen=True)

    main: Metrics
    groups: list[Metrics] = Field(default_factory=list)
    apart: list[Metrics] = Field(default_factory=list)
    places: dict[str, str] = Field(default_factory=dict, description="tasks: which group apart each is in; '' for none")
    unscored: dict[str, str] = Field(default_factory=dict, description="items that do not count: why")


def summarise(records: Sequence[Record]) -> Summary:
    """What the records come to."""
    scored = [record for record in records if record.scored]
    places = _places(scored)
    main = [record for record in scored if places[record.task] == ""]
    baselines = [over for over in OVER if over == "over_best" or any(over in record.speedup for record in scored)]
    groups = list(dict.fromkeys(record.group for record in main if record.group))
    kinds = [kind for kind in APART if kind in places.values()]
    return Summary(
        main=measure("all", main, baselines),
        groups=[measure(group, [r for r in main if r.group == group], baselines) for group in groups]
        if len(groups) > 1
        else [],
        apart=[measure(kind, [r for r in scored if places[r.task] == kind], baselines) for kind in kinds],
        places=places,
        unscored={r.item: f"{r.status}: {r.message}" for r in records if not r.scored},
    )


def place(labels: Iterable[str]) -> str:
    """Which group apart a task with these labels belongs to; '' for none."""
    kept = set(labels)
    return next((kind for kind in APART if kind in kept), "")


def _places(records: Sequence[Record]) -> dict[str, str]:
    """By task: what any of its runs found out about it holds for all of them."""
    labels: dict[str, set[str]] = {}
    for record in records:
        labels.setdefault(record.task, set()).update(record.labels)
    return {task: place(found) for task, found in labels.items()}


def measure(name: str, records: Sequence[Record], baselines: Sequence[str]) -> Metrics:
    """The metrics of one group; its speedups over each of ``baselines``, also where it solved nothing."""
    tasks = by_task(records)
    if not tasks:
        return Metrics(name=name, tasks=0, runs=0)
    programs: dict[str, int] = {}
    for record in records:
        for status, count in record.programs.items():
            programs[status] = programs.get(status, 0) + count
    every, hacks = sum(programs.values()), sum(record.hacks for record in records)
    costs = [record.usd for record in records]
    known = [cost for cost in costs if cost is not None]
    priced = len(known) == len(costs)
    sols = [_mean([r.sol for r in runs if r.sol is not None]) for runs in tasks.values()]
    return Metrics(
        name=name,
        tasks=len(tasks),
        runs=len(records),
        success=share_of([_mean([float(r.solved) for r in runs]) or 0.0 for runs in tasks.values()]),
        speedups=[speedups(over, tasks) for over in baselines],
        sol=number([sol for sol in sols if sol is not None], mean),
        hack=share_of([_mean([float(r.hacks > 0) for r in runs]) or 0.0 for runs in tasks.values()]),
        hack_programs=hacks / every if every else None,
        partial_hack=share_of([_mean([float(bool(r.partial_hack)) for r in runs]) or 0.0 for runs in tasks.values()]),
        programs=programs,
        tokens=_mean([float(r.input_tokens + r.output_tokens) for r in records]),
        usd=_mean(known) if priced else None,
        usd_total=sum(known) if priced else None,
        wall_seconds=_mean([r.wall_seconds for r in records]),
        device_seconds=_mean([r.device_seconds for r in records]),
    )


def by_task(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs of each task."""
    tasks: dict[str, list[Record]] = {}
    for record in records:
        tasks.setdefault(record.task, []).append(record)
    return tasks


def worth(record: Record, over: str) -> float | None:
    """A run's speedup; 0 for a failure, None where it was solved and this baseline is missing."""
    return record.speedup.get(over) if record.solved else 0.0


def worths(runs: Sequence[Record], over: str) -> list[float]:
    """Speedups of a task's runs, failures as 0; none where it was solved and every solved run lacks this baseline."""
    values = [value for run in runs if (value := worth(run, over)) is not None]
    return values if len(values) == len(runs) or any(value > 0 for value in values) else []


def speedups(over: str, tasks: dict[str, list[Record]]) -> Speedups:
    """Over one baseline. Tasks whose every solved run lacks it are left out and counted."""
    kept = {task: values for task, runs in tasks.items() if (values := worths(runs, over))}
    whole = [_mean(values) or 0.0 for values in kept.values()]
    solved = [_mean(good) or 0.0 for values in kept.values() if (good := [value for value in values if value > 0])]
    fast = {
        f"{bar:g}": share_of([_mean([float(value > bar) for value in values]) or 0.0 for values in kept.values()])
        for bar in BARS
    }
    return Speedups(
        over=over,
        fast=fast,
        mean=required(whole, mean),
        median=required(whole, median),
        geometric=required(whole, geometric),
        solved_mean=number(solved, mean),
        solved_median=number(solved, median),
        solved_geometric=number(solved, geometric),
        missing=len(tasks) - len(kept),
    )


def number(values: Sequence[float], statistic: Statistic) -> Number | None:
    """A figure with its interval; None over nothing."""
    if not values:
        return None
    low, high = interval(values, statistic) or (None, None)
    value = float(statistic(np.asarray([values], dtype=np.float64))[0])
    return Number(value=value, low=low, high=high, n=len(values))


def share_of(values: Sequence[float]) -> Number:
    """A share of tasks: Wilson's interval where each value is 0 or 1, else (repetitions differ) the bootstrap's."""
    if not values or any(value not in (0.0, 1.0) for value in values):
        return required(values, mean)
    low, high = wilson(sum(value == 1.0 for value in values), len(values))
    return Number(value=sum(values) / len(values), low=low, high=high, n=len(values))


def required(values: Sequence[float], statistic: Statistic) -> Number:
    """The same, 0 over nothing."""
    return number(values, statistic) or Number(value=0.0, n=0)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
