"""Building: real compilers, a cache that survives its builders, errors a reader can act on."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stitchcuda.errors import InfrastructureError, ToolMissing
from stitchcuda.evaluation.build import Build, build
from stitchcuda.evaluation.build_errors import certain_error, digest
from stitchcuda.evaluation.build_tools import arch_number
from stitchcuda.evaluation.integrity.sass import find_cuobjdump
from stitchcuda.evaluation.jail import Jail, jail
from stitchcuda.program.compilers import torch_openmp
from stitchcuda.program.model import Program
from stitchcuda.task.model import Target
from tests.program.samples import CPU_SOURCE, CUDA_SOURCE, ENTRY, HEADER, cpu_program, cuda_program

CPU = Target(kind="cpu", arch="native")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")


def folder_of(result: Build) -> Path:
    assert result.ok, result.log
    assert result.folder is not None
    return result.folder


def test_a_build_holds_the_program_its_bindings_and_one_library(tmp_path: Path) -> None:
    folder = folder_of(build(cpu_program(), CPU, cache=tmp_path))
    names = {path.name for path in folder.iterdir()}
    assert {"program.py", "kernels.cpp", "common.h", "bindings.py", "manifest.json"} < names
    assert len([name for name in names if name.endswith(".so")]) == 1


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_cuda_sources_compile_without_a_gpu(tmp_path: Path, arch: str) -> None:
    assert folder_of(build(cuda_program(), Target(kind="cuda", arch=arch), cache=tmp_path)).is_dir()


def test_architectures_get_their_specific_variant() -> None:
    assert [arch_number(arch) for arch in ("sm_80", "sm_90", "sm_100", "sm_120", "90a")] == [
        "80",
        "90a",
        "100a",
        "120a",
        "90a",
    ]
    with pytest.raises(ToolMissing, match="'gfx90' is not known"):
        arch_number("gfx90")


def test_the_second_build_compiles_nothing(tmp_path: Path) -> None:
    first = build(cpu_program(), CPU, cache=tmp_path)
    second = build(cpu_program(), CPU, cache=tmp_path)
    assert (first.cached, second.cached) == (False, True)
    assert first.folder == second.folder
    assert second.seconds < first.seconds


def test_a_changed_python_side_reuses_the_library(tmp_path: Path) -> None:
    build(cpu_program(), CPU, cache=tmp_path)
    program = cpu_program()
    changed = program.model_copy(update={"files": {**program.files, "program.py": ENTRY + "\n# other\n"}})
    assert build(changed, CPU, cache=tmp_path).cached


def test_a_changed_header_does_not(tmp_path: Path) -> None:
    build(cpu_program(), CPU, cache=tmp_path)
    program = cpu_program()
    changed = program.model_copy(update={"files": {**program.files, "common.h": HEADER + "\n// other\n"}})
    assert not build(changed, CPU, cache=tmp_path).cached


def test_a_damaged_cache_is_built_again(tmp_path: Path) -> None:
    folder = folder_of(build(cpu_program(), CPU, cache=tmp_path))
    (library,) = folder.glob("*.so")
    good = library.read_bytes()
    library.write_bytes(b"")
    again = folder_of(build(cpu_program(), CPU, cache=tmp_path))
    (library,) = again.glob("*.so")
    assert library.read_bytes() == good
    for kept in (tmp_path / "libraries").rglob("*.so"):
        kept.write_bytes(b"broken")
    shutil.rmtree(folder)
    (library,) = folder_of(build(cpu_program(), CPU, cache=tmp_path)).glob("*.so")
    assert library.read_bytes() == good


def test_a_program_without_a_manifest_is_only_copied(tmp_path: Path) -> None:
    text = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    folder = folder_of(build(Program(files={"program.py": text}), CPU, cache=tmp_path))
    assert [path.name for path in folder.iterdir() if path.name != ".seal"] == ["program.py"]


def test_an_error_is_told_with_its_lines(tmp_path: Path) -> None:
    result = build(cpu_program(CPU_SOURCE.replace("affine(x[i]", "afine(x[i]")), CPU, cache=tmp_path)
    assert not result.ok
    assert result.folder is None
    assert result.log.startswith("kernels.cpp:7: error: 'afine' was not declared")
    assert ">    7 | " in result.log
    assert str(tmp_path) not in result.log


@needs_nvcc
def test_an_nvcc_error_is_told_with_its_lines(tmp_path: Path) -> None:
    result = build(
        cuda_program(CUDA_SOURCE.replace("affine(x[i]", "afine(x[i]")),
        Target(kind="cuda", arch="sm_90"),
        cache=tmp_path,
    )
    assert result.log.startswith('kernels.cu:7: error: identifier "afine" is undefined')
    assert ">    7 | " in result.log


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            CPU_SOURCE.replace('extern "C" ', ""),
            r'does not export scale_shift: it has C\+\+ linkage. Write: extern "C"',
        ),
        (
            CPU_SOURCE.replace("if (n == 13)", "extern int nowhere(); if (nowhere())"),
            "undefined at link time: nowhere",
        ),
        ("// scale_shift\n", "does not export scale_shift: it is not defined there"),
    ],
)
def test_what_the_linker_finds_is_told(tmp_path: Path, source: str, sentence: str) -> None:
    result = build(cpu_program(source), CPU, cache=tmp_path)
    assert not result.ok
    assert re.search(sentence, result.log), result.log


@pytest.mark.parametrize("confined", [True, False])
def test_files_outside_the_program_are_refused_however_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confined: bool
) -> None:
    if not confined:
        monkeypatch.setattr("stitchcuda.evaluation.library.jail", lambda: Jail("", ("confinement of compilers",)))
    secret = tmp_path / "secret.h"
    secret.write_text("// the answer\n")
    result = build(cpu_program(f'#define FILE "{secret}"\n#include FILE\n{CPU_SOURCE}'), CPU, cache=tmp_path / "cache")
    assert not result.ok
    assert str(secret) in result.log
    assert [(f.rule, f.severity, f.layer) for f in result.findings] == [("includes_files", "reject", "build")]


@pytest.mark.skipif(not jail().level, reason="this machine allows no confinement")
def test_the_assembler_reads_no_other_files_either(tmp_path: Path) -> None:
    result = build(cpu_program('asm(".incbin \\"/etc/passwd\\"");\n' + CPU_SOURCE), CPU, cache=tmp_path)
    assert "file not found: /etc/passwd" in result.log
    assert str(tmp_path) not in result.log
    assert [finding.rule for finding in result.findings] == ["includes_files"]


def test_inexact_arithmetic_is_refused_in_the_fp32_class_alone(tmp_path: Path) -> None:
    program = cpu_program('#pragma GCC optimize("fast-math")\n' + CPU_SOURCE)
    result = build(program, CPU, cache=tmp_path)
    assert result.log.startswith('kernels.cpp:1: #pragma GCC optimize("fast-math") changes how numbers are rounded')
    assert [finding.rule for finding in result.findings] == ["fast_math"]
    assert build(program, CPU, cache=tmp_path, precision="bf16").ok


def test_what_was_seen_while_building_is_kept_with_the_library(tmp_path: Path) -> None:
    program = cpu_program("#include <unistd.h>\n" + CPU_SOURCE.replace("return 7", "return fork()"))
    first, second = (build(program, CPU, cache=tmp_path) for _ in range(2))
    assert first.ok
    assert second.cached
    assert first.findings == second.findings
    assert [(f.rule, f.severity, f.layer) for f in first.findings] == [("controls_process", "reject", "build")]
    assert first.confinement == jail().describe()


@needs_nvcc
def test_the_kernels_of_a_library_are_known(tmp_path: Path) -> None:
    result = build(cuda_program(), Target(kind="cuda", arch="sm_90"), cache=tmp_path)
    assert result.kernels == ("_Z18scale_shift_kernelPKfS0_Pflf",)
    assert result.findings == ()


@needs_nvcc
def test_sources_compiled_at_once_do_not_share_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    program = cuda_program()
    more = {
        f"part{number}.cu": f"__global__ void part{number}(float* x) {{ x[0] = {number}; }}\n" for number in range(6)
    }
    crowded = program.model_copy(update={"files": program.files | more})
    result = build(crowded, Target(kind="cuda", arch="sm_90"), cache=tmp_path)
    assert result.ok, result.log
    assert len(result.kernels) == 1 + len(more)


@needs_nvcc
@pytest.mark.skipif(find_cuobjdump(["/usr/local/cuda"]) is None, reason="there is no cuobjdump")
def test_the_matrix_instructions_of_a_library_are_known(tmp_path: Path) -> None:
    product = """
    #include <mma.h>
    using namespace nvcuda;
    __global__ void product(const __half* a, const __half* b, float* c) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
      wmma::fill_fragment(sum, 0.f);
      wmma::load_matrix_sync(left, a, 16);
      wmma::load_matrix_sync(right, b, 16);
      wmma::mma_sync(sum, left, right, sum);
      wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
    }
    """
    result = build(cuda_program(product + CUDA_SOURCE), Target(kind="cuda", arch="sm_90"), cache=tmp_path)
    assert any(name.startswith("HMMA.") for name in result.instructions), result.log
    assert [finding.rule for finding in result.findings] == ["reduced_precision"]


def test_an_invalid_program_or_the_wrong_target_is_a_failed_build(tmp_path: Path) -> None:
    assert "program.py" in build(Program(files={"x.py": ""}), CPU, cache=tmp_path).log
    assert "says target cuda, but the task's target is cpu" in build(cuda_program(), CPU, cache=tmp_path).log


def test_a_compiler_that_takes_too_long_is_killed_whole(tmp_path: Path) -> None:
    start = time.monotonic()
    result = build(cpu_program("#include <regex>\n" + CPU_SOURCE), CPU, cache=tmp_path, timeout_s=0.05)
    assert time.monotonic() - start < 60
    assert "longer than the time limit" in result.log
    assert not list((tmp_path / "scratch").iterdir())
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    assert str(tmp_path) not in running


def test_an_endless_log_is_cut() -> None:
    output = "\n".join(f"kernels.cpp:{n}:1: error: {'x' * 300}" for n in range(10_000))
    text = digest(output, {"kernels.cpp": "int a;\n" * 20_000})
    assert len(text) <= 2000
    assert "9999 more in this file" in text


def build_one(arguments: tuple[str, int]) -> str:
    cache, number = arguments
    program = cpu_program(CPU_SOURCE + f"// {number}\n")
    result = build(program, CPU, cache=Path(cache))
    return str(result.folder)


def test_builders_share_a_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        folders = pool.map(build_one, [(str(tmp_path), number % 2) for number in range(8)], chunksize=1)
    assert len(set(folders)) == 2
    for folder in set(folders):
        assert (Path(folder) / "bindings.py").is_file()
    assert not list((tmp_path / "scratch").iterdir())


def test_a_builder_killed_at_any_moment_leaves_a_usable_cache(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.evaluation.test_build import build_one;"
        f"build_one(({str(tmp_path)!r}, 0))"
    )
    for delay in (0.4, 0.6, 0.8):
        process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        time.sleep(delay)
        process.kill()
        process.wait()
    assert Path(build_one((str(tmp_path), 0))).is_dir()


def test_a_missing_compiler_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolMissing, match=r"install g\+\+"):
        build(cpu_program(), CPU, cache=tmp_path)


def test_a_cache_that_cannot_be_written_is_not_the_programs_fault(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InfrastructureError, match="cannot be used"):
        build(cpu_program(), CPU, cache=tmp_path / "cache")


def test_leftovers_of_killed_builders_are_swept(tmp_path: Path) -> None:
    old, young = tmp_path / "scratch" / "old", tmp_path / "scratch" / "young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "0.o").write_text("part")
    os.utime(old, (1, 1))
    build(cpu_program(), CPU, cache=tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_full_disk_is_not_the_programs_fault(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from stitchcuda.evaluation.build import build;"
        "from tests.evaluation.test_build import CPU, cpu_program;"
        f"build(cpu_program(), CPU, cache=Path({str(tmp_path)!r}))"
    )
    script = (
        f"mount -t tmpfs -o size=16k none {tmp_path} && exec {sys.executable} -c '{code.replace(chr(39), chr(34))}'"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no namespaces to mount a small disk in")
    assert re.search(r"InfrastructureError: the disk under .* is full; free some space", done.stderr), done.stderr


@pytest.mark.skipif(torch_openmp() is None, reason="this torch ships no OpenMP runtime")
def test_the_library_shares_torchs_openmp_runtime(tmp_path: Path) -> None:
    (library,) = folder_of(build(cpu_program(), CPU, cache=tmp_path)).glob("*.so")
    code = (
        "import ctypes, torch; torch.ones(10**6).exp();"
        f"ctypes.CDLL({str(library)!r});"
        "maps = open('/proc/self/maps').read().split();"
        "print(len({m for m in maps if 'libgomp' in m or 'libiomp' in m}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "1"


UNDECLARED = """#include <torch/extension.h>
__global__ void f(float* y) { y[0] = y[1] + missing; }
"""


@pytest.mark.parametrize(
    ("source", "certain"),
    [
        (UNDECLARED, True),
        (UNDECLARED.replace("y[1] + missing", "y[1] + missing(2)"), False),
        (UNDECLARED.replace("y[1] + missing", "at::missing"), False),
        (UNDECLARED.replace("y[1] + missing", "*(missing*)y"), False),
        (UNDECLARED.replace("missing", "MISSING"), False),
        (UNDECLARED.replace("missing", "kMissing"), False),
        (UNDECLARED.replace("missing", "missing_t"), False),
        ("using namespace at;" + UNDECLARED, False),
        (UNDECLARED + "void g() { missing<float> x; }", False),
        (UNDECLARED + "#if 0\nfloat missing;\n#endif\n", False),
    ],
)
def test_only_an_undeclared_variable_is_certain_to_fail_with_any_headers(source: str, certain: bool) -> None:
    name = re.search(r"\b(at::)?(\w*missing\w*)", source, re.IGNORECASE)
    assert name is not None
    gcc = f"kernels.cu:2: error: ‘{name[2]}’ was not declared in this scope\n>    2 | ..."
    nvcc = f'kernels.cu:2: error: identifier "{name[2]}" is undefined\n>    2 | ...'
    for log in (gcc, nvcc):
        assert bool(certain_error(log, {"kernels.cu": source})) == certain
    assert not certain_error(nvcc, {"other.cu": source})
