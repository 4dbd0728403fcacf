"""From single observations to one mark: signals are averaged, caps then bound the result.

Which signals there are is said in ``evidence``, ``engineering`` and ``compliance``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stitchcuda.reward.model import HIGHEST, LOWEST, Mark


@dataclass(frozen=True)
class Signal:
    """One thing that was measured, as a level of 1 to 5."""

    level: float
    reason: str
    weight: float = 1.0


@dataclass(frozen=True)
class Cap:
    """One thing that was seen and allows no more than ``limit``, however good the rest is."""

    limit: int
    reason: str


def level(value: float, bounds: Sequence[float]) -> int:
    """1, and one more for each of four rising bounds that ``value`` reaches. A value that is no number is 1."""
    return LOWEST + sum(value >= bound for bound in bounds)


def combine(signals: Sequence[Signal], caps: Sequence[Cap] = (), *, start: int = HIGHEST) -> Mark:
    """The weighted mean of the signals as a whole level (halves go up), at most the lowest cap.

    ``start`` counts where there is no signal. Reasons name every signal, and the caps by falling strictness.
    """
    weight = sum(signal.weight for signal in signals)
    mean = sum(signal.level * signal.weight for signal in signals) / weight if weight > 0 else float(start)
    binding = sorted(caps, key=lambda cap: cap.limit)
    found = min([math.floor(mean + 0.5), *(cap.limit for cap in binding)])
    reasons = [signal.reason for signal in signals]
    reasons += [f"at most {cap.limit}: {cap.reason}" for cap in binding if cap.limit < HIGHEST]
    limit = min([HIGHEST, *(cap.limit for cap in binding)])
    return Mark(score=float(min(max(found, LOWEST), HIGHEST)), reasons=reasons, limit=float(max(limit, LOWEST)))
