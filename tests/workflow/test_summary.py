"""A correct program's run ends 'no_gain' only where it is slower than eager beyond noise."""

from __future__ import annotations

import pytest

from stitchcuda.evaluation.model import Evaluation, Timing
from stitchcuda.workflow.summary import _found


def measured(program: tuple[float, float, float]) -> Evaluation:
    """Eager takes 10 ms; ``program`` is its own p10, median and p90 in ms."""
    p10, median, p90 = program
    timings = {
        "eager": Timing(median=10, p10=9, p90=12, n=50),
        "program": Timing(median=median, p10=p10, p90=p90, n=50),
    }
    speedup = {"eager": 10 / median, "over_best": 10 / median}
    return Evaluation(status="correct", message="m", tier="publish", precision="fp32", timings=timings, speedup=speedup)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ((7.0, 8.0, 9.0), "correct"),
        ((10.0, 10.1, 10.3), "correct"),
        ((9.0, 10.6, 20.0), "correct"),
        ((10.2, 10.6, 11.0), "no_gain"),
        ((18.0, 20.0, 25.0), "no_gain"),
        ((9.0, 25.0, 60.0), "no_gain"),
    ],
)
def test_slower_counts_beyond_the_measurements_own_spread(program: tuple[float, float, float], status: str) -> None:
    found, message = _found(1, measured(program))
    assert found == status
    assert ("not told from eager" in message) == (status == "correct" and program[1] > 10.2)
