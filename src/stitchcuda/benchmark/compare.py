"""Two sweeps over the same tasks, paired task by task: which is better, by how much, and whether chance explains it.

Runs of one task are averaged first, so that n is the number of tasks. Three questions, each with its own n: does it
find a correct program more often (sign test over tasks); is its speedup larger with failures as 0 (Wilcoxon's
signed-rank test); and how do the programs compare on the tasks that both solved (geometric mean of the ratios, with a
bootstrap interval over tasks).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.benchmark.folder import Sweep, unique
from stitchcuda.benchmark.heading import title
from stitchcuda.benchmark.metrics import by_task, place, worths
from stitchcuda.benchmark.model import Record
from stitchcuda.benchmark.statistics import geometric, interval, sign_test, wilcoxon
from stitchcuda.errors import StitchError


class Pair(BaseModel):
    """One task in both sweeps."""

    model_config = ConfigDict(frozen=True)

    task: str
    first: float = Field(description="mean speedup over its runs, failures as 0")
    second: float
    first_solved: float = Field(description="share of its runs with a correct program")
    second_solved: float
    first_program: float | None = Field(default=None, description="mean speedup of the solved runs")
    second_program: float | None = None


class Comparison(BaseModel):
    """Everything that ``bench compare`` says; B against A."""

    model_config = ConfigDict(frozen=True)

    first: str
    second: str
    over: str
    n: int = Field(description="tasks in both, not counting those apart")
    pairs: list[Pair]
    left_out: dict[str, str] = Field(default_factory=dict, description="tasks: why")
    cautions: list[str] = Field(default_factory=list, description="in what the two differ besides their programs")
    solved: tuple[float, float] = Field(description="shares of the tasks, A and B")
    solved_more: int = Field(description="tasks that B solves more often")
    solved_less: int
    solved_p: float = Field(description="sign test, two-sided")
    better: int = Field(description="tasks on which B's speedup is larger, failures as 0")
    worse: int
    sign_p: float = Field(description="sign test over these, two-sided")
    wilcoxon_p: float = Field(description="signed-rank test over these, two-sided")
    wilcoxon_n: int = Field(description="of which differ")
    both: int = Field(description="tasks that both solved")
    ratio: float | None = Field(default=None, description="geometric mean of B's speedup over A's, on these")
    ratio_low: float | None = Field(default=None, description="95 % bootstrap interval over tasks")
    ratio_high: float | None = None


def compare(first: Sweep, second: Sweep, *, over: str = "over_best") -> Comparison:
    """Pair two sweeps. Raises StitchError when they have no task in common, or the speedup was not measured."""
    for sweep in (first, second):
        known = [record for record in sweep.records if record.solved]
        if known and not any(over in record.speedup for record in known):
            have = unique(name for record in known for name in record.speedup)
            raise StitchError(f"no speedup over '{over}' in {title(sweep)}; it has {', '.join(have)}")
    pairs, left_out = _pairs(first, second, over)
    if not pairs:
        raise StitchError("the two sweeps have no finished task in common, so nothing can be paired")
    solved = [pair.second_solved - pair.first_solved for pair in pairs]
    gains = [pair.second - pair.first for pair in pairs]
    more, less, solved_p = sign_test(solved)
    better, worse, sign_p = sign_test(gains)
    _, wilcoxon_p, differing = wilcoxon(gains)
    ratios = [p.second_program / p.first_program for p in pairs if p.first_program and p.second_program]
    ends = interval(ratios, geometric) if ratios else None
    return Comparison(
        first=title(first),
        second=title(second),
        over=over,
        n=len(pairs),
        pairs=pairs,
        left_out=left_out,
        cautions=_cautions(first, second),
        solved=(sum(p.first_solved for p in pairs) / len(pairs), sum(p.second_solved for p in pairs) / len(pairs)),
        solved_more=more,
        solved_less=less,
        solved_p=solved_p,
        better=better,
        worse=worse,
        sign_p=sign_p,
        wilcoxon_p=wilcoxon_p,
        wilcoxon_n=differing,
        both=len(ratios),
        ratio=math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        ratio_low=ends[0] if ends else None,
        ratio_high=ends[1] if ends else None,
    )


def _pairs(first: Sweep, second: Sweep, over: str) -> tuple[list[Pair], dict[str, str]]:
    digests = [{item.name: item.digest for item in sweep.items} for sweep in (first, second)]
    runs = [by_task(record for record in sweep.records if record.scored) for sweep in (first, second)]
    pairs: list[Pair] = []
    left_out: dict[str, str] = {}
    for task in unique([*digests[0], *digests[1]]):
        missing = [name for name, have in zip("AB", runs, strict=True) if task not in have]
        labels = {label for have in runs for record in have.get(task, []) for label in record.labels}
        if missing:
            left_out[task] = f"no result in {' and '.join(missing)}"
        elif digests[0][task] != digests[1][task]:
            left_out[task] = "its source differs"
        elif kind := place(labels):
            left_out[task] = kind
        elif (pair := _pair(task, runs[0][task], runs[1][task], over)) is None:
            left_out[task] = f"solved, but without a speedup over {over}"
        else:
            pairs.append(pair)
    return pairs, left_out


def _pair(task: str, first: list[Record], second: list[Record], over: str) -> Pair | None:
    values = [worths(runs, over) for runs in (first, second)]
    if not values[0] or not values[1]:
        return None
    good = [[value for value in kept if value > 0] for kept in values]
    means = [sum(kept) / len(kept) for kept in values]
    programs = [sum(kept) / len(kept) if kept else None for kept in good]
    solved = [sum(run.solved for run in runs) / len(runs) for runs in (first, second)]
    return Pair(
        task=task,
        first=means[0],
        second=means[1],
        first_solved=solved[0],
        second_solved=solved[1],
        first_program=programs[0],
        second_program=programs[1],
    )


def _cautions(first: Sweep, second: Sweep) -> list[str]:
    """Differences that a reader must know of, since they are none of the programs'."""

    def of(name: str) -> Callable[[Record], object]:
        return lambda record: record.provenance.get(name)

    told = []
    traits: dict[str, Callable[[Record], object]] = {
        "devices": of("device"),
        "torch versions": of("torch"),
        "drivers": of("driver"),
        "stitchcuda versions": of("stitchcuda"),
        "precision classes": lambda record: record.precision,
        "tiers": lambda record: record.tier,
    }
    for name, read in traits.items():
        have = [
            sorted({str(value) for record in sweep.records if record.scored and (value := read(record))})
            for sweep in (first, second)
        ]
        if have[0] and have[1] and have[0] != have[1]:
            told.append(f"different {name}: {', '.join(have[0])} in A, {', '.join(have[1])} in B")
    stock = [
        sorted(
            unique(name for record in sweep.records if record.solved for name in record.seconds if name != "program")
        )
        for sweep in (first, second)
    ]
    if stock[0] and stock[1] and stock[0] != stock[1]:
        told.append(f"different stock options: {', '.join(stock[0])} in A, {', '.join(stock[1])} in B")
    return told


def lines(found: Comparison) -> list[str]:
    """The comparison in words, for a terminal."""
    told = [f"A: {found.first}", f"B: {found.second}", f"paired over {found.n} tasks, speedup over {found.over}", ""]
    told += [f"caution: {caution}" for caution in found.cautions]
    told += [
        f"success: A {found.solved[0]:.0%}, B {found.solved[1]:.0%}; B solves {found.solved_more} tasks more often and "
        f"{found.solved_less} less often (sign test p = {found.solved_p:.3g}, n = "
        f"{found.solved_more + found.solved_less})",
        f"speedup, failures as 0: B is better on {found.better} tasks and worse on {found.worse} (sign test p = "
        f"{found.sign_p:.3g}; Wilcoxon signed-rank p = {found.wilcoxon_p:.3g}, n = {found.wilcoxon_n})",
    ]
    if found.ratio is not None:
        ends = f" [{found.ratio_low:.3f}, {found.ratio_high:.3f}]" if found.ratio_low is not None else ""
        told.append(
            f"on the {found.both} tasks that both solved: B's programs are {found.ratio:.3f}x{ends} as fast as A's "
            "(geometric mean, 95 % bootstrap interval over tasks)"
        )
    else:
        told.append("no task was solved by both")
    told += ["", f"{'task':42} {'A':>8} {'B':>8}"]
    told += [f"{pair.task:42} {_cell(pair.first)} {_cell(pair.second)}" for pair in found.pairs]
    told += [f"left out: {task} ({why})" for task, why in found.left_out.items()]
    return told


def _cell(value: float) -> str:
    return f"{value:7.2f}x" if value else f"{'-':>8}"
