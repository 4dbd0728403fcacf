"""Chrome traces of torch.profiler become recordings: of a GPU as Kineto writes them, and of this machine for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.errors import ProfilerError
from stitchcuda.profiling import host_timeline, timeline
from stitchcuda.profiling.kineto import read
from stitchcuda.profiling.recording import CALL


def event(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 7, "ts": start, "dur": length, "args": args}


def write(path: Path, events: list[Any]) -> Path:
    path.write_text(json.dumps({"deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": events}))
    return path


def test_a_gpu_trace_tells_kernels_copies_calls_and_operators(tmp_path: Path) -> None:
    events = [
        event("user_annotation", CALL, 0, 100),
        event("gpu_user_annotation", CALL, 20, 60),
        event("cpu_op", "aten::linear", 1, 20),
        event("cpu_op", "aten::addmm", 2, 18),
        event("cuda_runtime", "cudaLaunchKernel", 5, 3, correlation=11),
        event("kernel", "gemm", 20, 40, correlation=11, stream=7, grid=[4, 2, 1], block=[128, 1, 1]),
        event("cuda_runtime", "cudaMemcpyAsync", 25, 5, correlation=12),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 62, 10, correlation=12, stream=7, bytes=4096),
        event("cuda_runtime", "cudaDeviceSynchronize", 31, 68, correlation=13),
        {"ph": "M", "name": "process_name"},
        {"ph": "X", "cat": "kernel", "name": "broken", "ts": "soon"},
        "noise",
    ]
    recording = read(write(tmp_path / "t.json", events))
    assert (recording.target, recording.device, len(recording.ops)) == ("cuda", "NVIDIA H200", 2)
    copy = next(op for op in recording.ops if op.kind == "copy")
    assert (copy.direction, copy.pageable, copy.bytes) == ("DtoH", True, 4096)
    found = timeline.analyse(recording)
    assert found.timeline.busy_seconds == pytest.approx(50e-6)
    assert found.timeline.pageable_seconds == pytest.approx(10e-6)
    assert (found.kernels[0].name, found.kernels[0].operator) == ("gemm", "aten::addmm")
    assert found.operators[0].name == "aten::linear"


def test_a_trace_of_this_cpu_adds_up(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    values = torch.randn(256, 256)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        values @ values
        for _ in range(2):
            with record_function(CALL):
                torch.relu(values @ values)
    path = tmp_path / "t.json"
    recorded.export_chrome_trace(str(path))
    recording = read(path)
    assert recording.target == "cpu"
    found = host_timeline.analyse(recording)
    assert found.calls == 2
    assert {k.name: k.calls for k in found.kernels if k.name in ("aten::mm", "aten::relu")} == {
        "aten::mm": 1,
        "aten::relu": 1,
    }
    assert 0 < found.timeline.busy_seconds <= found.timeline.wall_seconds


@pytest.mark.parametrize("text", ["", '{"traceEvents": [', "{}", '{"traceEvents": 3}', "[" * 100_000])
def test_what_is_no_trace_is_named_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cut.json"
    path.write_text(text)
    with pytest.raises(ProfilerError, match=r"cut\.json"):
        read(path)
    with pytest.raises(ProfilerError):
        read(tmp_path / "missing.json")


@pytest.mark.parametrize("key", ["ph", "cat", "name", "ts", "dur", "tid", "args"])
@pytest.mark.parametrize("value", [None, "text", [], {}, True, -1, float("nan"), float("inf"), 1 << 70, 1e300])
def test_events_of_any_shape_are_read_or_left_out(tmp_path: Path, key: str, value: object) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "tid": 3, "args": {"stream": 7}}
    found = read(write(tmp_path / "t.json", [event, event | {key: value}]))
    assert len(found.ops) in (1, 2)
    assert all(op.end >= op.start for op in found.ops)
    timeline.analyse(found)


def test_an_empty_trace_is_no_error(tmp_path: Path) -> None:
    recording = read(write(tmp_path / "t.json", []))
    assert "empty" in recording.remarks[0]
    assert host_timeline.analyse(recording).calls == timeline.analyse(recording).calls == 0
