"""CPU counters and the compiler's word on loops, by the real perf and the real compiler where this machine has them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.profiling.cpu import Counts, count, diagnose, find_perf, parse_counts, parse_loops, vectorisation

needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not here")


@needs_perf
def test_events_of_a_real_program() -> None:
    counts = count([sys.executable, "-c", "sum(range(10**6))"])
    assert counts.events["task-clock"] > 0
    assert set(counts.events) | set(counts.missing)
    assert diagnose(counts)[1]


@needs_perf
def test_a_failing_program_is_said_to_fail() -> None:
    with pytest.raises(ProfilerError, match="exit code 3"):
        count([sys.executable, "-c", "raise SystemExit(3)"])


@needs_perf
def test_a_program_that_never_ends_is_ended() -> None:
    with pytest.raises(ProfilerError, match="longer than 1 s"):
        count(["sleep", "60"], timeout_s=1)


def test_missing_perf_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissing, match="linux-perf"):
        find_perf()


def test_what_the_machine_does_not_count_is_missing_not_zero() -> None:
    counts = parse_counts(
        "12.5;msec;task-clock;1;100.00;;\n<not supported>;;cycles:u;0;100.00;;\n7;;page-faults:u;1;100.00;;\n"
    )
    assert counts.events == {"task-clock": 12.5, "page-faults": 7}
    assert counts.missing == ["cycles"]
    assert diagnose(counts) == ("unknown", "this machine does not count cycles")


@pytest.mark.parametrize(
    ("events", "label"),
    [
        ({"cycles": 1e9, "instructions": 2.5e9, "task-clock": 1000, "cache-misses": 1e5}, "compute_bound"),
        ({"cycles": 1e9, "instructions": 0.9e9, "task-clock": 1000, "cache-misses": 2e8}, "memory_bound"),
        ({"cycles": 1e9, "instructions": 0.3e9, "task-clock": 1000, "cache-misses": 1e6}, "latency_bound"),
        ({"cycles": 1e9, "instructions": 1.5e9, "branches": 1e8, "branch-misses": 2e7}, "latency_bound"),
    ],
)
def test_label_follows_from_the_events(events: dict[str, float], label: str) -> None:
    assert diagnose(Counts(events), bytes_per_second=20e9)[0] == label


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not here")
def test_the_compiler_says_which_loops_it_vectorised_and_why_not(tmp_path: Path) -> None:
    source = tmp_path / "loops.cpp"
    source.write_text(
        "void add(float* __restrict a, const float* __restrict b, int n) {\n"
        "  for (int i = 0; i < n; ++i) a[i] += b[i];\n}\n"
        "int find(const int* a, int n) {\n"
        "  for (int i = 0; i < n; ++i)\n    if (a[i] == 3) return i;\n  return -1;\n}\n"
    )
    loops = {loop.line: loop for loop in vectorisation(source, flags=("-O3",))}
    assert loops[2].vector_bytes >= 16
    (search,) = (loop for line, loop in loops.items() if line in (5, 6))
    assert search.vector_bytes == 0
    assert search.reason


def test_a_loop_vectorised_in_one_version_counts_as_vectorised() -> None:
    (loop,) = parse_loops(
        "a.cpp:3:21: optimized: loop vectorized using 64 byte vectors\na.cpp:3:21: missed: couldn't vectorize loop\n"
    )
    assert (loop.line, loop.vector_bytes, loop.reason) == (3, 64, "")


def test_source_that_does_not_compile_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "x.cpp").write_text("int f( {")
    with pytest.raises(ProfilerError, match="does not compile"):
        vectorisation(tmp_path / "x.cpp")
