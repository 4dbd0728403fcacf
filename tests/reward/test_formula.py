"""The reward equals what is computed by hand, pays no cheat, and never hides an invalid number."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stitchcuda.errors import InfrastructureError, RewardError
from stitchcuda.evaluation.model import Evaluation, Status
from stitchcuda.reward import DIMENSIONS, Mark, RewardSettings, RubricScore, Skill, reward
from tests.reward.samples import evaluation, flag, marks, rejection

PAPER = RewardSettings.preset("paper")
SKILLS = st.sampled_from(["scratch", "improve"])
SPEEDUPS = st.floats(min_value=1e-6, max_value=1e6)
SCORES = st.floats(min_value=1, max_value=5)


def faster(speedup: float) -> Evaluation:
    """A Program so many times as fast as eager and as the best stock option, without an interval."""
    return evaluation(program=1e-3, eager=speedup * 1e-3, compiled=speedup * 1e-3, spread=None)


@pytest.mark.parametrize(
    ("speedup", "mark", "skill", "expected"),
    [
        (1.5, 3, "scratch", 1.8),  # average marks leave s + 0.3
        (1.0, 5, "scratch", 1.95),  # 1.3 * 1.5
        (1.0, 1, "scratch", 0.65),  # 1.3 * 0.5
        (1.0, 5, "improve", 1.755),  # 1.3 * 1.35
        (1.0, 1, "improve", 0.845),  # 1.3 * 0.65
        (2.0, 2, "scratch", 1.725),  # 2.3 * 0.75
        (1.7, 5, "scratch", 3.0),  # 2.0 * 1.5 meets the cap
        (50.0, 1, "scratch", 2.65),  # clipped at 5: 5.3 * 0.5
        (50.0, 3, "scratch", 3.0),  # capped
        (0.5, 4, "improve", 0.94),  # 0.8 * 1.175
    ],
)
def test_known_cases_equal_the_figures_computed_by_hand(
    speedup: float, mark: int, skill: Skill, expected: float
) -> None:
    assert reward(faster(speedup), marks(mark, skill), skill).value == pytest.approx(expected)


def test_every_component_is_returned() -> None:
    found = reward(evaluation(), marks(4), "scratch")
    assert (found.correct, found.hack, found.against, found.capped) == (True, False, "compile", False)
    assert found.speedup == found.measured == found.over_best == pytest.approx(1.5)
    assert found.over_eager == pytest.approx(2.0)
    assert (found.total, found.rubric, found.multiplier) == (16, 0.25, 1.25)
    assert found.base == pytest.approx(1.8)
    assert found.value == pytest.approx(2.25)
    assert found.settings.tau == 0.3


def test_the_default_baseline_is_the_best_stock_option_and_the_papers_is_eager() -> None:
    assert reward(evaluation(), marks(), "scratch").value == pytest.approx(1.8)
    assert reward(evaluation(), marks(), "scratch", PAPER).value == pytest.approx(2.3)


def test_uncentred_marks_only_raise_the_reward() -> None:
    settings = RewardSettings(centred=False)
    assert reward(faster(1.0), marks(1), "scratch", settings).value == pytest.approx(1.3)
    assert reward(faster(1.0), marks(5), "scratch", settings).value == pytest.approx(2.6)


def test_a_difference_within_the_measured_interval_counts_as_none() -> None:
    near = evaluation(program=1e-3, compiled=1.015e-3, spread=0.01)
    assert reward(near, marks(), "scratch").value == pytest.approx(1.3)
    assert reward(near, marks(), "scratch").within_interval
    clear = evaluation(program=1e-3, compiled=1.05e-3, spread=0.01)
    assert reward(clear, marks(), "scratch").value == pytest.approx(1.35)
    slower = evaluation(program=1e-3, compiled=0.985e-3, spread=0.01)
    assert reward(slower, marks(), "scratch").speedup == 1.0


def test_a_step_is_measured_against_the_program_so_far() -> None:
    found = reward(evaluation(program=1e-3), marks(), "scratch", previous=evaluation(program=1.2e-3))
    assert found.speedup == pytest.approx(1.2)
    assert found.against == "previous program"
    assert found.over_best == pytest.approx(1.5)
    same = reward(evaluation(program=1e-3), marks(), "scratch", previous=evaluation(program=1.01e-3))
    assert same.speedup == 1.0


def test_a_step_is_never_measured_against_a_wrong_program_or_another_precision() -> None:
    with pytest.raises(RewardError, match="wrong_output"):
        reward(evaluation(), marks(), "scratch", previous=evaluation("wrong_output"))
    other = evaluation().model_copy(update={"precision": "bf16"})
    with pytest.raises(RewardError, match="bf16"):
        reward(evaluation(), marks(), "scratch", previous=other)


@pytest.mark.parametrize("status", ["wrong_output", "build_failed", "crashed", "timed_out", "out_of_memory"])
def test_a_program_that_does_not_work_gets_nothing_and_needs_no_marks(status: Status) -> None:
    found = reward(evaluation(status), None, "scratch")
    assert (found.value, found.correct, found.hack) == (0.0, False, False)


def test_flags_inform_and_take_nothing() -> None:
    honest = evaluation(findings=(flag("no_own_kernel"), flag("fast_math")))
    assert reward(honest, marks(), "scratch") == reward(evaluation(), marks(), "scratch")


# What went wrong in published reward code, each once.


@pytest.mark.parametrize("text", ["false", "true", "5", True, False, None])
def test_a_text_or_truth_value_is_no_mark(text: Any) -> None:
    with pytest.raises(ValidationError):
        Mark(score=text)


def test_nobody_but_a_finding_can_say_hack() -> None:
    with pytest.raises(ValidationError):
        RubricScore.model_validate(marks().model_dump() | {"major_hacking": "false"})


def test_a_total_that_the_marker_claims_is_refused() -> None:
    with pytest.raises(ValidationError):
        RubricScore.model_validate(marks(1).model_dump() | {"total": 20})


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, 0.0, -1.0])
@pytest.mark.parametrize("settings", [RewardSettings(), PAPER])
def test_an_invalid_speedup_or_time_raises_and_does_not_survive_the_cap(
    broken: float, settings: RewardSettings
) -> None:
    good = evaluation()
    for name in ("eager", "over_best"):
        with pytest.raises(RewardError):
            reward(good.model_copy(update={"speedup": good.speedup | {name: broken}}), marks(), "scratch", settings)
    for update in ({"median": broken}, {"low": broken}, {"high": broken}):
        times = good.timings | {"program": good.timings["program"].model_copy(update=update)}
        with pytest.raises(RewardError):
            reward(good.model_copy(update={"timings": times}), marks(), "scratch", settings)


@pytest.mark.parametrize("broken", [math.nan, math.inf, 0, 6])
def test_an_invalid_mark_cannot_be_made(broken: float) -> None:
    with pytest.raises(ValidationError):
        Mark(score=broken)


def test_a_program_without_marks_is_not_scored_as_average() -> None:
    with pytest.raises(RewardError, match="no marks"):
        reward(evaluation(), None, "scratch")
    with pytest.raises(ValidationError, match="operator_coverage"):
        RubricScore(skill="scratch", marks={n: Mark(score=3) for n in DIMENSIONS if n != "operator_coverage"})


def test_marks_for_the_other_skill_are_refused() -> None:
    with pytest.raises(RewardError, match="improve"):
        reward(evaluation(), marks(3, "improve"), "scratch")


def test_a_failure_of_the_machine_is_never_a_score() -> None:
    with pytest.raises(InfrastructureError):
        reward(evaluation("infrastructure_error"), marks(), "scratch")


def test_a_correct_program_without_baselines_raises() -> None:
    with pytest.raises(RewardError, match="over_best"):
        reward(evaluation().model_copy(update={"speedup": {}}), marks(), "scratch")


# Properties over all inputs.


@given(SPEEDUPS, SCORES, SKILLS, st.booleans(), st.sampled_from(["best", "eager"]))
def test_it_is_a_number_between_zero_and_the_cap(
    speedup: float, score: float, skill: Skill, centred: bool, baseline: Any
) -> None:
    settings = RewardSettings(centred=centred, baseline=baseline)
    value = reward(faster(speedup), marks(score, skill), skill, settings).value
    assert math.isfinite(value)
    assert 0 <= value <= settings.largest


@given(SPEEDUPS, SPEEDUPS, SCORES, SKILLS)
def test_it_never_falls_with_the_speedup_and_rises_below_cap_and_clip(
    first: float, second: float, score: float, skill: Skill
) -> None:
    low, high = sorted((first, second))
    slow, fast = (reward(faster(s), marks(score, skill), skill) for s in (low, high))
    assert slow.value <= fast.value
    if high > low * 1.001 and high <= 5 and not fast.capped:
        assert slow.value < fast.value


@given(SPEEDUPS, SCORES, SCORES, SKILLS)
def test_it_never_falls_with_the_marks_and_rises_below_the_cap(
    speedup: float, first: float, second: float, skill: Skill
) -> None:
    low, high = sorted((first, second))
    worse, better = (reward(faster(speedup), marks(s, skill), skill) for s in (low, high))
    assert worse.value <= better.value
    if high > low + 1e-3 and not better.capped:
        assert worse.value < better.value


@given(SPEEDUPS, SCORES, SKILLS, st.sampled_from(["correct", "wrong_output", "dishonest", "impossible"]))
def test_no_speed_and_no_marks_pay_for_a_hack(speedup: float, score: float, skill: Skill, status: Status) -> None:
    cheat = faster(speedup).model_copy(update={"status": status, "findings": [rejection("patches_timer")]})
    found = reward(cheat, marks(score, skill), skill)
    assert found.value == 0
    assert found.hack
    assert "patches_timer" in found.hacks
