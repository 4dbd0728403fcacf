"""Device code compiled by NVRTC and launched by the harness on a real device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stitchcuda.errors import ToolMissing
from stitchcuda.evaluation.nvrtc import KernelSource, find_nvrtc
from stitchcuda.evaluation.nvrtc_plan import KernelProgram
from stitchcuda.evaluation.nvrtc_tune import Tuner, tune
from stitchcuda.hardware.detect import detect

SOURCE = """#include <cuda_fp16.h>

extern "C" __global__ void scale(const float* x, float* y, long long n, float factor) {
  extern __shared__ float tile[];
  for (long long i = blockIdx.x * static_cast<long long>(BLOCK) + threadIdx.x; i < n; i += gridDim.x * BLOCK) {
    tile[threadIdx.x] = x[i];
    y[i] = __half2float(__float2half(1.f)) * factor * tile[threadIdx.x];
  }
}
extern "C" __global__ void lazy(const float* x, float* y, long long n, float factor) {
  if (blockIdx.x == 0 && threadIdx.x == 0) y[0] = factor * x[0];
}
extern "C" __global__ void fault(const float* x, float* y, long long n, float factor) { y[1ll << 50] = 1; }
extern "C" __global__ void hang(const float* x, float* y, long long n, float factor) {
  volatile float* forever = y;
  for (;;) forever[0] = factor;
}
"""
N = 1 << 24
X = np.random.default_rng(7).standard_normal(N, dtype=np.float32)


def variant(block: int = 256, per_thread: int = 1, kernel: str = "scale", shared: int | str = "4 * BLOCK") -> Any:
    launch = {
        "kernel": kernel,
        "grid": (f"ceil_div(n, BLOCK * {per_thread})", 1, 1),
        "block": ("BLOCK", 1, 1),
        "shared_bytes": shared,
        "arguments": [
            {"buffer": "x"},
            {"buffer": "y"},
            {"value": "n", "dtype": "int64"},
            {"value": 3.0, "dtype": "float32"},
        ],
    }
    buffers = {"x": {"elements": "n", "role": "input"}, "y": {"elements": "n", "role": "output"}}
    code = KernelSource(source=SOURCE, kernels=("scale", "lazy", "fault", "hang"), defines={"BLOCK": block})
    return KernelProgram.model_validate({"code": code, "plan": {"buffers": buffers, "launches": [launch]}})


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuner]:
    try:
        find_nvrtc()
    except ToolMissing as error:
        pytest.skip(str(error))
    cache: Path = tmp_path_factory.mktemp("nvrtc")
    with Tuner(
        detect("cuda").target.arch,
        sizes={"n": N},
        inputs={"x": X},
        expected={"y": 3 * X},
        cache=cache,
        timeout_s=20,
    ) as one:
        yield one


def test_variants_are_timed_and_the_fastest_comes_first(bench: Tuner) -> None:
    told = tune(bench, [variant(block, per) for block in (64, 256, 1024) for per in (1, 8)])
    assert [each.outcome for each in told] == ["correct"] * 6, told
    assert told[0].seconds <= told[-1].seconds
    # 128 MB read and written: no device does that in 10 us, and none takes 100 ms.
    assert 1e-5 < told[0].seconds < 0.1


def test_more_shared_memory_than_usual_is_granted(bench: Tuner) -> None:
    (told,) = bench.run([variant(shared=90 << 10)])
    assert told.outcome == "correct", told


def test_what_breaks_the_device_breaks_nothing_else(bench: Tuner) -> None:
    variants = [variant(kernel="fault"), variant(), variant(kernel="hang"), variant(kernel="lazy"), variant(512)]
    told = list(bench.run(variants))
    assert [each.outcome for each in told] == ["crashed", "correct", "timed_out", "wrong_output", "correct"], told
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in told[0].message
