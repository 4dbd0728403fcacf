"""Tuning: variants compiled for real, launched through a stand-in for CUDA's driver (see ``driver_stub.cpp``); on a
real one by ``tests/gpu``."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stitchcuda.errors import DeviceError
from stitchcuda.evaluation.build_tools import find_cxx
from stitchcuda.evaluation.device_gate import Gate
from stitchcuda.evaluation.nvrtc import KernelSource
from stitchcuda.evaluation.nvrtc_plan import KernelProgram
from stitchcuda.evaluation.nvrtc_tune import Tuner, tune
from tests.evaluation.test_nvrtc import there_is_nvrtc

pytestmark = pytest.mark.skipif(not there_is_nvrtc(), reason="there is no NVRTC")

SOURCE = """extern "C" __global__ void scale(const float* x, float* y, long long n, float factor) {
  const long long i = blockIdx.x * static_cast<long long>(BLOCK) + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}
extern "C" __global__ void wrong(float* y) { y[0] = 1; }
extern "C" __global__ void fault(float* y) { y[1ll << 50] = 1; }
extern "C" __global__ void hang(float* y) { for (;;) y[0] += 1; }
"""
N = 1000
X = np.linspace(-1, 1, N, dtype=np.float32)


def variant(block: int | str = 128, kernel: str = "scale", elements: str = "n") -> KernelProgram:
    arguments = [{"buffer": "x"}, {"buffer": "y"}, {"value": "n", "dtype": "int64"}, {"value": 3.0, "dtype": "float32"}]
    launch = {
        "kernel": kernel,
        "grid": ("ceil_div(n, BLOCK)", 1, 1),
        "block": ("BLOCK", 1, 1),
        "arguments": arguments if kernel == "scale" else [{"buffer": "y"}],
    }
    buffers = {"x": {"elements": elements, "role": "input"}, "y": {"elements": "n", "role": "output"}}
    code = KernelSource(source=SOURCE, kernels=("scale", "wrong", "fault", "hang"), defines={"BLOCK": block})
    return KernelProgram.model_validate(
        {"code": code, "plan": {"buffers": buffers, "launches": [launch]}, "name": f"{kernel} {block}"}
    )


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("driver_stub.cpp")
    subprocess.run([find_cxx(), "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return str(library)


def tuner(driver: str, cache: Path | None = None, **changes: Any) -> Tuner:
    options: dict[str, Any] = {"sizes": {"n": N}, "inputs": {"x": X}, "expected": {"y": 3 * X}, "workers": 2}
    return Tuner("sm_90", cache=cache, gate=Gate(None), driver=driver, **(options | changes))


@pytest.fixture(scope="module")
def bench(driver: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuner]:
    with tuner(driver, tmp_path_factory.mktemp("cache"), timeout_s=3) as one:
        yield one


def test_every_variant_gets_its_own_verdict_and_the_next_is_not_disturbed(bench: Tuner) -> None:
    variants = [variant(64), variant(kernel="fault"), variant("oops"), variant(4096), variant(kernel="wrong")]
    variants += [variant(kernel="hang"), variant(256)]
    told = list(bench.run(variants))
    assert [each.outcome for each in told] == [
        "correct",
        "crashed",
        "build_failed",
        "refused",
        "wrong_output",
        "timed_out",
        "correct",
    ], told
    assert told[0].seconds == pytest.approx(0.5e-3)
    assert told[0].n >= 1
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in told[1].message
    assert "y is off by" in told[4].message or "expected" in told[4].message


def test_one_process_serves_all_variants_and_the_fastest_correct_one_comes_first(bench: Tuner) -> None:
    told = tune(bench, [variant(kernel="wrong"), variant(32), variant(512)])
    assert [each.outcome for each in told] == ["correct", "correct", "wrong_output"], told
    launcher = bench._launcher
    assert launcher is not None
    list(bench.run([variant(1024), variant(96)]))
    assert bench._launcher is launcher


def test_a_clock_counts_while_variants_run(bench: Tuner) -> None:
    assert {span.hold for span in bench.gate.spans} == {"start", "clock"}


def test_inputs_of_another_size_are_refused(bench: Tuner) -> None:
    (told,) = bench.run([variant(elements="2 * n")])
    assert told.outcome == "refused"
    assert "{'x': 8000}" in told.message


def test_infinities_and_bfloat16_are_compared(driver: str, bench: Tuner) -> None:
    wide = X.copy()
    wide[3] = np.inf
    with tuner(driver, inputs={"x": wide}, expected={"y": 3 * wide}) as one:
        assert [each.outcome for each in one.run([variant()])] == ["correct"]
    with tuner(driver, inputs={"x": wide}, expected={"y": 3 * X}) as one:
        (told,) = one.run([variant()])
        assert told.message.startswith("y[3] is inf, expected")


def test_without_a_device_it_says_so(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_NO_DEVICE", "1")
    with tuner(driver) as one, pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE"):
        list(one.run([variant()]))
    with tuner("libcuda-is-not-here.so") as one, pytest.raises(DeviceError, match="kernels cannot be launched here"):
        list(one.run([variant()]))
