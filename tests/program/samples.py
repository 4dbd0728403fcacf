"""Small native Programs that the tests of this room build, run and export."""

from __future__ import annotations

from stitchcuda.program.model import Argument, Launcher, Manifest, Program

ENTRY = """from __future__ import annotations

import torch
from bindings import scale_shift


class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.shift = torch.nn.Parameter(torch.ones(8))

    def forward(self, x, use_shift=True):
        y = torch.empty_like(x)
        scale_shift(x, self.shift.detach() if use_shift else None, y, x.numel(), self.factor)
        return y
"""

CPU_SOURCE = """#include <cstdint>
#include "common.h"

extern "C" int scale_shift(const float* x, const float* shift, float* y, int64_t n, float factor, void*) {
  if (n == 13) return 7;
  #pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) y[i] = affine(x[i], factor, shift ? shift[i % 8] : 0.f);
  return 0;
}
"""

CUDA_SOURCE = """#include <cstdint>
#include <cuda_runtime.h>
#include "common.h"

__global__ void scale_shift_kernel(const float* x, const float* shift, float* y, int64_t n, float factor) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = affine(x[i], factor, shift ? shift[i % 8] : 0.f);
}

extern "C" int scale_shift(const float* x, const float* shift, float* y, int64_t n, float factor, void* stream) {
  scale_shift_kernel<<<unsigned((n + 255) / 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, shift, y, n, factor);
  return cudaGetLastError();
}
"""

HEADER = """#pragma once
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif
HOST_DEVICE inline float affine(float x, float factor, float shift) { return x * factor + shift; }
"""


def launcher(source: str) -> Launcher:
    """Of the sample: y = x * factor + shift, the shift being optional and repeated every 8 elements."""
    return Launcher(
        name="scale_shift",
        source=source,
        arguments=[
            Argument(name="x", dtype="float32", alignment=16),
            Argument(name="shift", dtype="float32", optional=True),
            Argument(name="y", dtype="float32", role="output"),
            Argument(name="n", kind="scalar", dtype="int64"),
            Argument(name="factor", kind="scalar", dtype="float32"),
        ],
    )


def cpu_program(source: str = CPU_SOURCE) -> Program:
    """The sample in C++ with OpenMP."""
    files = {"program.py": ENTRY, "kernels.cpp": source, "common.h": HEADER}
    return Program(files=files, manifest=Manifest(target="cpu", launchers=[launcher("kernels.cpp")]))


def cuda_program(source: str = CUDA_SOURCE) -> Program:
    """The sample in CUDA C++."""
    files = {"program.py": ENTRY, "kernels.cu": source, "common.h": HEADER}
    return Program(files=files, manifest=Manifest(target="cuda", launchers=[launcher("kernels.cu")]))
