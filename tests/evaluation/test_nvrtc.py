"""Device code by NVRTC: compiled in tens of milliseconds, confined and cached; errors that a reader can act on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitchcuda.errors import ToolMissing
from stitchcuda.evaluation.integrity.sass import find_cuobjdump
from stitchcuda.evaluation.nvrtc import KernelSource, Nvrtc, cuda_includes, find_nvrtc, source_text

SCALE = """extern "C" __global__ void scale(const float* x, float* y, long long n) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = FACTOR * x[i];
}
template <int N> __global__ void add(float* x) { x[threadIdx.x] += N; }
"""


def there_is_nvrtc() -> bool:
    try:
        return find_nvrtc().is_file()
    except ToolMissing:
        return False


pytestmark = pytest.mark.skipif(not there_is_nvrtc(), reason="there is no NVRTC")


def scale(factor: str = "2.f", source: str = SCALE, **changes: object) -> KernelSource:
    fields = {"source": source, "kernels": ("scale",), "defines": {"FACTOR": factor}} | changes
    return KernelSource.model_validate(fields)


@pytest.fixture(scope="module")
def nvrtc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nvrtc]:
    with Nvrtc("sm_90", cache=tmp_path_factory.mktemp("cache"), workers=2) as compilers:
        yield compilers


def test_a_source_becomes_machine_code_with_the_names_of_its_kernels(nvrtc: Nvrtc) -> None:
    compiled = nvrtc.compile(scale(kernels=("scale", "add<3>")))
    assert compiled.ok, compiled.log
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.names == {"scale": "scale", "add<3>": "_Z3addILi3EEvPf"}


def test_the_machine_code_is_of_the_architecture(nvrtc: Nvrtc, tmp_path: Path) -> None:
    tool = find_cuobjdump([str(nvrtc.library.parent.parent)])
    if tool is None:
        pytest.skip("there is no cuobjdump")
    (tmp_path / "k.cubin").write_bytes(nvrtc.compile(scale("3.f")).cubin)
    listing = subprocess.run([tool, "-sass", str(tmp_path / "k.cubin")], capture_output=True, text=True, check=True)
    assert "sm_90a" in listing.stdout
    assert "Function : scale" in listing.stdout
    assert "FMUL" in listing.stdout


def test_the_second_time_nothing_is_compiled(nvrtc: Nvrtc) -> None:
    first, second = (nvrtc.compile(scale("7.f")) for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    assert (first.cubin, first.names) == (second.cubin, second.names)
    assert not nvrtc.compile(scale("8.f")).cached
    assert not nvrtc.compile(scale("7.f", max_registers=32)).cached


def test_an_error_is_told_with_the_line_of_the_source_as_it_was_given(nvrtc: Nvrtc) -> None:
    compiled = nvrtc.compile(scale("nothing"))
    assert not compiled.ok
    assert compiled.log.startswith('kernel.cu:3: error: identifier "nothing" is undefined')
    assert ">    3 | " in compiled.log


@pytest.mark.skipif(not cuda_includes(), reason="CUDA's headers are not here")
def test_library_headers_come_before_the_macros_and_lines_stay(nvrtc: Nvrtc) -> None:
    source = "// half\n#include <cuda_fp16.h>\n\n" + SCALE
    assert source_text(scale(source=source)).startswith(
        "// half\n#include <cuda_fp16.h>\n\n#pragma nv_hdrstop\n#define"
    )
    for factor in ("__half2float(__float2half(2.f))", "3.f"):
        assert nvrtc.compile(scale(factor, source)).ok
    assert nvrtc.compile(scale("nothing", source)).log.startswith("kernel.cu:6: error")


def test_own_headers_are_found(nvrtc: Nvrtc) -> None:
    headers = {"factor.cuh": "#pragma once\n#define FACTOR 5.f\n"}
    compiled = nvrtc.compile(scale(source='#include "factor.cuh"\n' + SCALE, headers=headers, defines={}))
    assert compiled.ok, compiled.log


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (scale(source='#include "/etc/passwd"\n' + SCALE), "leads outside"),
        (scale(kernels=()), "no kernel is named"),
        (scale(kernels=("scale;",)), "no name expression"),
        (scale(defines={"A B": 1}), "no macro name"),
    ],
)
def test_what_leads_outside_or_is_no_name_is_refused(nvrtc: Nvrtc, what: KernelSource, sentence: str) -> None:
    compiled = nvrtc.compile(what)
    assert not compiled.ok
    assert sentence in compiled.log


def test_a_kernel_that_is_not_there_is_an_error(nvrtc: Nvrtc) -> None:
    assert "nowhere" in nvrtc.compile(scale(kernels=("nowhere",))).log


def test_a_compiler_that_takes_too_long_or_dies_is_replaced(tmp_path: Path) -> None:
    with Nvrtc("sm_90", workers=1) as compilers:
        late = compilers.compile(scale(), timeout_s=0.0)
        assert not late.ok
        assert "took longer" in late.log
        assert compilers.compile(scale()).ok
        (worker,) = compilers._free
        os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        assert compilers.compile(scale("3.f")).ok
        folders = [each.work for each in compilers._free]
    assert not any(folder.exists() for folder in folders)


def test_variants_take_a_fraction_of_a_second_each(nvrtc: Nvrtc) -> None:
    nvrtc.compile(scale("100.f"))
    began = time.process_time()
    assert all(nvrtc.compile(scale(f"{number}.5f")).ok for number in range(10))
    assert time.process_time() - began < 1  # of this process: the compilers stay up


def test_without_nvrtc_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.evaluation.nvrtc.glob.glob", lambda pattern: [])
    with pytest.raises(ToolMissing, match="pip install nvidia-cuda-nvrtc"):
        find_nvrtc()
