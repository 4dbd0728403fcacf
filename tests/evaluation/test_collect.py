"""What a trace says of operators on cpu, whatever else the machine does meanwhile."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import record_function

from stitchcuda.evaluation.collect import CALL, active_seconds, collect


def test_what_takes_the_core_away_from_an_operator_in_one_call_is_not_its_work() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        with record_function("own::tiny"):
            if calls == 6:  # one untimed call, three timed, the second of three recorded
                time.sleep(0.05)
        for _ in range(4):
            torch.ones(20_000).exp_()

    told = collect(call, 3, cuda=False)
    assert calls == 7
    rows = {row["name"]: row for row in told["rows"]}
    assert rows["own::tiny"]["seconds"] < 5e-3
    assert rows["own::tiny"]["calls"] == 1
    assert rows["aten::exp_"]["calls"] == 4


def event(name: str, device: str, start: float, end: float) -> SimpleNamespace:
    """One of a recording, microseconds."""
    return SimpleNamespace(
        name=name, device_type=f"DeviceType.{device}", time_range=SimpleNamespace(start=start, end=end)
    )


def test_a_device_is_as_busy_as_in_the_median_call_whatever_came_between_one_of_them() -> None:
    marks = [event(CALL, "CPU", at, at + 400) for at in (0, 500, 1000)]
    ranges = [event(CALL, "CUDA", at, at + 400) for at in (0, 500, 1000)]
    kernels = [event("own", "CUDA", 10, 40), event("own", "CUDA", 510, 840), event("own", "CUDA", 1010, 1040)]
    other = [event("other", "CUDA", at + 20, at + 60) for at in (0, 500, 1000)]  # 20 us of each beyond the first kernel
    recording = SimpleNamespace(events=lambda: [*marks, *ranges, *kernels, *other])
    assert active_seconds(recording, 3) == pytest.approx(50e-6)


def test_a_device_is_as_busy_as_on_average_where_nobody_knows_when_calls_begin() -> None:
    marks = [event(CALL, "CPU", at, at + 400) for at in (0, 100, 500)]  # one of them a program's own
    kernels = [event("own", "CUDA", 10, 40), event("own", "CUDA", 510, 840)]
    recording = SimpleNamespace(events=lambda: [*marks, *kernels])
    assert active_seconds(recording, 2) == pytest.approx(180e-6)


def test_what_two_calls_may_claim_makes_up_for_nothing_outside_of_them() -> None:
    marks = [event(CALL, "CPU", at, at + 50) for at in (0, 55, 110)]
    kernels = [event("own", "CUDA", at + 20, at + 30) for at in (0, 55, 110)]
    between, behind = event("own", "CUDA", 51, 54), event("own", "CUDA", 300, 600)
    recording = SimpleNamespace(events=lambda: [*marks, *kernels, between, behind])
    assert active_seconds(recording, 3) == pytest.approx(333 / 3 * 1e-6)


@pytest.mark.parametrize("late", [[(1200, 1500)], [(60, 120), (360, 420)]], ids=["behind the last", "between two"])
def test_what_runs_when_no_call_does_counts_all_the_same(late: list[tuple[float, float]]) -> None:
    marks = [event(CALL, "CPU", at, at + 50) for at in (0, 300, 1000)]
    kernels = [event("own", "CUDA", at + 10, at + 20) for at in (0, 300, 1000)]
    hidden = [event("own", "CUDA", *times) for times in late]
    recording = SimpleNamespace(events=lambda: [*marks, *kernels, *hidden])
    whole = 30 + sum(end - start for start, end in late)
    assert active_seconds(recording, 3) == pytest.approx(whole / 3 * 1e-6)
