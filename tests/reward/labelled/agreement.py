"""How far two sets of marks agree: rank correlation, weighted kappa, differences. Which marks is said by the caller."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for at in order[start : end + 1]:
            found[at] = (start + end) / 2 + 1
        start = end + 1
    return found


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation, -1 to 1 (Pearson's of the ranks, so ties are counted right); NaN where one does not vary."""
    a, b = ranks(first), ranks(second)
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    both = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return both / spread if spread > 0 else math.nan


def kappa(first: Sequence[float], second: Sequence[float]) -> float:
    """Cohen's kappa with quadratic weights: 1 agrees wholly, 0 as chance would; NaN where nothing could differ."""
    pairs, n = list(zip(first, second, strict=True)), len(first)
    left, right = Counter(first), Counter(second)
    seen = sum((x - y) ** 2 for x, y in pairs) / n
    chance = sum(left[x] * right[y] * (x - y) ** 2 for x in left for y in right) / n**2
    return 1 - seen / chance if chance > 0 else math.nan


def difference(first: Sequence[float], second: Sequence[float]) -> float:
    """Mean absolute difference, in marks."""
    return sum(abs(x - y) for x, y in zip(first, second, strict=True)) / len(first)
