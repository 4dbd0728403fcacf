"""A kernel program as native sources: the same launches by a C launcher, with expressions of the same value."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.build_tools import find_cxx
from stitchcuda.evaluation.nvrtc_export import _HELPERS, in_cpp, native_sources
from stitchcuda.evaluation.nvrtc_plan import KernelProgram, evaluate
from stitchcuda.program.model import Manifest, Program
from stitchcuda.task.model import Target

EXPRESSIONS = [
    "n",
    "ceil_div(n, B)",
    "-n // B",
    "-n % B",
    "(n + B - 1) // B * 2",
    "min(n, 7, B) + max(1, n - 2000)",
    "next_power_of_two(n)",
    "2 if n > B else ceil_div(B, 3)",
]
SIZES = [{"n": 1000, "B": 256}, {"n": 3, "B": 7}, {"n": 4096, "B": 1}]


def test_expressions_have_the_same_value_in_cpp(tmp_path: Path) -> None:
    values = ", ".join(in_cpp(expression, SIZES[0]) for expression in EXPRESSIONS)
    source = f'{_HELPERS}\nextern "C" void all(long long n, long long B, long long* y) {{\n'
    source += (
        f"  const long long v[] = {{{values}}};\n  for (int i = 0; i < {len(EXPRESSIONS)}; ++i) y[i] = v[i];\n}}\n"
    )
    (tmp_path / "all.cpp").write_text(source)
    library = str(tmp_path / "all.so")
    subprocess.run([find_cxx(), "-shared", "-fPIC", str(tmp_path / "all.cpp"), "-o", library], check=True)
    got = (ctypes.c_longlong * len(EXPRESSIONS))()
    for sizes in SIZES:
        ctypes.CDLL(library).all(ctypes.c_longlong(sizes["n"]), ctypes.c_longlong(sizes["B"]), got)
        assert list(got) == [evaluate(expression, sizes) for expression in EXPRESSIONS]


def program(**code: object) -> KernelProgram:
    source = """#include <cuda_fp16.h>
#include "twice.cuh"
template <int N> __global__ void first(const float4* x, float* scratch, long long n) {
  if (threadIdx.x < n) scratch[threadIdx.x] = twice(x[threadIdx.x / 4].x) + N + BLOCK;
}
__global__ void second(const float* scratch, __half* y, float factor) {
  y[threadIdx.x] = __float2half(scratch[threadIdx.x] * factor);
}
"""
    return KernelProgram.model_validate(
        {
            "code": {
                "source": source,
                "kernels": ("first<3>", "second"),
                "defines": {"BLOCK": 64},
                "headers": {"twice.cuh": "#pragma once\n__device__ inline float twice(float x) { return x + x; }\n"},
            }
            | code,
            "plan": {
                "buffers": {
                    "x": {"elements": "n", "role": "input"},
                    "scratch": {"elements": "n"},
                    "y": {"elements": "n", "dtype": "float16", "role": "output"},
                },
                "launches": [
                    {
                        "kernel": "first<3>",
                        "grid": ("ceil_div(n, BLOCK)", 1, 1),
                        "block": ("BLOCK", 1, 1),
                        "shared_bytes": "min(n, 100000)",
                        "arguments": ({"buffer": "x"}, {"buffer": "scratch"}, {"value": "n", "dtype": "int64"}),
                    },
                    {
                        "kernel": "second",
                        "arguments": (
                            {"buffer": "scratch"},
                            {"buffer": "y"},
                            {"value": 0.5, "dtype": "float32"},
                        ),
                    },
                ],
            },
        }
    )


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_the_sources_build_as_a_native_program(tmp_path: Path) -> None:
    files, launcher = native_sources(program(), ["n"])
    assert [(argument.name, argument.role, argument.kind) for argument in launcher.arguments] == [
        ("x", "input", "tensor"),
        ("scratch", "output", "tensor"),
        ("y", "output", "tensor"),
        ("n", "input", "scalar"),
    ]
    entry = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    native = Program(files={"program.py": entry, **files}, manifest=Manifest(target="cuda", launchers=[launcher]))
    built = build(native, Target(kind="cuda", arch="sm_90"), cache=tmp_path)
    assert built.ok, built.log
    assert len(built.kernels) == 2


def test_what_native_sources_cannot_say_is_refused() -> None:
    with pytest.raises(ProgramError, match="__launch_bounds__"):
        native_sources(program(max_registers=64), ["n"])
    with pytest.raises(ProgramError, match="names n"):
        native_sources(program(), ["m"])
