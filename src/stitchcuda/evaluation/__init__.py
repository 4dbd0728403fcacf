"""Does it work, how fast, is it honest."""

from stitchcuda.evaluation.model import (
    Baseline,
    Census,
    Correctness,
    Evaluation,
    Finding,
    OutputError,
    SpeedOfLight,
    Status,
    Tier,
    Timing,
)

__all__ = [
    "Baseline",
    "Census",
    "Correctness",
    "Evaluation",
    "Finding",
    "OutputError",
    "SpeedOfLight",
    "Status",
    "Tier",
    "Timing",
]
