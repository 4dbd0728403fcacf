"""Whether a Profile is of the calls that were timed."""

from __future__ import annotations

from stitchcuda.profiling.agreement import agreement
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


def test_calls_within_a_quarter_of_each_other_agree() -> None:
    wall = BEFORE.timeline.wall_seconds
    for share in (0.85, 1.0, 1.2):
        found = agreement(BEFORE, wall * share)
        assert found is not None
        assert (found.doubtful, found.sentence) == (False, "")
    assert agreement(BEFORE, 0.0) is None


def test_slower_and_faster_profiled_calls_are_doubtful_and_say_by_how_much() -> None:
    slower, faster = agreement(BEFORE, 4e-3), agreement(BEFORE, 25e-3)
    assert slower is not None
    assert faster is not None
    assert "its calls took 10 ms, the evaluation timed 4 ms (2.5x as long)" in slower.sentence
    assert "its calls took 10 ms, the evaluation timed 25 ms (0.40 of the time)" in faster.sentence


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
