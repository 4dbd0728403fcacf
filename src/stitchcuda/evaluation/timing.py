"""Clocks and statistics: seconds per call from per-call measurements, and whether two clocks agree. Pure functions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from stitchcuda.evaluation.model import Finding, Timing

RESAMPLES = 1000
"""Of the bootstrap."""

PAUSED_CALLS = 3
"""Calls after a pause, and as many at once, that are compared."""

BUSY = 0.01
"""Cores; a process that waits uses none, and thread pools have stopped spinning long before."""


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics; ``values`` must not be empty."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % percentile-bootstrap interval of the median; None for fewer than five values."""
    if len(values) < 5:
        return None
    drawn = random.Random(len(values))
    medians = sorted(quantile(drawn.choices(values, k=len(values)), 0.5) for _ in range(RESAMPLES))
    return quantile(medians, 0.025), quantile(medians, 0.975)


@dataclass(frozen=True)
class Sample:
    """One timed call; seconds."""

    wall: float
    """by the runner's clock, device synchronised before and after"""
    device: float
    """by device events; 0 on cpu"""
    handed: float
    """by the supervisor's clock, from command to reply"""
    exported: float
    """by the supervisor's clock, for copying the outputs out afterwards"""
    total: float = 0.0
    """by the supervisor's clock, from before the inputs are handed over until the outputs are out, pauses left out"""
    idle: float = 0.0
    """cores that the runner's processes kept busy while there was nothing to do, where that was looked at"""
    outside: float | None = None
    """processor time of the runner's processes in the exchange beyond the call's own, where that was looked at"""
    inside: float | None = None
    """their processor time from the call's command to its reply, where that was looked at"""


@dataclass(frozen=True)
class TimingPlan:
    """How many timed calls: up to ``calls``, at least ``least``, and none begun after ``seconds``."""

    calls: int
    least: int
    seconds: float


def scores(samples: Sequence[Sample]) -> list[float]:
    """What counts of each call: the larger of wall and device time."""
    return [max(s.wall, s.device) for s in samples]


def summarise(samples: Sequence[Sample], cuda: bool, note: str = "") -> Timing:
    """Median and spread of the scores."""
    score = scores(samples)
    low, high = interval(score) or (None, None)
    return Timing(
        median=quantile(score, 0.5),
        p10=quantile(score, 0.1),
        p90=quantile(score, 0.9),
        n=len(score),
        device_median=quantile([s.device for s in samples], 0.5) if cuda else None,
        low=low,
        high=high,
        note=note,
    )


def clock_finding(samples: Sequence[Sample], noop: float) -> Finding | None:
    """The supervisor's clock over the shortest hand-over, less a no-op's, against the runner's own median.

    A busy machine only makes hand-overs longer, and a Program has all its work to do in each of them, so the shortest
    says least by chance. Allowed on top of the runner's time: a quarter of it, and five no-op hand-overs but at least
    300 microseconds.
    """
    theirs = quantile([s.wall for s in samples], 0.5)
    if not all(math.isfinite(s.wall) and s.wall >= 0 for s in samples):
        theirs = 0.0
    ours = min(s.handed for s in samples) - noop
    slack = 0.25 * theirs + max(5 * noop, 300e-6)
    if theirs > 0 and ours <= theirs + slack:
        return None
    return Finding(
        rule="clock",
        severity="reject",
        layer="clocks",
        evidence=(
            f"the runner's clock says {theirs * 1e3:.3f} ms a call, the supervisor's {ours * 1e3:.3f} ms "
            f"(no-op hand-over {noop * 1e6:.0f} us, shortest of {len(samples)} calls)"
        ),
    )


def exchange_finding(samples: Sequence[Sample], control: float, noop: float) -> Finding | None:
    """The supervisor's clock over whole exchanges, less that of exchanges without a Program, against the runner's own
    time of the call. Work that is moved out of the call into taking inputs or exporting shows here.

    The shortest exchange counts: whatever else a machine does makes them longer, and a Program has all its work to do
    in each of them. Allowed on top of the runner's median are a quarter of it, half of what an exchange costs anyway,
    and five hand-overs, at least 300 microseconds. ``control`` is the shortest exchange without a Program, seconds.
    """
    theirs = quantile([s.wall for s in samples], 0.5)
    ours = min(s.total for s in samples) - control
    if ours <= 1.25 * theirs + 0.5 * control + max(5 * noop, 300e-6):
        return None
    return Finding(
        rule="work_outside_call",
        severity="reject",
        layer="clocks",
        evidence=(
            f"the runner's clock says {theirs * 1e3:.3f} ms a call, but taking inputs, call and export last "
            f"{ours * 1e3:.3f} ms longer than without a Program ({control * 1e3:.3f} ms; shortest of {len(samples)})"
        ),
    )


def outside_finding(samples: Sequence[Sample], control: float, spinning: float = 0.0) -> Finding | None:
    """Processor time of the runner's processes in an exchange apart from the call, less that without a Program
    (``control``, seconds): unlike the clock's, it does not depend on what else a machine does, so that the median
    counts and work put off in most calls alone shows too.

    The same allowances as by the clock, and ``spinning`` seconds for threads that wait actively behind a parallel
    region. None where it was not looked at.
    """
    watched = [s.outside for s in samples if s.outside is not None]
    if not watched:
        return None
    theirs = quantile([s.wall for s in samples], 0.5)
    ours = quantile(watched, 0.5) - control
    if ours <= 0.25 * theirs + 0.5 * control + 300e-6 + spinning:
        return None
    return Finding(
        rule="work_outside_call",
        severity="reject",
        layer="clocks",
        evidence=(
            f"a call lasts {theirs * 1e3:.3f} ms, but taking inputs and exporting cost {ours * 1e3:.3f} ms of "
            f"processor time more than without a Program (median of {len(watched)} calls)"
        ),
    )


def pause_finding(plain: Sequence[Sample], paused: Sequence[Sample]) -> Finding | None:
    """Calls after a pause behind their inputs must not be faster than others: in a pause there is nothing to do.

    Where processor time is known it must say so too: on a busy machine a process that has slept gets a core sooner.
    """
    slowest, fastest = max(s.wall for s in paused), min(s.wall for s in plain)
    if slowest >= 0.6 * fastest or fastest - slowest < 100e-6:
        return None
    most = [s.inside for s in paused if s.inside is not None]
    least = [s.inside for s in plain if s.inside is not None]
    if most and least and max(most) >= 0.6 * min(least):
        return None
    return Finding(
        rule="work_outside_call",
        severity="reject",
        layer="clocks",
        evidence=(
            f"calls take {fastest * 1e3:.3f} ms or more, but at most {slowest * 1e3:.3f} ms when they come a while "
            "after their inputs: work is done before the call"
        ),
    )


def idle_finding(paused: Sequence[Sample]) -> Finding | None:
    """A Program whose processes work while there is nothing to do, in every pause."""
    least = min(s.idle for s in paused)
    if least < BUSY:
        return None
    evidence = f"at least {100 * least:.0f} % of a core is busy while there is nothing to do"
    return Finding(rule="background_work", severity="reject", layer="clocks", evidence=evidence)
