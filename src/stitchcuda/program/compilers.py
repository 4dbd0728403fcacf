"""Where the compilers and torch's OpenMP runtime are, and what CPU this is: one look for evaluations and exports.

An exported package carries the text below, so that it looks where the evaluation looked. Hence the standard library
alone, and quoted unions: the package's Python may be older than this one.
"""

import functools
import importlib.util
import os
import shutil
from pathlib import Path

CUDA_FOLDERS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda")


def look_for_nvcc() -> "str | None":
    """Path of nvcc: under CUDA_HOME or CUDA_PATH, on PATH, in the usual folders, or in NVIDIA's Python wheels."""
    named = [home for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
    for home in named:
        if os.access(f"{home}/bin/nvcc", os.X_OK):
            return f"{home}/bin/nvcc"
    if found := shutil.which("nvcc"):
        return found
    for home in CUDA_FOLDERS:
        if os.access(f"{home}/bin/nvcc", os.X_OK):
            return f"{home}/bin/nvcc"
    specification = importlib.util.find_spec("nvidia")
    for folder in (specification.submodule_search_locations or []) if specification else []:
        for path in sorted(Path(folder).glob("*/bin/nvcc")):
            return str(path)
    return None


def look_for_cxx() -> "str | None":
    """Path of the C++ compiler: $CXX, else g++, else c++."""
    for name in (os.environ.get("CXX", ""), "g++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    return None


@functools.cache
def torch_openmp() -> "Path | None":
    """The OpenMP runtime that torch's wheel ships (``libgomp.so.1`` or ``libgomp-HASH.so.1``), if it does."""
    specification = importlib.util.find_spec("torch")
    if specification is None or not specification.submodule_search_locations:
        return None
    folder = Path(next(iter(specification.submodule_search_locations)))
    for place in (folder / "lib", folder.parent / "torch.libs"):
        for path in sorted(place.glob("libgomp*.so*")):
            return path
    return None


def openmp_link() -> "list[str]":
    """Linker flags for the OpenMP runtime that torch has loaded, so that both share one pool of threads: two pools
    whose idle threads spin fight over the cores."""
    runtime = torch_openmp()
    return ["-fopenmp"] if runtime is None else [f"-L{runtime.parent}", f"-l:{runtime.name}", "-lpthread", "-lm"]


@functools.cache
def cpu_features() -> str:
    """What -march=native depends on: vendor, family, model and flags of the first CPU."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return ""
    fields = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return ";".join(value.strip() for name, value in fields if name.strip() in wanted)
