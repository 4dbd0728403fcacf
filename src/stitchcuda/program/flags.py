"""Compiler flags that a Program's native sources are built with, in the evaluation and in every export."""

from __future__ import annotations

CXX_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-w")
"""No -ffast-math: it reorders sums and drops NaN and infinity, which strict fp32 must keep."""

NVCC_FLAGS = ("-O3", "-std=c++17", "-lineinfo", "-w", "-Xcompiler", "-fPIC")
NVCC_LINK_FLAGS = ("-cudart", "static")
"""The static runtime shares torch's primary context, so streams and pointers are interchangeable, and it does
not depend on which libcudart torch's wheel brought."""

CUDA_SUFFIXES = (".cu",)
CPP_SUFFIXES = (".cpp", ".cc")


def native_sources(files: dict[str, str], target: str) -> list[str]:
    """Paths of the sources that are compiled for a target, sorted."""
    suffixes = CUDA_SUFFIXES if target == "cuda" else CPP_SUFFIXES
    return sorted(path for path in files if path.endswith(suffixes))


NATIVE_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp", ".inl")


def is_native(path: str) -> bool:
    """Whether a file of a Program is read by a compiler: a source or a header."""
    return path.endswith(NATIVE_SUFFIXES)
