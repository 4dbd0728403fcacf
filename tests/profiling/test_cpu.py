"""What perf counts and what the compiler says of loops, by the real perf and the real compiler where they are here."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.evaluation import seccomp
from stitchcuda.hardware.model import Ceilings
from stitchcuda.profiling.cpu import find_perf, judged, parse, refused
from stitchcuda.profiling.loops import parse as parse_loops
from stitchcuda.profiling.loops import report
from stitchcuda.profiling.measure import of_the_processor
from stitchcuda.profiling.model import Loop, Profile, Timeline
from stitchcuda.profiling.table import loops_told, processor_told
from stitchcuda.program.model import Program
from tests.profiling.test_capture import CPU, subject

needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not here")
needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not here")
MEASURED = CPU.model_copy(
    update={"ceilings": Ceilings(copy_bytes_per_second=20e9, flops_per_second={}, measured_on="2026-11-30")}
)

HEADER = """
inline float total(const float* a, long n) {
  float sum = 0.f;
  for (long i = 0; i < n; ++i) if (a[i] > sum) sum = a[i]; else break;
  return sum;
}
"""
SOURCE = """
#include <cstdint>
#include "parts/total.h"
extern "C" int add(const float* __restrict a, float* __restrict b, int64_t n, void*) {
  for (int64_t i = 0; i < n; ++i) b[i] += a[i];
  b[0] = total(a, n);
  return 0;
}
"""
PROGRAM = Program(files={"program.py": "", "parts/total.h": HEADER, "add.cpp": SOURCE})


def test_missing_perf_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissing, match="install linux-perf"):
        find_perf()


def test_what_cannot_be_had_of_the_processor_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    line = Timeline(wall_seconds=1e-3, busy_seconds=1e-3, gap_seconds=0, copy_seconds=0, launches=1)
    blank = Profile(
        subject="program", source="kineto", timeline=line, kernels=[], bottleneck="unknown", evidence="", remarks=["a"]
    )
    found = of_the_processor(blank, subject(), CPU, PROGRAM)
    assert found.processor is None
    assert found.loops == []
    assert found.remarks[0] == "a"
    assert found.remarks[1].startswith("without counters: perf is not on this machine; install")
    assert found.remarks[2].startswith("without the compiler's report: no C++ compiler")


@needs_perf
def test_the_words_of_the_real_perf_are_known_when_the_kernel_refuses() -> None:
    script = (
        "import ctypes, os, sys; sys.path.insert(0, sys.argv[1]); import seccomp; libc = ctypes.CDLL(None);"
        "libc.prctl(38, 1, 0, 0, 0); assert seccomp.install(libc);"
        "os.execvp('perf', ['perf', 'stat', '-e', 'task-clock', '--', 'true'])"
    )
    words = [sys.executable, "-I", "-c", script, str(Path(seccomp.__file__).parent)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert refused(done.stderr + done.stdout)


def test_what_the_machine_does_not_count_is_missing_not_zero() -> None:
    events, missing = parse(
        "# started\n12.5;msec;task-clock;1;100.00;;\n"
        "<not supported>;;cycles:u;0;100.00;;\n7;;page-faults:u;1;100.00;;\n0;;context-switches:u;1;100.00;;\n"
    )
    assert events == {"task-clock": 12.5, "page-faults": 7}
    assert missing == ["cycles", "context-switches"]
    assert parse("inf;;cycles;;\nnan;;instructions;;\n-1;;branches;;") == ({}, ["cycles", "instructions", "branches"])
    assert parse("3;;context-switches;1;100.00;;\n") == ({"context-switches": 3}, [])
    found = judged(events, missing, wall_seconds=5e-3, calls=1, device=CPU)
    assert found.bottleneck == "unknown"
    assert found.core_seconds == pytest.approx(12.5e-3)
    assert "on 2.5 cores, this machine does not count cycles" in found.evidence
    assert "task-clock" not in found.events
    assert processor_told(found).endswith(", 7 page faults a call")


@pytest.mark.parametrize(
    ("events", "label", "told"),
    [
        ({"cycles": 1e9, "instructions": 2.5e9, "cache-misses": 1e5}, "compute_bound", "2.50 instructions a cycle"),
        ({"cycles": 1e9, "instructions": 0.9e9, "cache-misses": 2e8}, "memory_bound", "12.8 of 20.0 GB/s"),
        ({"cycles": 1e9, "instructions": 0.3e9, "cache-misses": 1e6}, "latency_bound", "0.30 instructions a cycle"),
        ({"cycles": 1e9, "instructions": 1.5e9, "branches": 1e8, "branch-misses": 2e7}, "latency_bound", "20% of"),
    ],
)
def test_label_follows_from_the_events(events: dict[str, float], label: str, told: str) -> None:
    found = judged({"task-clock": 2000, **events}, [], wall_seconds=1.0, calls=3, device=MEASURED)
    assert found.bottleneck == label
    assert told in found.evidence
    assert found.evidence.startswith("a counted call took 1 s on 2.0 cores, ")


@needs_gcc
def test_the_compiler_says_which_loops_it_vectorised_and_why_not() -> None:
    scalar, vector = sorted(report(PROGRAM, subject().task.target), key=lambda loop: loop.vector_bytes)
    assert (vector.file, vector.line) == ("add.cpp", 5)
    assert vector.vector_bytes >= 16
    assert (scalar.file, scalar.line, scalar.vector_bytes) == ("parts/total.h", 4, 0)
    assert scalar.reason


@needs_gcc
def test_source_that_does_not_compile_is_said_so() -> None:
    with pytest.raises(ProfilerError, match=r"x\.cpp:1.*error"):
        report(Program(files={"program.py": "", "x.cpp": "int f( {"}), subject().task.target)


def test_a_loop_vectorised_in_one_version_counts_as_vectorised() -> None:
    (loop,) = parse_loops(
        "a.cpp:3:21: optimized: loop vectorized using 64 byte vectors\na.cpp:3:21: missed: couldn't vectorize loop\n"
    )
    assert (loop.line, loop.vector_bytes, loop.reason) == (3, 64, "")


def test_outer_loops_are_left_out_and_reasons_go_to_the_loop_that_they_are_of() -> None:
    loops = parse_loops(
        "a.cpp:3:1: missed: couldn't vectorize loop\na.cpp:3:1: missed: not vectorized: multiple nested loops.\n"
        "a.cpp:4:1: missed: couldn't vectorize loop\n"
        "a.cpp:6:1: missed: couldn't vectorize loop\na.cpp:7:1: missed: not vectorized: control flow in loop.\n"
    )
    assert [(loop.line, loop.reason) for loop in loops] == [(4, ""), (6, "control flow in loop")]


@needs_gcc
def test_loops_that_are_vectors_by_hand_are_not_called_scalar() -> None:
    wide = """#include <cstdint>
typedef float floats __attribute__((vector_size(16)));
extern "C" void sums(const floats* x, floats* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + 1.0f;
}
extern "C" void squares(const long double* x, long double* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * x[i];
}
"""
    intrinsics = """#include <cstdint>
#include <immintrin.h>
extern "C" void doubles(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) _mm_storeu_ps(y + i, _mm_add_ps(_mm_loadu_ps(x + i), _mm_loadu_ps(x + i)));
}
"""
    files = {"program.py": "", "own.cpp": wide}
    if platform.machine() == "x86_64":
        files["sse.cpp"] = intrinsics
    loops = report(Program(files=files), subject().task.target)
    assert {f"{loop.file}:{loop.line}": loop.reason for loop in loops} == {
        "own.cpp:4": "vectors by hand",
        "own.cpp:7": "GCC has no vectors of its type long double",
        **({"sse.cpp:4": "vectors by hand"} if "sse.cpp" in files else {}),
    }
    told = loops_told([loop for loop in loops if loop.file == "own.cpp"])
    assert told == (
        "0 of 2 vectorised; with vectors by hand: own.cpp:4; "
        "scalar: own.cpp:7 (GCC has no vectors of its type long double)"
    )


def test_loops_are_told_with_those_first_that_have_a_reason() -> None:
    loops = [Loop(file="a.cpp", line=n, vector_bytes=0, reason="calls f" if n == 9 else "") for n in range(1, 10)]
    told = loops_told([*loops, Loop(file="a.cpp", line=12, vector_bytes=32)], 2)
    assert told == "1 of 10 vectorised (32 bytes wide); scalar: a.cpp:9 (calls f), a.cpp:1 and 7 more"
