"""Runs a Program written for cuda on the CPU: its kernels go through the emulator, the rest through PyTorch."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from stitchcuda.hardware.model import Device
from stitchcuda.program.bindings import render
from stitchcuda.program.files import write_program
from stitchcuda.program.model import Program
from stitchcuda.recipes.write import write_program as written_by_recipes
from stitchcuda.task.model import Target, Task
from tests.recipes.support import leaves

EMULATOR = Path(__file__).parent / "emulator"
ARCHITECTURES = ("80", "90a", "120a")

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def gpu(multiprocessors: int = 132) -> Device:
    """An H200, or one with fewer multiprocessors."""
    return Device(
        target=Target(kind="cuda", arch="sm_90a"),
        name="NVIDIA H200",
        multiprocessors=multiprocessors,
        memory_bytes=141 * 10**9,
        cache_bytes=60 * 2**20,
        shared_memory_per_block=232448,
    )


def task_of(source: str, kind: str = "cuda") -> Task:
    """A task from source text."""
    target = Target(kind="cuda", arch="sm_90a") if kind == "cuda" else Target(kind="cpu", arch="native")
    return Task(name="small", origin="test", source=source, target=target)


def emulate(sources: dict[str, str], library: Path) -> None:
    """Compile CUDA sources against the emulator into one shared object."""
    objects = []
    for name, text in sources.items():
        path = library.parent / f"{Path(name).stem}.cu"
        path.write_text(text)
        built = path.with_suffix(".o")
        subprocess.run(
            [
                "g++",
                "-std=c++17",
                "-O2",
                "-w",
                "-fPIC",
                "-x",
                "c++",
                f"-I{EMULATOR}",
                "-c",
                "-o",
                str(built),
                str(path),
            ],
            check=True,
            timeout=120,
        )
        objects.append(str(built))
    subprocess.run(["g++", "-shared", "-o", str(library), *objects], check=True, timeout=60)


def load_emulated(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The Program's module with every ``cuda`` in its Python side replaced by ``cpu``."""
    assert program.manifest is not None
    files = {path: text.replace("'cuda'", "'cpu'").replace('"cuda"', '"cpu"') for path, text in program.files.items()}
    write_program(program.model_copy(update={"files": files}), folder)
    emulate({path: text for path, text in program.files.items() if path.endswith(".cu")}, folder / "kernels.so")
    manifest = program.manifest.model_copy(update={"target": "cpu"})
    (folder / "bindings.py").write_text(render(manifest, "kernels.so"))
    return load_built(folder, monkeypatch)


def load_built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``program`` of a built folder, with its own ``bindings``."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "bindings", raising=False)
    spec = importlib.util.spec_from_file_location("program", folder / "program.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "bindings", raising=False)
    return module


def compiles(source: str, folder: Path, architectures: Sequence[str] = ARCHITECTURES) -> dict[str, str]:
    """ptxas's report for each architecture; raises with the compiler's words when one fails."""
    path = folder / "kernel.cu"
    path.write_text(source)
    reports = {}
    for arch in architectures:
        command = ["nvcc", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-std=c++17", "-O3", "-cubin"]
        command += ["-Xptxas", "-v", "-o", str(folder / "kernel.cubin"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-2000:]
        reports[arch] = done.stderr
    return reports


SIXTEEN_BIT = """
#define INFINITY __builtin_inff()
struct narrow_bfloat16 { uint16_t raw; };
struct narrow_float16 { uint16_t raw; };
inline float from_bfloat16(narrow_bfloat16) { return 0; }
inline float from_float16(narrow_float16) { return 0; }
inline narrow_bfloat16 to_bfloat16(float) { return {}; }
inline narrow_float16 to_float16(float) { return {}; }
"""
NARROW = {
    "#include <cuda_bf16.h>": "#include <cuda_runtime.h>",
    "#include <cuda_fp16.h>": SIXTEEN_BIT,
    "__bfloat162float": "from_bfloat16",
    "__half2float": "from_float16",
    "__float2bfloat16": "to_bfloat16",
    "__float2half": "to_float16",
    "__nv_bfloat16": "narrow_bfloat16",
    "__half": "narrow_float16",
}
"""The toolkit's 16-bit types, which these tests do not use, under names that the emulator does not have."""


def plain_cpp(source: str) -> str:
    """CUDA C++ as the emulator takes it: launches as calls, stand-ins for the toolkit's 16-bit types."""

    def call(found: re.Match[str]) -> str:
        kernel, blocks, threads, names = found.groups()
        addresses = ", ".join(f"(void*)&{name.strip()}" for name in names.split(","))
        return f"void* list[] = {{{addresses}}}; cudaLaunchKernel({kernel}, {blocks}, {threads}, list, 0, nullptr);"

    text = re.sub(r"(\w+)<<<(\d+), (\d+), 0, [^>]*>\(stream\)>>>\(([^)]*)\);", call, source)
    for toolkit, stand_in in NARROW.items():
        text = text.replace(toolkit, stand_in)
    return text


def emulated(
    task: Task,
    recipes: Sequence[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    multiprocessors: int = 132,
    calls: int = 1,
) -> Program:
    """The recipes' program for cuda, after its kernels gave on the CPU what the reference gives, weights moved."""
    program = written_by_recipes(task, gpu(multiprocessors), recipes)
    assert program.manifest is not None
    files = {path: plain_cpp(text) if path.endswith(".cu") else text for path, text in program.files.items()}
    module = load_emulated(program.model_copy(update={"files": files}), folder, monkeypatch)
    torch.manual_seed(1)
    new = module.ModelNew()
    with torch.no_grad():
        for value in new.parameters():
            value.add_(0.1 * torch.randn_like(value))
    scope: dict[str, Any] = {}
    exec(task.source, scope)
    reference = scope["Model"]()
    reference.load_state_dict(new.state_dict())
    reference.train(new.training)
    for _ in range(calls):
        inputs = scope["get_inputs"]()
        with torch.no_grad():
            got, expected = leaves(new(*inputs)), leaves(reference(*inputs))
        for mine, eager in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, eager, rtol=2e-5, atol=2e-5)
    return program
