"""Two profiles are compared kernel by kernel, and told in few words with units."""

from __future__ import annotations

from typing import Literal

import pytest

from stitchcuda.profiling.compare import compare
from stitchcuda.profiling.digest import changes, digest
from stitchcuda.profiling.model import KernelTime, OperatorTime, PathPart, Profile, Timeline
from stitchcuda.profiling.remedies import NOTHING


def kernel(
    name: str, ms: float, calls: int = 1, origin: Literal["own", "library", "framework", "copy"] = "framework"
) -> KernelTime:
    return KernelTime(name=name, seconds=ms * 1e-3, share=0.1, calls=calls, origin=origin)


def profile(wall_ms: float, kernels: list[KernelTime], source: str = "nsys") -> Profile:
    busy = sum(k.seconds for k in kernels)
    return Profile(
        subject="program",
        source=source,
        timeline=Timeline(
            wall_seconds=wall_ms * 1e-3,
            busy_seconds=busy,
            gap_seconds=max(wall_ms * 1e-3 - busy, 0),
            copy_seconds=0,
            launches=sum(k.calls for k in kernels),
        ),
        kernels=kernels,
        bottleneck="memory_bound",
        evidence="2 ms of 3 ms",
        suggestion="fuse them (predicted 1.5x)",
    )


BEFORE = profile(10, [kernel("sgemm", 4, 2, "library"), kernel("mul", 2, 6), kernel("add", 2, 6), kernel("gone", 1)])
AFTER = profile(5, [kernel("sgemm", 3, 2, "library"), kernel("fused_mul_add", 1, 1, "own")])


def test_what_went_into_an_own_kernel_is_fused_and_what_stays_has_two_times() -> None:
    found = compare(BEFORE, AFTER)
    assert found.speedup == pytest.approx(2)
    assert {c.name: c.fate for c in found.changes} == {
        "sgemm": "kept",
        "mul": "fused",
        "add": "fused",
        "gone": "fused",
        "fused_mul_add": "new",
    }
    assert found.fused_into == ["fused_mul_add"]
    assert next(c for c in found.changes if c.name == "sgemm").saved_seconds == pytest.approx(1e-3)


def test_without_an_own_kernel_things_are_gone_not_fused() -> None:
    found = compare(BEFORE, profile(6, [kernel("sgemm", 4, 2, "library"), kernel("other", 1)]))
    assert {c.fate for c in found.changes} == {"kept", "gone", "new"}
    assert found.fused_into == []


def test_two_spellings_of_one_kernel_are_one() -> None:
    before = profile(2, [kernel("void at::native::(anonymous namespace)::k<float, 4>(int)", 1)])
    after = profile(1, [kernel("void at::native::<unnamed>::k<float,4>(int)", 0.5)])
    assert [c.fate for c in compare(before, after).changes] == ["kept"]


def test_different_tools_are_remarked() -> None:
    assert "nsys before, kineto after" in compare(BEFORE, profile(5, [], "kineto")).remarks[0]


def test_different_devices_are_remarked() -> None:
    h200, h100 = (BEFORE.model_copy(update={"device": name}) for name in ("NVIDIA H200", "NVIDIA H100"))
    assert "NVIDIA H200 before, NVIDIA H100 after" in changes(compare(h200, h100))
    assert compare(h200, h200).remarks == compare(h200, BEFORE).remarks == []


def test_the_comparison_reads_in_a_few_lines_with_units() -> None:
    text = changes(compare(BEFORE, AFTER))
    assert "10 ms to 5 ms" in text
    assert "(2.00x)" in text
    assert "mul: fused away, was 2 ms in 6 launches" in text
    assert "sgemm: 4 ms to 3 ms" in text
    assert "fused into fused_mul_add" in text


def test_an_operator_that_one_own_kernel_of_another_name_may_do_is_not_called_gone() -> None:
    before = profile(3, [kernel("aten::tanh", 2), kernel("aten::add", 1)])
    one_for_one = changes(compare(before, profile(2, [kernel("aten::add", 1), kernel("rows", 1, 1, "own")])))
    assert "aten::tanh: not launched any more, was 2 ms" in one_for_one
    assert "by a new own kernel, whatever its name, or was not needed" in one_for_one
    dropped = changes(compare(before, profile(1, [kernel("aten::add", 1)])))
    assert "aten::tanh: gone, was 2 ms" in dropped
    on_cpu = changes(
        compare(before, profile(2, [kernel("aten::add", 1), kernel("rows", 1, 1, "own")])), unit="operator calls"
    )
    assert "aten::tanh: not called any more, was 2 ms in" in on_cpu
    assert "launch" not in on_cpu
    assert "own kernel" not in dropped


def test_the_digest_is_short_and_every_time_has_its_unit() -> None:
    rich = BEFORE.model_copy(
        update={
            "kernels": [kernel("void at::native::elementwise<" + "f<int>, " * 900 + ">(int)", 1) for _ in range(20)],
            "critical_path": [PathPart(where="host", what="launching", seconds=1e-3, share=0.1, count=9)],
            "operators": [OperatorTime(name="aten::mm", seconds=4e-3, share=0.4, kernels=2)],
            "remarks": ["a remark", "another", "a third"],
        }
    )
    text = digest(rich)
    assert len(text) < 900  # about 300 tokens
    for part in ("wall 10 ms", "launching 1 ms (10%)", "aten::mm 4 ms (40%)", "First: fuse them"):
        assert part in text


def test_a_digest_without_a_suggestion_does_not_say_that_nothing_is_to_be_gained() -> None:
    told = digest(BEFORE.model_copy(update={"suggestion": NOTHING}))
    assert "First:" not in told
    assert "the kernels' own code is not judged by that" in told


def test_the_digest_says_of_which_call_the_critical_path_is() -> None:
    path = [
        PathPart(where="host", what="launching", seconds=24e-3, share=0.8, count=9),
        PathPart(where="device", what="sgemm", seconds=6e-3, share=0.2, count=2),
    ]
    slowed = BEFORE.model_copy(update={"critical_path": path})
    assert slowed.slowed == pytest.approx(3.0)
    assert "- host on the critical path (of a recorded call, 3.0x as long): launching 24 ms (80%)" in digest(slowed)
    as_long = [part.model_copy(update={"seconds": part.seconds / 3}) for part in path]
    assert "- host on the critical path: launching 8 ms" in digest(BEFORE.model_copy(update={"critical_path": as_long}))
    assert BEFORE.slowed == 0


def test_why_something_was_not_measured_is_told_before_what_the_tool_says_of_every_recording() -> None:
    remarks = ["nsys says: Not all CUDA events", "nsys says: Not all NVTX events", "without counters: ERR_NVGPUCTRPERM"]
    assert "Note: without counters" in digest(BEFORE.model_copy(update={"remarks": remarks}))
