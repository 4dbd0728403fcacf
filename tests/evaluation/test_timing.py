"""Statistics of calls, and when two clocks are said to disagree."""

from __future__ import annotations

import pytest

from stitchcuda.evaluation.timing import Sample, clock_finding, quantile, summarise


def sample(wall: float, *, device: float = 0.0, handed: float | None = None) -> Sample:
    """A call whose hand-over took 50 microseconds more, unless told."""
    return Sample(wall, device, wall + 50e-6 if handed is None else handed, 1e-4)


def test_quantiles_interpolate() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([0, 10], 0.1) == pytest.approx(1)
    assert quantile([7], 0.9) == 7


def test_the_score_is_the_larger_of_wall_and_device_time() -> None:
    timing = summarise([sample(1e-3, device=2e-3), sample(3e-3, device=1e-3), sample(5e-3, device=1e-3)], cuda=True)
    assert timing.median == pytest.approx(3e-3)
    assert timing.device_median == pytest.approx(1e-3)
    assert timing.n == 3


def test_clocks_that_agree_say_nothing() -> None:
    assert clock_finding([sample(1e-3)] * 5, noop=40e-6) is None
    assert clock_finding([sample(1e-5)] * 5, noop=40e-6) is None


def test_one_late_hand_over_is_the_machine() -> None:
    assert clock_finding([sample(1e-3)] * 4 + [sample(1e-3, handed=1.0)], noop=40e-6) is None


def test_time_hidden_from_the_runner_is_found() -> None:
    finding = clock_finding([sample(1e-3, handed=5e-3)] * 5, noop=40e-6)
    assert finding is not None
    assert (finding.rule, finding.severity) == ("clock", "reject")
    assert clock_finding([sample(0.0)] * 5, noop=40e-6) is not None
