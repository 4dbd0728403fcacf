"""The statistics of sweeps: bootstrap intervals, and tests for paired results. Pure; the same numbers every time.

Sources: Efron & Tibshirani, An Introduction to the Bootstrap (percentile intervals); Wilcoxon, Individual Comparisons
by Ranking Methods (1945), with zero differences left out and mid-ranks for ties; Wilson, Probable Inference (1927). The
sign test is the exact binomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

DRAWS = 10_000
SEED = 20_260_101
"""Of the resampling, so that a table can be reproduced from its records."""
EXACT = 50
"""So many pairs get the exact distribution of the signed ranks; more get its normal approximation."""

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Of each row of a matrix of resamples."""


def mean(rows: Floats) -> Floats:
    """Arithmetic mean of each row."""
    return np.asarray(rows.mean(axis=-1), dtype=np.float64)


def median(rows: Floats) -> Floats:
    """Median of each row."""
    return np.asarray(np.median(rows, axis=-1), dtype=np.float64)


def geometric(rows: Floats) -> Floats:
    """Geometric mean of each row of numbers that are not negative; 0 where one of them is 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.log(rows).mean(axis=-1)), dtype=np.float64)


def interval(values: Sequence[float], statistic: Statistic, *, level: float = 0.95) -> tuple[float, float] | None:
    """Percentile bootstrap interval of ``statistic`` over ``values``; None for fewer than two."""
    if len(values) < 2:
        return None
    kept = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(SEED).integers(0, len(kept), size=(DRAWS, len(kept)))
    found = statistic(kept[drawn])
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % score interval of a share; says something also where all or none succeeded, as a bootstrap does not."""
    z, share = 1.959964, successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return 0.0 if successes == 0 else middle - reach, 1.0 if successes == n else middle + reach


def sign_test(differences: Sequence[float]) -> tuple[int, int, float]:
    """How many are above and below zero, and the two-sided p of an even coin; 1.0 where none differs."""
    above = sum(value > 0 for value in differences)
    below = sum(value < 0 for value in differences)
    n = above + below
    if n == 0:
        return 0, 0, 1.0
    tail = sum(math.comb(n, k) for k in range(min(above, below) + 1)) / 2**n
    return above, below, min(1.0, 2 * tail)


def wilcoxon(differences: Sequence[float]) -> tuple[float, float, int]:
    """The signed-rank sum of the positive differences, its two-sided p, and how many differences are not zero.

    p is exact for up to ``EXACT`` of these, ties included, and by the normal approximation with correction for ties
    and continuity beyond; 1.0 where none differs.
    """
    kept = [value for value in differences if value != 0]
    n = len(kept)
    if n == 0:
        return 0.0, 1.0, 0
    ranks = _mid_ranks([abs(value) for value in kept])
    positive = sum(rank for rank, value in zip(ranks, kept, strict=True) if value > 0)
    total = n * (n + 1) / 2
    if n <= EXACT:
        return positive, _exact(ranks, positive), n
    ties = sum(count**3 - count for count in _counts(ranks))
    variance = n * (n + 1) * (2 * n + 1) / 24 - ties / 48
    distance = max(0.0, abs(positive - total / 2) - 0.5)
    return positive, math.erfc(distance / math.sqrt(2 * variance)), n


def _exact(ranks: Sequence[float], positive: float) -> float:
    """Two-sided p from the distribution of rank sums over all signs; doubled ranks are whole numbers."""
    doubled = [round(2 * rank) for rank in ranks]
    ways = [1] + [0] * sum(doubled)
    for rank in doubled:
        for value in range(len(ways) - 1, rank - 1, -1):
            ways[value] += ways[value - rank]
    at = round(2 * positive)
    below, above = sum(ways[: at + 1]), sum(ways[at:])
    return min(1.0, 2.0 * min(below, above) / float(2 ** len(ranks)))


def _mid_ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2 + 1
        start = end + 1
    return ranks


def _counts(ranks: Sequence[float]) -> list[int]:
    return [sum(other == rank for other in ranks) for rank in dict.fromkeys(ranks)]
