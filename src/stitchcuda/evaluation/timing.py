"""Clocks and statistics: seconds per call from per-call measurements, and whether two clocks agree. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stitchcuda.evaluation.model import Finding, Timing


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics; ``values`` must not be empty."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


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


@dataclass(frozen=True)
class TimingPlan:
    """How many timed calls: up to ``calls``, at least ``least``, and none begun after ``seconds``."""

    calls: int
    least: int
    seconds: float


def summarise(samples: Sequence[Sample], cuda: bool, note: str = "") -> Timing:
    """Median and spread of the score: per call the larger of wall and device time."""
    score = [max(s.wall, s.device) for s in samples]
    return Timing(
        median=quantile(score, 0.5),
        p10=quantile(score, 0.1),
        p90=quantile(score, 0.9),
        n=len(score),
        device_median=quantile([s.device for s in samples], 0.5) if cuda else None,
        note=note,
    )


def clock_finding(samples: Sequence[Sample], noop: float) -> Finding | None:
    """The supervisor's clock over each hand-over, less a no-op's, against the runner's own; median difference.

    Allowed on top of the runner's time: a quarter of it, and five no-op hand-overs but at least 300 microseconds, since
    waking a process late is the machine's doing.
    """
    theirs = quantile([s.wall for s in samples], 0.5)
    ours = theirs + quantile([s.handed - s.wall for s in samples], 0.5) - noop
    slack = 0.25 * theirs + max(5 * noop, 300e-6)
    if theirs > 0 and ours <= theirs + slack:
        return None
    return Finding(
        rule="clock",
        severity="reject",
        layer="clocks",
        evidence=(
            f"the runner's clock says {theirs * 1e3:.3f} ms a call, the supervisor's {ours * 1e3:.3f} ms "
            f"(no-op hand-over {noop * 1e6:.0f} us, median of {len(samples)} calls)"
        ),
    )
