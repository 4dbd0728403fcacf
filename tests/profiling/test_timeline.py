"""What a recording says about a call: busy time is a union, gaps have a cause, the critical path leads through them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcuda.profiling.recording import CALL, OPERATORS, ApiCall, DeviceOp, Range, Recording
from stitchcuda.profiling.timeline import analyse

US = 1000


def launch(n: int, start: int, end: int, name: str = "cudaLaunchKernel") -> ApiCall:
    return ApiCall(start * US, end * US, name, 1, n)


def op(n: int, start: int, end: int, name: str = "k", **more: object) -> DeviceOp:
    found = DeviceOp(start * US, end * US, name, "kernel", 7, n)
    for key, value in more.items():
        setattr(found, key, value)
    return found


def call(start: int, end: int, *more: Range) -> list[Range]:
    return [Range(start * US, end * US, CALL, 1), *more]


def test_busy_time_is_the_union_of_what_overlaps() -> None:
    ops = [op(1, 10, 50), op(2, 30, 70, stream=8), op(3, 80, 90)]
    api = [launch(1, 0, 5), launch(2, 5, 8), launch(3, 8, 11), launch(0, 11, 100, "cudaDeviceSynchronize")]
    line = analyse(Recording("nsys", ops=ops, api=api, ranges=call(0, 100)).sort()).timeline
    assert line.busy_seconds == pytest.approx(70e-6)
    assert line.device_seconds == pytest.approx(90e-6)
    assert line.gap_seconds == pytest.approx(30e-6)
    assert (line.launches, line.streams, line.synchronisations) == (3, 2, 0)


def test_tiny_kernels_leave_gaps_that_launching_makes() -> None:
    api = [launch(n, n * 10, n * 10 + 8) for n in range(100)]
    ops = [op(n, n * 10 + 8, n * 10 + 10) for n in range(100)]
    found = analyse(Recording("nsys", ops=ops, api=api, ranges=call(0, 1005)).sort())
    assert max(found.timeline.idle_seconds, key=lambda k: found.timeline.idle_seconds[k]) == "launch"
    assert found.timeline.idle_seconds["launch"] == pytest.approx(800e-6, rel=0.05)
    # Every kernel waits for its launch, and every launch for the one before: the device is not on the path.
    assert found.path[0].where == "host"
    assert found.path[0].share > 0.7


def test_queued_kernels_are_the_critical_path_themselves() -> None:
    api = [*(launch(n, n * 5, n * 5 + 4) for n in range(10)), launch(99, 50, 1011, "cudaStreamSynchronize")]
    ops = [op(n, 10 + n * 100, 10 + n * 100 + 99, "gemm") for n in range(10)]
    found = analyse(Recording("nsys", ops=ops, api=api, ranges=call(0, 1015)).sort())
    assert (found.path[0].where, found.path[0].what, found.path[0].count) == ("device", "gemm", 10)
    assert found.path[0].seconds == pytest.approx(990e-6)
    assert sum(part.seconds for part in found.path) == pytest.approx(1015e-6)


def test_waiting_in_a_loop_is_named_and_lies_on_the_path() -> None:
    api, ops = [], []
    for n in range(20):
        at = n * 100
        api += [launch(2 * n, at, at + 5), launch(2 * n + 1, at + 6, at + 60, "cudaStreamSynchronize")]
        ops.append(op(2 * n, at + 10, at + 20))
    found = analyse(Recording("nsys", ops=ops, api=api, ranges=call(0, 2000)).sort())
    assert found.timeline.synchronisations == 19
    assert max(found.timeline.idle_seconds, key=lambda k: found.timeline.idle_seconds[k]) in ("synchronise", "host")
    assert any("waiting" in part.what for part in found.path)


def test_pageable_copies_and_allocations_are_counted() -> None:
    api = [
        launch(1, 0, 400, "cudaMemcpyAsync"),
        launch(2, 400, 600, "cudaMalloc"),
        launch(3, 600, 605),
        launch(4, 606, 700, "cudaDeviceSynchronize"),
    ]
    up = DeviceOp(100 * US, 390 * US, "Memcpy HtoD (pageable)", "copy", 7, 1, 1 << 20, "HtoD", True)
    line = analyse(Recording("nsys", ops=[up, op(3, 610, 690)], api=api, ranges=call(0, 700)).sort()).timeline
    assert line.copy_seconds == line.pageable_seconds == pytest.approx(290e-6)
    assert line.allocations == 1
    assert line.idle_seconds["allocation"] == pytest.approx(200e-6)


def test_kernels_go_to_the_operator_around_their_launch() -> None:
    ranges = call(
        0,
        100,
        Range(0, 20 * US, "aten::linear", 1, True),
        Range(2 * US, 18 * US, "aten::addmm", 1, True),
        Range(30 * US, 40 * US, "aten::relu", 1, True),
    )
    api = [launch(1, 5, 8), launch(2, 32, 35), launch(3, 41, 99, "cudaDeviceSynchronize")]
    found = analyse(Recording("kineto", ops=[op(1, 10, 70, "gemm"), op(2, 70, 90)], api=api, ranges=ranges).sort())
    assert [(k.name, k.operator) for k in found.kernels] == [("gemm", "aten::addmm"), ("k", "aten::relu")]
    assert [o.name for o in found.operators] == ["aten::linear", "aten::relu"]
    assert [o.seconds for o in found.operators] == pytest.approx([60e-6, 20e-6])


def test_one_call_with_operators_names_the_kernels_of_the_others() -> None:
    ranges = [
        *call(0, 100),
        Range(200 * US, 400 * US, OPERATORS, 1),
        Range(200 * US, 220 * US, "aten::mul", 1, True),
        Range(230 * US, 250 * US, "aten::add", 1, True),
    ]
    api = [launch(1, 0, 3), launch(2, 3, 6), launch(3, 205, 210), launch(4, 235, 240)]
    ops = [op(1, 10, 40), op(2, 40, 60), op(3, 215, 245), op(4, 245, 265)]
    found = analyse(Recording("nsys", ops=ops, api=api, ranges=ranges).sort())
    assert found.calls == 1
    assert {k.operator: k.seconds for k in found.kernels} == {
        "aten::mul": pytest.approx(30e-6),
        "aten::add": pytest.approx(20e-6),
    }


def test_nodes_of_a_graph_hang_on_its_launch() -> None:
    api = [launch(5, 0, 10, "cudaGraphLaunch"), launch(6, 11, 130, "cudaStreamSynchronize")]
    ops = [op(5, 15 + 20 * n, 34 + 20 * n, graph=True) for n in range(5)]
    found = analyse(Recording("nsys", ops=ops, api=api, ranges=call(0, 130)).sort())
    assert (found.timeline.graph_launches, found.timeline.launches) == (1, 5)
    assert found.path[0].what == "k"
    assert found.path[0].count == 5


@pytest.mark.parametrize("ranges", [[], call(0, 10)])
def test_nothing_recorded_is_zero_and_said(ranges: list[Range]) -> None:
    found = analyse(Recording("nsys", ranges=ranges).sort())
    assert found.timeline.busy_seconds == 0
    assert not found.kernels
    assert not found.path


spans = st.tuples(st.integers(0, 60), st.integers(0, 25))
NAMES = ["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMemcpyAsync", "cudaMalloc", "cudaGetDevice"]


@settings(deadline=None)
@given(
    ops=st.lists(st.tuples(spans, st.integers(-1, 8), st.integers(0, 2)), max_size=14),
    api=st.lists(st.tuples(spans, st.sampled_from(NAMES), st.integers(-1, 8), st.integers(0, 1)), max_size=14),
    end=st.integers(1, 90),
)
def test_any_recording_is_accounted_for_once(
    ops: list[tuple[tuple[int, int], int, int]], api: list[tuple[tuple[int, int], str, int, int]], end: int
) -> None:
    """Overlapping, zero-length, unlaunched and doubly launched things end the walk and add up to the call."""
    recording = Recording(
        "nsys",
        ops=[DeviceOp(a, a + n, "k", "kernel", stream, number) for (a, n), number, stream in ops],
        api=[ApiCall(a, a + n, name, thread, number) for (a, n), name, number, thread in api],
        ranges=[Range(0, end, CALL, 0)],
    ).sort()
    found = analyse(recording)
    line = found.timeline
    assert line.busy_seconds + line.gap_seconds == pytest.approx(end * 1e-9)
    assert sum(line.idle_seconds.values()) <= line.gap_seconds + 1e-12
    path = sum(part.seconds for part in found.path)
    assert path == pytest.approx(end * 1e-9) or not found.path
