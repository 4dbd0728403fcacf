"""The bottleneck label follows from the numbers, whatever they are, and says which."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcuda.hardware.model import Ceilings, Device
from stitchcuda.profiling.families import family
from stitchcuda.profiling.model import Bottleneck, KernelTime, Timeline
from stitchcuda.profiling.remedies import remedies, suggestion
from stitchcuda.profiling.rules import Work, bounds, judge
from stitchcuda.task.model import Target

GPU = Device(
    target=Target(kind="cuda", arch="sm_90"),
    name="NVIDIA H200",
    multiprocessors=132,
    memory_bytes=150_000_000_000,
    cache_bytes=60_000_000,
    ceilings=Ceilings(
        copy_bytes_per_second=4e12, flops_per_second={"fp32": 50e12, "bf16": 700e12}, measured_on="2026-11-29"
    ),
)
CPU = GPU.model_copy(update={"target": Target(kind="cpu", arch="native"), "name": "cpu", "multiprocessors": 2})


def kernel(name: str, seconds: float, share: float, calls: int = 1, operator: str = "") -> KernelTime:
    return KernelTime(name=name, seconds=seconds, share=share, calls=calls, origin="framework", operator=operator)


def timeline(wall: float, busy: float, launches: int, copies: float = 0.0) -> Timeline:
    return Timeline(
        wall_seconds=wall, busy_seconds=busy, gap_seconds=max(wall - busy, 0), copy_seconds=copies, launches=launches
    )


@pytest.mark.parametrize(
    ("line", "kernels", "work", "label", "number"),
    [
        (
            timeline(2e-3, 0.5e-3, 300),
            [kernel("vectorized_elementwise_kernel", 0.5e-3, 1.0, 300)],
            None,
            "launch_bound",
            "300",
        ),
        (timeline(50e-3, 5e-3, 40), [kernel("sgemm_128x64", 5e-3, 1.0, 40)], None, "host_bound", "45 ms"),
        (
            timeline(5e-3, 2e-3, 40),
            [kernel("sgemm", 2e-3, 0.9, 39), kernel("x", 0, 0.1, 1, "aten::item")],
            None,
            "sync_bound",
            "3 ms",
        ),
        (timeline(10e-3, 9e-3, 12, 6e-3), [kernel("Memcpy HtoD", 6e-3, 0.67, 4)], None, "copy_bound", "60%"),
        (
            timeline(4e-3, 3.9e-3, 4000),
            [kernel("vectorized_elementwise", 3.9e-3, 1.0, 4000)],
            None,
            "latency_bound",
            "4000",
        ),
        (timeline(60e-3, 58e-3, 6), [kernel("RNN_blockPersist_lstm", 58e-3, 1.0, 6)], None, "latency_bound", "100%"),
        (timeline(1e-3, 1e-3, 2), [kernel("own_chain", 1e-3, 1.0, 2)], Work(bytes=3.2e9), "memory_bound", "0.8 ms"),
        (timeline(10e-3, 10e-3, 1), [kernel("mystery", 10e-3, 1.0)], Work(1e6, 400e9), "compute_bound", "8 ms"),
        (timeline(10e-3, 10e-3, 9), [kernel("sgemm_128x64_nn", 8e-3, 0.8, 5)], None, "compute_bound", "80%"),
        (timeline(10e-3, 10e-3, 9), [kernel("softmax_warp_forward", 8e-3, 0.8, 5)], None, "memory_bound", "80%"),
        (timeline(10e-3, 10e-3, 9), [kernel("mystery", 10e-3, 1.0, 9)], None, "unknown", "10 ms"),
        (timeline(1e-3, 0.0, 0), [], None, "unknown", "1 ms"),
    ],
)
def test_label_and_its_numbers(
    line: Timeline, kernels: list[KernelTime], work: Work | None, label: str, number: str
) -> None:
    verdict = judge(line, kernels, GPU, work)
    assert verdict.bottleneck == label
    assert number in verdict.evidence


def test_copies_on_a_cpu_are_memory_traffic_not_a_copy_bound() -> None:
    line = timeline(10e-3, 9e-3, 12, 6e-3)
    assert judge(line, [kernel("aten::copy_", 6e-3, 0.67, 4)], CPU, None).bottleneck == "memory_bound"


def test_matrix_products_are_compute_bound_unless_counted_flop_say_otherwise() -> None:
    line, kernels = timeline(10e-3, 10e-3, 9), [kernel("sgemm", 6e-3, 0.6, 5), kernel("aten::mul", 4e-3, 0.4, 4)]
    assert judge(line, kernels, GPU, Work(bytes=1e9)).bottleneck == "compute_bound"
    assert judge(line, kernels, GPU, Work(bytes=1e9, flops=50e9)).bottleneck == "compute_bound"
    assert judge(line, kernels, GPU, Work(bytes=8e9, flops=1e9)).bottleneck == "memory_bound"


def test_bounds_need_ceilings_and_work() -> None:
    assert bounds(GPU, None).largest == 0
    assert bounds(GPU.model_copy(update={"ceilings": None}), Work(1e9)).largest == 0
    both = bounds(GPU, Work(bytes=4e9, flops=50e9))
    assert both.memory == pytest.approx(1e-3)
    assert both.compute == pytest.approx(1e-3)
    assert bounds(GPU, Work(bytes=4e9, flops=50e9, precision="fp16")).compute is None


def test_the_suggestion_is_the_change_that_saves_most() -> None:
    line = timeline(10e-3, 2e-3, 400)
    kernels = [kernel("vectorized_elementwise_kernel", 2e-3, 1.0, 400)]
    assert "CUDA graph" in suggestion(line, kernels, GPU, None)
    assert "4.17x" in suggestion(line, kernels, GPU, None)
    busy = timeline(10e-3, 9.9e-3, 8)
    assert "fuse the 8" in suggestion(busy, [kernel("aten::mul", 9.9e-3, 1.0, 8)], CPU, None)
    assert "stands out" in suggestion(timeline(10e-3, 10e-3, 1), [kernel("mine", 10e-3, 1.0)], GPU, None)


@pytest.mark.parametrize(
    ("name", "operator", "expected"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "", "pointwise"),
        ("ampere_sgemm_128x64_tn", "aten::addmm", "matrix"),
        ("aten::mkldnn_convolution", "", "matrix"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "", "reduction"),
        ("aten::native_layer_norm", "", "reduction"),
        ("aten::add_", "", "pointwise"),
        ("aten::addmm", "", "matrix"),
        ("Memcpy HtoD (Pageable -> Device)", "", "copy"),
        ("aten::_local_scalar_dense", "", "synchronise"),
        ("gru_persistent_layer", "", "recurrent"),
        ("group_norm_kernel", "", "reduction"),
        ("k17", "aten::sigmoid", "pointwise"),
        ("k17", "", "other"),
    ],
)
def test_family_by_name(name: str, operator: str, expected: str) -> None:
    assert family(name, operator) == expected


seconds = st.floats(min_value=0, max_value=1e3, allow_nan=False)
kernels_strategy = st.lists(
    st.builds(
        kernel,
        name=st.one_of(st.text(max_size=20), st.sampled_from(["aten::add", "sgemm", "softmax", "Memcpy", "lstm"])),
        seconds=seconds,
        share=st.floats(min_value=0, max_value=1),
        calls=st.integers(0, 10_000),
    ),
    max_size=6,
)


@given(
    line=st.builds(timeline, wall=seconds, busy=seconds, launches=st.integers(0, 10**6), copies=seconds),
    kernels=kernels_strategy,
    device=st.sampled_from([GPU, CPU, None]),
    work=st.one_of(st.none(), st.builds(Work, bytes=seconds, flops=seconds)),
)
def test_any_data_gets_a_label_and_no_prediction_saves_more_than_there_is(
    line: Timeline, kernels: list[KernelTime], device: Device | None, work: Work | None
) -> None:
    verdict = judge(line, kernels, device, work)
    assert verdict.bottleneck in get_args(Bottleneck)
    assert verdict.evidence
    found = remedies(line, kernels, device, work)
    assert all(1.0 <= remedy.gain(line.wall_seconds) <= 100.0 + 1e-6 for remedy in found)
    assert [r.saved_seconds for r in found] == sorted((r.saved_seconds for r in found), reverse=True)
    assert suggestion(line, kernels, device, work)


@given(factor=st.floats(min_value=0.5, max_value=2.0))
def test_bytes_alone_never_make_a_program_compute_bound(factor: float) -> None:
    line = timeline(1e-3 * factor, 1e-3 * factor, 1)
    assert judge(line, [kernel("mine", 1e-3, 1.0)], GPU, Work(bytes=4e9)).bottleneck == "memory_bound"


@pytest.mark.parametrize(
    ("work", "device", "seconds", "told"),
    [
        (Work(1e6, 5e11, "fp32"), "split", 10e-3, True),
        (Work(1e6, 5e11, "fp32"), "split", 5e-3, False),  # twice the fp32 rate: it runs on tensor cores already
        (Work(1e6, 5e11, "fp32"), "plain", 20e-3, False),  # no fp16 rate is known to gain by
        (Work(1e6, 5e11, "fp16"), "split", 10e-3, False),
        (Work(1e6, 5e11, "fp32"), "cpu", 10e-3, False),
    ],
)
def test_fp32_products_without_tensor_cores_are_told_how_to_use_them_within_their_class(
    work: Work, device: str, seconds: float, told: bool
) -> None:
    rates = {"fp32": 50e12, "fp16": 750e12 if device != "plain" else 0.0}
    ceilings = Ceilings(copy_bytes_per_second=4e12, flops_per_second=rates, measured_on="2026-11-30")
    where = (CPU if device == "cpu" else GPU).model_copy(update={"ceilings": ceilings})
    line = timeline(seconds, seconds, 1)
    found = suggestion(line, [kernel("ampere_sgemm", seconds, 1.0, operator="aten::mm")], where, work)
    assert ("on tensor cores: each fp32 operand split into two fp16 parts" in found) == told
    assert ("plain TF32 does not" in found) == told
