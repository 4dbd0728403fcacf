"""Statistics of calls, and when two clocks are said to disagree."""

from __future__ import annotations

import pytest

from stitchcuda.evaluation.gpu_clocks import GpuClocks
from stitchcuda.evaluation.timing import (
    Sample,
    clock_finding,
    exchange_finding,
    idle_finding,
    interval,
    outside_finding,
    pause_finding,
    quantile,
    summarise,
)


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


def exchange(wall: float, total: float) -> Sample:
    """A call in an exchange that took ``total``."""
    return Sample(wall, 0.0, wall, 1e-4, total)


def test_an_exchange_as_long_as_call_and_control_says_nothing() -> None:
    assert exchange_finding([exchange(1e-3, 3e-3)] * 5, control=2e-3, noop=40e-6) is None


def test_one_quick_exchange_is_enough_to_believe_a_runner_on_a_busy_machine() -> None:
    late = [exchange(1e-3, 50e-3)] * 9
    assert exchange_finding([*late, exchange(1e-3, 3e-3)], control=2e-3, noop=40e-6) is None
    assert exchange_finding(late, control=2e-3, noop=40e-6) is not None


def test_work_moved_behind_the_call_is_found() -> None:
    finding = exchange_finding([exchange(50e-6, 8e-3)] * 5, control=2e-3, noop=40e-6)
    assert finding is not None
    assert (finding.rule, finding.layer) == ("work_outside_call", "clocks")


def test_calls_that_a_pause_makes_faster_are_found() -> None:
    assert pause_finding([sample(1e-3)] * 3, [sample(0.9e-3)] * 3) is None
    assert pause_finding([sample(1e-3)] * 3, [sample(0.2e-3), sample(0.2e-3), sample(0.9e-3)]) is None
    assert pause_finding([sample(1e-3)] * 3, [sample(0.2e-3)] * 3) is not None


def test_a_process_that_slept_gets_a_core_sooner_which_is_no_work_done_before_the_call() -> None:
    def call(wall: float, inside: float) -> Sample:
        return Sample(wall, 0.0, wall, 0.0, inside=inside)

    preempted, prompt = [call(5e-3, 1e-3)] * 3, [call(1e-3, 1e-3)] * 3
    assert pause_finding(preempted, prompt) is None
    assert pause_finding(preempted, [call(1e-3, 0.1e-3)] * 3) is not None


def test_processes_that_never_rest_are_found() -> None:
    busy, idle = Sample(1e-3, 0, 1e-3, 0, 0, 0.5), Sample(1e-3, 0, 1e-3, 0, 0, 0.0)
    assert idle_finding([busy, idle, busy]) is None
    assert idle_finding([busy] * 3) is not None


def test_the_interval_of_a_median_holds_it_and_shrinks() -> None:
    values = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    low, high = interval(values) or (0.0, 0.0)
    assert 1.0 <= low <= 1.3 <= high <= 1.6
    more = interval(values * 20)
    assert more is not None
    assert more[1] - more[0] < high - low
    assert interval([1.0] * 4) is None


def test_slowed_down_clocks_are_said() -> None:
    clocks = GpuClocks(False)
    assert clocks.finding() is None
    assert clocks.facts() == {}
    clocks.seen = [(345, 2619, 1), (1980, 2619, 0), (1980, 2619, 0)]
    assert clocks.finding() is None
    clocks.seen.append((1500, 2619, 0x4))
    finding = clocks.finding()
    assert finding is not None
    assert "power cap" in finding.evidence
    assert "between 1500 and 1980 MHz" in finding.evidence


def test_processor_time_outside_the_call_does_not_depend_on_the_load() -> None:
    def spent(outside: float | None) -> Sample:
        return Sample(1e-3, 0, 1e-3, 0, 90e-3, 0, outside)

    assert outside_finding([spent(None)] * 3, control=1e-3) is None
    assert outside_finding([spent(1.5e-3)] * 3, control=1e-3) is None
    assert outside_finding([spent(9e-3)] * 3, control=1e-3) is not None
    assert outside_finding([spent(9e-3), spent(1.2e-3), spent(1.2e-3)], control=1e-3) is None
    assert outside_finding([spent(9e-3)] * 3, control=1e-3, spinning=8e-3) is None


def test_work_put_off_in_most_calls_is_work_put_off() -> None:
    late = Sample(wall=1e-4, device=0.0, handed=1.5e-4, exported=0.0, outside=2e-2)
    honest = Sample(wall=2e-2, device=0.0, handed=2e-2, exported=0.0, outside=1e-3)
    assert outside_finding([late, late, honest] * 3, control=1e-3) is not None
