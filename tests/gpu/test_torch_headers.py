"""Extensions built against our own headers, on a real GPU: element types, streams, graphs, errors, an evaluation."""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from stitchcuda.evaluation import torch_inline
from stitchcuda.evaluation.build_cache import BuildCache
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.torch_build import build_extensions
from stitchcuda.hardware.detect import detect
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAException.h>

template <typename scalar_t>
__global__ void gate_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[i] > scalar_t(0) ? x[i] * scalar_t(2) : static_cast<scalar_t>(-float(x[i]));
}
torch::Tensor gate(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor, not on ", x.device());
  const at::cuda::OptionalCUDAGuard guard(at::device_of(x));
  x = x.contiguous();
  auto y = torch::empty_like(x);
  const int64_t n = x.numel();
  const unsigned blocks = unsigned((n + 255) / 256);
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "gate", ([&] {
    gate_kernel<scalar_t><<<blocks, 256, 0, stream>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

__global__ void transpose_kernel(const torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> x,
                                 torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y;
  if (i < x.size(1)) y[i][j] = x[j][i];
}
torch::Tensor transposed(torch::Tensor x) {
  auto y = torch::zeros({x.size(1), x.size(0)}, x.options());
  const dim3 blocks((x.size(1) + 63) / 64, x.size(0));
  transpose_kernel<<<blocks, 64, 0, at::cuda::getCurrentCUDAStream().stream()>>>(
      x.packed_accessor32<float, 2, torch::RestrictPtrTraits>(),
      y.packed_accessor32<float, 2, torch::RestrictPtrTraits>());
  AT_CUDA_CHECK(cudaGetLastError());
  return y;
}

torch::Tensor wrong_launch(torch::Tensor x) {
  gate_kernel<float><<<1, 4096>>>(x.data_ptr<float>(), x.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return x;
}
int64_t current_stream() { return reinterpret_cast<int64_t>(at::cuda::getCurrentCUDAStream().stream()); }
int64_t processors() { return at::cuda::getCurrentDeviceProperties()->multiProcessorCount; }
"""

CPP = """
torch::Tensor gate(torch::Tensor x);
torch::Tensor transposed(torch::Tensor x);
torch::Tensor wrong_launch(torch::Tensor x);
int64_t current_stream();
int64_t processors();
"""

CALL = f"""
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    name="gates", cpp_sources={CPP!r}, cuda_sources={CUDA!r},
    functions=["gate", "transposed", "wrong_launch", "current_stream", "processors"],
)
"""

PROGRAM = f"""
import torch
from torch import nn
{CALL}
class ModelNew(nn.Module):
    def forward(self, x):
        return ext.gate(x)
"""

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x * 2, -x)

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu_torch_headers")


@pytest.fixture(scope="module")
def ext(cache: Path) -> ModuleType:
    began = time.monotonic()
    program = Program(files={"program.py": CALL})
    (extension,) = build_extensions(
        program, detect("cuda").target, cache=BuildCache(cache), deadline=began + 300, headers=("own",)
    ).each
    assert extension.library is not None, f"{extension.why} {extension.error}"
    print(f"\nbuilt in {time.monotonic() - began:.2f} s")
    return torch_inline._load(extension.library, "gates")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_kernels_are_launched_for_every_element_type(ext: ModuleType, dtype: torch.dtype) -> None:
    x = torch.randn(1000, 37, device="cuda").to(dtype)
    torch.testing.assert_close(ext.gate(x), torch.where(x > 0, x * 2, -x), rtol=0, atol=0)
    torch.testing.assert_close(ext.gate(x.t()), torch.where(x > 0, x * 2, -x).t(), rtol=0, atol=0)


def test_packed_accessors_follow_strides(ext: ModuleType) -> None:
    x = torch.randn(65, 130, device="cuda")[:, ::2]
    torch.testing.assert_close(ext.transposed(x), x.t().contiguous(), rtol=0, atol=0)


def test_the_current_stream_is_torchs(ext: ModuleType) -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    assert ext.current_stream() == torch.cuda.current_stream().cuda_stream
    with torch.cuda.stream(stream):
        assert ext.current_stream() == stream.cuda_stream
    assert ext.processors() == torch.cuda.get_device_properties(0).multi_processor_count


def test_calls_can_be_captured_into_a_graph(ext: ModuleType) -> None:
    x = torch.randn(1 << 16, device="cuda")
    ext.gate(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ext.gate(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, torch.where(x > 0, x * 2, -x), rtol=0, atol=0)


def test_errors_name_what_was_wrong(ext: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="x must be a CUDA tensor, not on cpu"):
        ext.gate(torch.ones(3))
    with pytest.raises(RuntimeError, match="CUDA error: invalid"):
        ext.wrong_launch(torch.ones(3, device="cuda"))
    assert ext.gate(torch.ones(3, device="cuda")).sum().item() == 6


def test_a_call_costs_microseconds(ext: ModuleType) -> None:
    x = torch.randn(256, device="cuda")
    for _ in range(200):
        ext.gate(x)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(2000):
        ext.gate(x)
    each = (time.perf_counter() - began) / 2000
    torch.cuda.synchronize()
    print(f"\n{each * 1e6:.1f} us a call, with an allocation and a launch")
    assert each < 50e-6


def test_an_evaluation_uses_the_library(cache: Path) -> None:
    device = detect("cuda")
    task = Task(name="gate", origin="test", source=TASK, target=device.target)
    facts = TaskFacts(
        inputs=[],
        outputs=[],
        parameters=0,
        stochastic=False,
        seedable=False,
        training=True,
        mutates_state=False,
        eager_seconds=0.0001,
    )
    settings = EvaluationSettings(baselines=False)
    with Evaluator(task, facts, device, cache=cache, settings=settings) as evaluator:
        evaluation = evaluator.evaluate(Program(files={"program.py": PROGRAM}))
    assert evaluation.status == "correct", evaluation.message + evaluation.log
    assert evaluation.provenance["extensions"] == "own headers"
    assert evaluation.census is not None
    assert evaluation.census.own > 0.9, evaluation.census
    print(f"\n{evaluation.seconds}")
