"""When the times of an Evaluation are doubtful, and within what the speedup then lies."""

from __future__ import annotations

from stitchcuda.evaluation.model import Evaluation, Finding, Timing
from stitchcuda.evaluation.steadiness import doubt, speedup_interval
from stitchcuda.evaluation.timing import Sample, summarise

STEADY = [1.0, 1.01, 0.99, 1.0, 1.02, 1.0, 0.98, 1.01]
RESTLESS = [1.0, 1.9, 1.0, 2.1, 1.0, 2.0, 1.1, 1.9]


def timed(seconds: list[float]) -> Timing:
    return summarise([Sample(wall=s, device=0.0, handed=s, exported=0.0) for s in seconds], cuda=False)


def evaluation(ours: list[float], theirs: list[float], *findings: Finding, held: str = "") -> Evaluation:
    program, eager, compiled = timed(ours), timed([3 * s for s in theirs]), timed([2 * s for s in theirs])
    ratio = compiled.median / program.median
    return Evaluation(
        status="correct",
        message="correct",
        tier="screen",
        precision="fp32",
        findings=list(findings),
        timings={"program": program, "eager": eager, "compile": compiled},
        speedup={"eager": eager.median / program.median, "compile": ratio, "over_best": ratio},
        provenance={"clocks_held_down": held},
    )


def test_steady_times_are_not_doubted() -> None:
    found = evaluation(STEADY, STEADY)
    assert doubt(found) == ""
    low, high = speedup_interval(found) or (0.0, 0.0)
    assert 1.9 < low <= 2.0 <= high < 2.1


def test_wide_intervals_and_slow_calls_are_told_with_what_they_mean_for_the_speedup() -> None:
    told = doubt(evaluation(RESTLESS, STEADY))
    low, high = speedup_interval(evaluation(RESTLESS, STEADY)) or (0.0, 0.0)
    assert "its median is known to ±" in told
    assert "its slow calls take 2.0x its fast ones" in told
    assert told.endswith(f"over the best stock option {low:.2f}x to {high:.2f}x")
    assert high > 1.5 * low
    other = doubt(evaluation(STEADY, RESTLESS))
    assert "that of compile is known to ±" in other
    assert "compile slow calls take" in other
    assert "its" not in other.replace("its fast ones", "")


def test_clocks_that_were_held_down_and_slowed_neighbours_are_told() -> None:
    assert "clocks were held down (power cap)" in doubt(evaluation(STEADY, STEADY, held="power cap"))
    unsteady = Finding(rule="unsteady_clocks", severity="flag", evidence="SM clock between 1200 and 1980 MHz")
    told = doubt(evaluation(STEADY, STEADY, unsteady, held="power cap"))
    assert told.startswith("clocks were not steady (SM clock between 1200 and 1980 MHz); over the best")
    slowed = Finding(rule="slows_others", severity="flag", evidence="compile ran much slower")
    assert doubt(evaluation(STEADY, STEADY, slowed)).startswith("other programs ran much slower beside it; over")


def test_what_failed_or_was_not_timed_is_not_doubted() -> None:
    failed = evaluation(RESTLESS, STEADY).model_copy(update={"status": "wrong_output"})
    assert doubt(failed) == ""
    assert doubt(Evaluation(status="correct", message="", tier="screen", precision="fp32")) == ""
    few = evaluation(STEADY[:4], STEADY)
    assert speedup_interval(few) is None
