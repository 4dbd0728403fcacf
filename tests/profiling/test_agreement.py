"""Whether a Profile is of the calls that were timed."""

from __future__ import annotations

from typing import Literal

import pytest

from stitchcuda.profiling.agreement import Agreement, agreement
from stitchcuda.profiling.digest import digest, without_gain
from stitchcuda.profiling.model import KernelDiagnosis
from tests.profiling.test_compare import BEFORE

COUNTED = BEFORE.model_copy(
    update={
        "suggestion": "fuse them (predicted 1.98x: saves 5 ms of 10 ms)",
        "diagnoses": [
            KernelDiagnosis(
                kernel="sgemm",
                cause="uncoalesced",
                bottleneck="memory_bound",
                evidence="12 of 32 bytes are used",
                remedy="coalesce",
                suggestion="swap the index",
                kernel_gain=2.5,
                program_gain=1.8,
                counters={},
            )
        ],
    }
)


def agreed(wall_ms: float, timed_ms: float, kind: Literal["cuda", "cpu"], busy_ms: float = 0.0) -> Agreement:
    line = BEFORE.timeline.model_copy(update={"wall_seconds": wall_ms * 1e-3, "busy_seconds": busy_ms * 1e-3})
    found = agreement(BEFORE.model_copy(update={"timeline": line}), timed_ms * 1e-3, kind)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize("timed", [8.5, 10.0, 12.0])
def test_calls_within_a_quarter_of_each_other_agree(kind: Literal["cuda", "cpu"], timed: float) -> None:
    found = agreed(10, timed, kind)
    assert (found.doubtful, found.sentence, found.overhead) == (False, "", "")
    assert agreement(BEFORE, 0.0, kind) is None


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_slower_profiled_calls_are_doubtful_and_say_by_how_much(kind: Literal["cuda", "cpu"]) -> None:
    assert "its calls took 10 ms, the evaluation timed 4 ms (2.5x as long)" in agreed(10, 4, kind).sentence


def test_faster_profiled_calls_are_doubtful_on_cpu() -> None:
    assert "its calls took 10 ms, the evaluation timed 25 ms (0.40 of the time)" in agreed(10, 25, "cpu").sentence


def test_a_device_that_is_busy_for_longer_than_the_timed_call_is_doubtful() -> None:
    found = agreed(4.5, 4, "cuda", busy_ms=6)
    assert (
        "the device was busy for 6 ms of each of its calls, the evaluation timed 4 ms (1.5x as long)" in found.sentence
    )


def test_what_a_timed_call_on_cuda_has_on_top_is_told_and_gains_are_kept() -> None:
    found = agreed(2.2, 4.17, "cuda", busy_ms=0.41)
    assert not found.doubtful
    assert "timed call took 4.17 ms, 1.97 ms more than a profiled one" in found.overhead
    text = digest(COUNTED, timed_seconds=19e-3)
    assert text.splitlines()[1] == f"- {agreed(10, 19, 'cuda').overhead}"
    assert "(predicted 1.98x" in text
    assert "at most 2.50x, 1.80x of the call" in text


def test_a_doubtful_digest_says_so_and_predicts_nothing() -> None:
    sound, doubtful = digest(COUNTED, timed_seconds=10e-3), digest(COUNTED, timed_seconds=4e-3)
    assert sound == digest(COUNTED)
    assert "at most 2.50x, 1.80x of the call" in sound
    assert "(predicted 1.98x" in sound
    assert "doubtful" not in sound
    assert doubtful.splitlines()[1].startswith("- this profile is doubtful: its calls took 10 ms")
    assert "uncoalesced; 12 of 32 bytes are used. Do: swap the index" in doubtful
    assert "First: fuse them\n" in doubtful
    assert "1.98x" not in doubtful
    assert "1.80x" not in doubtful


def test_only_the_gain_is_taken_from_a_suggestion() -> None:
    assert without_gain("tile it (keeps the class) (1.80x of the whole call at most)") == "tile it (keeps the class)"
    assert without_gain("keep it (as it is)") == "keep it (as it is)"
