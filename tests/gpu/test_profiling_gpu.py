"""Profiles on a real GPU: Nsight Systems and Kineto agree, and counters are read, all in the confinement."""

from __future__ import annotations

import pytest

from stitchcuda.errors import ToolMissing
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
