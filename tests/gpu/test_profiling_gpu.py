"""Profiles on a real GPU: Nsight Systems and Kineto agree, and counters are read, all in the confinement."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stitchcuda.errors import ToolMissing
from stitchcuda.evaluation import collect
from stitchcuda.hardware.detect import detect
from stitchcuda.profiling.capture import Subject, record
from stitchcuda.profiling.measure import measure
from stitchcuda.profiling.profiler import from_recording
from stitchcuda.task.model import Task
from tests.profiling.test_capture import FACTS, SOURCE

pytestmark = pytest.mark.gpu


def test_two_tools_agree_on_a_gpu() -> None:
    device = detect("cuda")
    source = SOURCE.replace("32, 64", "2048, 1024").replace("[64]", "[1024]")
    one = Subject(Task(name="small", origin="here", source=source, target=device.target), FACTS)
    seconds = {}
    for tool in ("kineto", "nsys"):
        try:
            taken = record(one, "kineto" if tool == "kineto" else "nsys")
        except ToolMissing as error:
            pytest.skip(str(error))
        line = from_recording(taken, subject="reference", device=device).timeline
        assert 0 < line.busy_seconds <= taken.traced_event_seconds
        seconds[tool] = line.device_seconds
    assert seconds["nsys"] == pytest.approx(seconds["kineto"], rel=0.1)


def test_counters_of_a_kernel_are_read_in_the_confinement() -> None:
    device = detect("cuda")
    source = SOURCE.replace("32, 64", "2048, 1024").replace("[64]", "[1024]")
    one = Subject(Task(name="small", origin="here", source=source, target=device.target), FACTS)
    profile = measure(one, device, counters=1).profile
    assert profile.counters, profile.remarks
    assert profile.counters[0].seconds > 0


def test_what_a_call_runs_lies_within_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = []
    real = collect.active_seconds

    def active_seconds(recording: Any, calls: int) -> float:
        recordings.append((recording, calls))
        return real(recording, calls)

    monkeypatch.setattr(collect, "active_seconds", active_seconds)
    x = torch.randn(1 << 22, device="cuda")
    told = collect.collect(lambda: x.sin().cos(), 3, cuda=True)
    [(recording, calls)] = recordings
    device = [event for event in recording.events() if str(event.device_type).endswith("CUDA")]
    kernels = [event.time_range for event in device if event.name != collect.CALL]
    marks = [e.time_range for e in recording.events() if e.name == collect.CALL and e not in device]
    assert (calls, len(marks), len(kernels)) == (3, 3, 6)
    skew = collect.SKEW_US
    outside = [
        (each.start, each.end)
        for each in kernels
        if not any(mark.start - skew <= each.start and each.end <= mark.end + skew for mark in marks)
    ]
    assert not outside, [(mark.start, mark.end) for mark in marks]
    assert told["active_seconds"] == pytest.approx(told["busy_seconds"], rel=0.3)
