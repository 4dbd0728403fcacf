"""What was built is looked at: imports, initialisers, taken names, kernels, matrix instructions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stitchcuda.evaluation.integrity import binary, sass
from stitchcuda.evaluation.integrity.elf import Elf, ElfError

HONEST = """
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>
static std::map<std::string, int> sizes{{"a", 1}};
static std::mutex lock;
extern "C" int scale(const float* x, float* y, long n, void*) {
  std::lock_guard<std::mutex> held(lock);
  std::vector<float> scratch(n + sizes["a"]);
  #pragma omp parallel for
  for (long i = 0; i < n; ++i) y[i] = std::exp(x[i]) + scratch[i];
  if (n < 0) { fprintf(stderr, "bad n"); exit(EXIT_FAILURE); }
  std::memcpy(y, x, 4);
  return 0;
}
"""

DISHONEST = """
#include <chrono>
#include <fstream>
#include <thread>
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
extern "C" int clock_gettime(int, struct timespec*) { return 0; }
__attribute__((constructor)) static void at_load() { if (fork()) _exit(0); }
extern "C" int scale(void* p) {
  std::ifstream file("x");
  std::thread([] {}).detach();
  mprotect(p, 4096, 7);
  dup2(1, 9);
  dlsym(nullptr, "f");
  signal(14, nullptr);
  return std::chrono::steady_clock::now().time_since_epoch().count() + (getenv("A") != nullptr);
}
"""

KERNELS = """
namespace { __global__ void hidden(float* x) { *x = 1; } }
template <int N> __global__ void templated(float* x) { *x = N; }
static __global__ void local(float* x) { *x = 2; }
extern "C" __global__ void plain(float* x) { *x = 3; }
__global__ void idle(float* x) { *x = 4; }
extern "C" int go(float* x, void* stream) {
  auto s = static_cast<cudaStream_t>(stream);
  hidden<<<1, 1, 0, s>>>(x); templated<7><<<1, 1, 0, s>>>(x); local<<<1, 1, 0, s>>>(x); plain<<<1, 1, 0, s>>>(x);
  return cudaGetLastError();
}
"""


def compiled(folder: Path, text: str, suffix: str = ".cpp") -> dict[Path, str]:
    source = folder / f"kernels{suffix}"
    source.write_text(text)
    tool: list[str | Path] = (
        ["nvcc", "-arch=sm_90", "-Xcompiler", "-fPIC"] if suffix == ".cu" else ["g++", "-fPIC", "-fopenmp"]
    )
    subprocess.run([*tool, "-O2", "-c", source, "-o", folder / "k.o"], check=True)
    return {folder / "k.o": source.name}


def test_an_honest_object_needs_nothing_odd(tmp_path: Path) -> None:
    objects = compiled(tmp_path, HONEST)
    assert binary.object_hits(objects) == []
    library = tmp_path / "k.so"
    subprocess.run(["g++", "-shared", "-fopenmp", *map(str, objects), "-o", str(library)], check=True)
    assert binary.library_hits(library) == []
    assert "scale" in binary.exported(library)


def test_what_an_object_asks_for_runs_and_takes_is_seen(tmp_path: Path) -> None:
    hits = binary.object_hits(compiled(tmp_path, DISHONEST))
    assert {hit.rule for hit in hits} == {
        *("background_work", "controls_process", "ends_process", "file_access", "interposes", "patches_code"),
        *("reads_clock", "runtime_loading", "runs_later", "static_initialiser", "writes_descriptors"),
    }
    assert {hit.path for hit in hits} == {"kernels.cpp"}


AT_LOAD = {
    "init": """
extern "C" void early() {}
asm(".pushsection .init,\\"ax\\",@progbits\\n call early\\n .popsection");
""",
    "resolver": """
static int plain(int x) { return x; }
extern "C" { static int (*resolve())(int) { return plain; } }
static int chosen(int) __attribute__((ifunc("resolve")));
extern "C" int scale(int x) { return chosen(x); }
""",
}


@pytest.mark.parametrize("source", AT_LOAD.values(), ids=AT_LOAD)
def test_code_that_runs_at_load_without_an_initialiser_is_seen(tmp_path: Path, source: str) -> None:
    assert "static_initialiser" in {hit.rule for hit in binary.object_hits(compiled(tmp_path, source))}


def test_clones_for_several_processors_are_not_held_against_a_program(tmp_path: Path) -> None:
    source = """
__attribute__((target_clones("avx2", "default"))) static int clone(int x) { return x * 3; }
extern "C" int scale(int x) { return clone(x); }
"""
    assert {hit.rule for hit in binary.object_hits(compiled(tmp_path, source))} <= {"odd_object"}


def test_a_library_that_loads_or_searches_elsewhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "other.cpp").write_text("int other() { return 1; }")
    other, library = tmp_path / "libother.so", tmp_path / "k.so"
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "other.cpp", "-o", other], check=True)
    (tmp_path / "k.cpp").write_text("int other(); int f() { return other(); }")
    link = ["g++", "-shared", "-fPIC", str(tmp_path / "k.cpp"), f"-L{tmp_path}", "-lother", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*link, "-o", str(library)], check=True)
    assert [hit.what for hit in binary.library_hits(library)] == ["loads libother.so", f"searches {tmp_path}"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_kernels_are_known_by_the_names_a_trace_has(tmp_path: Path) -> None:
    objects = compiled(tmp_path, KERNELS, ".cu")
    names = binary.kernel_names(objects)
    assert {"_Z9templatedILi7EEvPf", "_Z5localPf", "plain", "_Z4idlePf"} <= {
        name.replace("_ZL", "_Z") for name in names
    }
    assert any(name.endswith("6hiddenEPf") for name in names)
    assert len(names) == 5
    assert binary.object_hits(objects) == []


@pytest.mark.parametrize("cut", [0, 3, 63, 64, 500, 3000])
def test_a_damaged_file_is_refused(tmp_path: Path, cut: int) -> None:
    (path,) = compiled(tmp_path, "int f() { return 1; }")
    data = path.read_bytes()[:cut]
    if cut < len(path.read_bytes()):
        with pytest.raises(ElfError):
            Elf(data)
    (tmp_path / "cut.o").write_bytes(data)
    assert {hit.rule for hit in binary.object_hits({tmp_path / "cut.o": "k.cpp"})} <= {"odd_object"}


LISTING = """
        Function : _Z4gemmPKf
        /*0100*/                   HGMMA.64x128x8.F32.TF32 R24, gdesc[UR4], R24 ;
        /*0110*/                   HGMMA.64x128x8.F32.TF32 R24, gdesc[UR8], R24, gsb0 ;
        /*0120*/              @!P0 HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0130*/                   DMMA.884 R2, R4, R6, R2 ;
        /*0140*/                   FFMA R0, R1, R2, R3 ;
        /*0150*/                   MUFU.EX2 R0, R1 ;
        /*0160*/                   HFMA2.MMA R6, -RZ, RZ, 0, 0 ;
"""


def test_matrix_instructions_are_counted_and_inform_the_fp32_class() -> None:
    counted = sass.matrix_instructions(LISTING)
    assert counted == {"DMMA.884": 1, "HGMMA.64x128x8.F32.TF32": 2, "HMMA.16816.F32.BF16": 1}
    (hit,) = sass.matrix_hits(counted, "fp32")
    assert hit.rule == "reduced_precision"
    assert "HGMMA" in hit.what
    assert sass.matrix_hits(counted, "tf32") == []
    assert sass.matrix_hits({"DMMA.884": 1}, "fp32") == []
