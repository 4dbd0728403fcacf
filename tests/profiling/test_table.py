"""A Profile reads well on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from stitchcuda.profiling.model import KernelTime, OperatorTime, PathPart, Profile, Timeline
from stitchcuda.profiling.table import short_name, show


def example(names: list[str]) -> Profile:
    return Profile(
        subject="program",
        source="kineto",
        timeline=Timeline(
            wall_seconds=2e-3, busy_seconds=1.5e-3, gap_seconds=5e-4, copy_seconds=0.0, launches=len(names)
        ),
        kernels=[
            KernelTime(name=n, seconds=1.5e-3 / len(names), share=1 / len(names), calls=1, origin="own", operator="")
            for n in names
        ],
        bottleneck="memory_bound",
        evidence="least time 1.4 ms for bytes, of 1.5 ms busy: 93% is explained",
        suggestion="fuse [all] of it",
    )


@pytest.mark.parametrize("width", [60, 80, 160])
def test_everything_that_matters_is_shown_at_any_width(width: int) -> None:
    out = io.StringIO()
    show(example(["rms_norm_rows", "swiglu<float>"]), title="t.py", console=Console(file=out, width=width))
    text = out.getvalue()
    for part in ("t.py", "2 ms", "75%", "rms_norm_rows", "50.0%", "own", "memory_bound", "93%", "fuse [all] of it"):
        assert part in text
    assert all(len(line) <= width for line in text.splitlines())


def test_what_is_cut_off_is_counted() -> None:
    out = io.StringIO()
    show(example([f"k{i}" for i in range(10)]), top=4, console=Console(file=out, width=100))
    assert "6 more, 60.0% of the busy time" in out.getvalue()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::mul", "aten::mul"),
        (
            "void at::native::(anonymous namespace)::elementwise_kernel<128, 4, f<float>>(int, f<float>)",
            "at::native::elementwise_kernel",
        ),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("x" * 200, "x" * 79 + "…"),
        ("", ""),
    ],
)
def test_kernel_names_lose_their_templates(name: str, short: str) -> None:
    assert short_name(name) == short


def test_what_only_a_timeline_with_causes_tells_is_shown() -> None:
    plain = example(["gemm"])
    rich = plain.model_copy(
        update={
            "timeline": plain.timeline.model_copy(
                update={
                    "idle_seconds": {"launch": 4e-4, "synchronise": 1e-4},
                    "graph_launches": 2,
                    "peak_bytes": 1 << 30,
                }
            ),
            "critical_path": [PathPart(where="host", what="launch latency", seconds=3e-4, share=0.15, count=9)],
            "operators": [OperatorTime(name="aten::linear", seconds=1e-3, share=0.5, kernels=2)],
            "remarks": ["without counters: no ncu"],
        }
    )
    out = io.StringIO()
    show(rich, console=Console(file=out, width=100))
    text = out.getvalue()
    for part in ("launching kernels 0.4 ms", "2 CUDA graphs", "peak 1,024 MiB", "launch latency", "aten::linear"):
        assert part in text
    assert "note: without counters: no ncu" in text
