"""A trace becomes a Profile: sums, shares and copies are right, and nothing that a runner says breaks it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcuda.evaluation.telemetry import Trace, TraceRow, parse_trace
from stitchcuda.hardware.model import Ceilings, Device
from stitchcuda.profiling.capture import Taken
from stitchcuda.profiling.model import Cause
from stitchcuda.profiling.profiler import SHOWN, from_recording, least_bytes, profile
from stitchcuda.profiling.recording import CALL, ApiCall, DeviceOp, Range, Recording
from stitchcuda.profiling.sass import parse as parse_sass
from stitchcuda.task.model import Target, TaskFacts, TensorFacts
from tests.profiling.test_kernel_rules import CASES

CEILINGS = Ceilings(copy_bytes_per_second=4e12, flops_per_second={"fp32": 50e12}, measured_on="2026-11-29")
GPU = Device(
    target=Target(kind="cuda", arch="sm_90"),
    name="NVIDIA H200",
    multiprocessors=132,
    memory_bytes=150_000_000_000,
    cache_bytes=60_000_000,
    ceilings=CEILINGS,
)
CPU = GPU.model_copy(update={"target": Target(kind="cpu", arch="native")})


def trace(rows: list[TraceRow], wall: float, launches: int | None = None) -> Trace:
    return Trace(
        subject="program",
        target="cuda" if any(row.kind != "op" for row in rows) else "cpu",
        rows=rows,
        wall_seconds=wall,
        busy_seconds=sum(row.seconds for row in rows),
        launches=len(rows) if launches is None else launches,
    )


def test_busy_gap_copies_and_shares_add_up() -> None:
    rows = [
        TraceRow(name="rms_norm_rows", seconds=3e-3, calls=2, kind="kernel", origin="own"),
        TraceRow(name="ampere_sgemm", seconds=5e-3, calls=1, kind="kernel", operator="aten::mm", origin="library"),
        TraceRow(name="Memcpy HtoD (Pinned -> Device)", seconds=1e-3, calls=1, kind="copy", origin="copy"),
        TraceRow(name="Memcpy DtoD (Device -> Device)", seconds=1e-3, calls=1, kind="copy", origin="copy"),
    ]
    found = profile(trace(rows, 12e-3, launches=3), subject="program", device=GPU)
    line = found.timeline
    assert line.busy_seconds == pytest.approx(10e-3)
    assert line.gap_seconds == pytest.approx(2e-3)
    assert line.copy_seconds == pytest.approx(1e-3)
    assert line.launches == 3
    assert [kernel.name for kernel in found.kernels[:2]] == ["ampere_sgemm", "rms_norm_rows"]
    assert [kernel.share for kernel in found.kernels[:2]] == pytest.approx([0.5, 0.3])
    assert found.kernels[0].operator == "aten::mm"
    assert found.source == "kineto"


def test_own_ranges_on_a_cpu_are_shown_by_their_launchers_name() -> None:
    rows = [TraceRow(name="own::fused_chain", seconds=1e-3, calls=1, kind="op", origin="own")]
    found = profile(trace(rows, 1e-3), subject="program", device=CPU)
    assert [(kernel.name, kernel.origin) for kernel in found.kernels] == [("fused_chain", "own")]


def test_what_the_profiler_costs_on_a_cpu_is_scaled_away() -> None:
    rows = [TraceRow(name=f"aten::{n}", seconds=2e-3, calls=1, kind="op") for n in ("mul", "add")]
    found = profile(trace(rows, 1e-3), subject="reference", device=CPU)
    assert found.timeline.busy_seconds == pytest.approx(1e-3)
    assert [kernel.seconds for kernel in found.kernels] == pytest.approx([0.5e-3, 0.5e-3])
    assert "saves 0.5 ms of 1 ms" in found.suggestion


def test_facts_let_the_roofline_decide_where_names_say_nothing() -> None:
    facts = TaskFacts(
        inputs=[TensorFacts(shape=(1024, 1024, 512), dtype="float32"), "3"],
        outputs=[TensorFacts(shape=(1024, 1024, 512), dtype="float32")],
        parameters=0,
        stochastic=False,
        seedable=True,
        training=False,
        mutates_state=False,
        eager_seconds=1e-3,
    )
    assert least_bytes(facts, "fp32") == 2 * 4 * 1024 * 1024 * 512
    rows = [TraceRow(name="chain", seconds=1.2e-3, calls=1, kind="kernel", origin="own")]
    blind = profile(trace(rows, 1.25e-3), subject="program", device=GPU)
    assert blind.bottleneck == "unknown"
    informed = profile(trace(rows, 1.25e-3), subject="program", device=GPU, facts=facts)
    assert informed.bottleneck == "memory_bound"
    assert "89%" in informed.evidence


def test_an_empty_trace_is_unknown_not_an_error() -> None:
    found = profile(trace([], 1e-3), subject="reference", device=CPU)
    assert found.bottleneck == "unknown"
    assert found.kernels == []


numbers = st.floats(allow_nan=True, allow_infinity=True)
rows = st.lists(
    st.builds(
        TraceRow,
        name=st.text(max_size=30),
        seconds=numbers,
        calls=numbers,
        kind=st.sampled_from(["kernel", "copy", "memset", "op"]),
        operator=st.text(max_size=10),
        origin=st.sampled_from(["own", "library", "framework", "copy"]),
    ),
    max_size=40,
)


@given(rows=rows, wall=numbers, busy=numbers, launches=st.integers(-5, 10**9), device=st.sampled_from([GPU, CPU]))
def test_whatever_a_runner_says_the_profile_is_finite_and_bounded(
    rows: list[TraceRow], wall: float, busy: float, launches: int, device: Device
) -> None:
    told = Trace(
        subject="program",
        target=device.target.kind,
        rows=rows,
        wall_seconds=wall,
        busy_seconds=busy,
        launches=launches,
    )
    found = profile(told, subject="program", device=device)
    line = found.timeline
    assert all(
        math.isfinite(value) and value >= 0
        for value in (line.wall_seconds, line.busy_seconds, line.gap_seconds, line.copy_seconds, line.launches)
    )
    assert len(found.kernels) <= SHOWN
    assert all(0 <= kernel.share <= 1 and math.isfinite(kernel.seconds) for kernel in found.kernels)


def test_a_runners_own_report_goes_through() -> None:
    report = (
        '{"rows": [{"name": "aten::mul", "kind": "op", "operator": "aten::mul", "seconds": 0.002, "calls": 2.0},'
        ' {"name": "aten::softmax", "kind": "op", "operator": "", "seconds": 0.003, "calls": 1.0}],'
        ' "wall_seconds": 0.0055, "busy_seconds": 1, "launches": 3}'
    )
    told = parse_trace(report, subject="reference", target="cpu", own=frozenset())
    assert told is not None
    found = profile(told, subject="reference", device=CPU)
    assert found.bottleneck == "memory_bound"
    assert "fuse the 3" in found.suggestion


def test_a_recording_of_a_call_that_waits_says_what_waiting_costs() -> None:
    us = 1000
    api, ops = [], []
    for n in range(50):
        at = n * 100 * us
        api.append(ApiCall(at, at + 5 * us, "cudaLaunchKernel", 1, n))
        api.append(ApiCall(at + 6 * us, at + 99 * us, "cudaStreamSynchronize", 1, 1000 + n))
        ops.append(DeviceOp(at + 50 * us, at + 60 * us, "tiny", "kernel", 7, n))
    recording = Recording("nsys", "2025.3", ops=ops, api=api, ranges=[Range(0, 5000 * us, CALL, 1)]).sort()
    found = from_recording(Taken(recording, 4.8e-3, 4.7e-3), subject="program", device=GPU, own=frozenset({"tiny"}))
    assert (found.bottleneck, found.cause) == ("sync_bound", "host_sync")
    assert (found.kernels[0].origin, found.kernels[0].calls) == ("own", 50)
    line = found.timeline
    assert line.wall_seconds == 4.8e-3
    assert line.busy_seconds == pytest.approx(0.5e-3)
    assert sum(line.idle_seconds.values()) == pytest.approx(line.gap_seconds, rel=0.02)
    assert "predicted" in found.suggestion
    assert "saves" in found.suggestion


def test_machine_code_of_own_kernels_stands_in_the_evidence() -> None:
    us = 1000
    ops = [DeviceOp(0, 990 * us, "kernel", "kernel", 7, 0)]
    api = [ApiCall(0, 5 * us, "cudaLaunchKernel", 1, 0)]
    recording = Recording("nsys", "2025.3", ops=ops, api=api, ranges=[Range(0, 1000 * us, CALL, 1)]).sort()
    listing = "\tFunction : kernel\n        /*0010*/                   STL [R1], R4 ;   /* 0x0 */\n"
    code = parse_sass(listing, " Function kernel:\n  REG:32 STACK:304 SHARED:0 LOCAL:0")
    found = from_recording(
        Taken(recording, 1e-3, 1e-3), subject="program", device=GPU, counters=[CASES["spilling"]], sass=code
    )
    assert "304 bytes of stack" in found.diagnoses[0].evidence


def test_a_kernels_cause_stands_for_the_call_only_where_both_say_the_same() -> None:
    us = 1000
    name = "void n::conv2d_gemm<(int)4>(int)"
    ops = [DeviceOp(n * 1000 * us, (n * 1000 + 990) * us, name, "kernel", 7, n) for n in range(5)]
    api = [ApiCall(n * 10 * us, (n * 10 + 5) * us, "cudaLaunchKernel", 1, n) for n in range(5)]
    recording = Recording("nsys", "2025.3", ops=ops, api=api, ranges=[Range(0, 5000 * us, CALL, 1)]).sort()
    cases: list[tuple[Cause, Cause]] = [("sfu_pipe", "sfu_pipe"), ("occupancy_registers", "none")]
    for cause, told in cases:
        counted = CASES[cause].model_copy(update={"name": "void conv2d_gemm<4>(int)"})
        found = from_recording(Taken(recording, 5e-3, 5e-3), subject="reference", device=GPU, counters=[counted])
        assert (found.bottleneck, found.cause) == ("compute_bound", told)
        assert found.diagnoses[0].cause == cause
