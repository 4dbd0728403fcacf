"""What went wrong in a published reward for the same two skills, each once: none of it can happen here.

What is only about the formula is in ``test_formula``, about the service in ``test_service``, about outputs in
``tests/evaluation``; this file has each failure's decisive case.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from stitchcuda.errors import InfrastructureError, RewardError
from stitchcuda.reward import reward
from stitchcuda.reward.combine import combine
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.judge_evidence import items
from stitchcuda.reward.judge_model import Verdict
from stitchcuda.reward.judge_names import Names
from stitchcuda.reward.model import DIMENSIONS, Mark, RewardSettings, RubricScore
from tests.reward import judged
from tests.reward.samples import evaluation, marks, rejection


def test_an_output_of_nan_is_not_within_any_tolerance() -> None:
    import torch

    from stitchcuda.evaluation.compare import Budget, distance

    right = torch.ones(8)
    wrong = right.clone()
    wrong[3] = math.nan
    assert not Budget(math.inf, math.inf).allows(distance(wrong, right))


def test_an_output_of_another_shape_is_not_broadcast() -> None:
    from stitchcuda.evaluation.compare import structure_error

    spec = {"kind": "tensor", "at": 0}
    leaf = {"type": "Tensor", "shape": [4, 8], "dtype": "float32", "device": "cpu"}
    assert "shape [1, 8], expected [4, 8]" in structure_error(spec, spec, [leaf], [{**leaf, "shape": [1, 8]}], "0")


@pytest.mark.parametrize("word", ["false", "true", False, True, "no"])
def test_no_word_of_a_judge_zeroes_a_good_program(word: Any) -> None:
    """``bool("false")`` is true: there it took the reward of honest programs."""
    with pytest.raises(ValidationError):
        Verdict.model_validate(judged.verdict(5) | {"major_hacking": word})
    with pytest.raises(ValidationError):
        Verdict.model_validate(judged.verdict(5) | {"anti_hacking": word})
    worst = combine(marks(5), dict.fromkeys(DIMENSIONS, 1.0)).score
    assert reward(evaluation(), worst, "scratch").value > 0
    assert not reward(evaluation(), worst, "scratch").hack


@pytest.mark.parametrize("broken", [math.nan, math.inf, -1.0, 0.0])
def test_a_speedup_that_is_no_number_does_not_survive_the_cap(broken: float) -> None:
    """``min(nan, cap)`` may be either, and turned every advantage of a group to NaN."""
    found = evaluation()
    with pytest.raises(RewardError):
        reward(found.model_copy(update={"speedup": found.speedup | {"over_best": broken}}), marks(5), "scratch")


def test_a_timeout_of_the_machine_is_not_a_wrong_program() -> None:
    with pytest.raises(InfrastructureError):
        reward(evaluation("infrastructure_error"), None, "scratch")
    assert reward(evaluation("timed_out"), None, "scratch").value == 0


def test_a_judges_failure_is_not_a_neutral_score() -> None:
    """There it became 12 of 20 without a word; here the evidence stands as it is, and the outcome says so."""
    seen = judged.observed()
    evidence = mark(seen, "scratch")
    assert combine(evidence, None).score == evidence
    assert evidence.total != 12
    with pytest.raises(RewardError, match="no marks"):
        reward(seen.evaluation, None, "scratch")


def test_the_judge_does_not_see_code_alone() -> None:
    said = " ".join(item.text for item in items(judged.observed(), "scratch", Names()))
    for measured in ("speed of light", "the best stock option", "in its own kernels", "took over", "fresh inputs"):
        assert measured in said


def test_a_total_is_added_up_and_never_taken_from_the_judge() -> None:
    with pytest.raises(ValidationError):
        Verdict.model_validate(judged.verdict(1) | {"total": 20})
    scored = {name: Mark(score=float(at)) for at, name in enumerate(DIMENSIONS, start=1)}
    assert RubricScore(skill="scratch", marks=scored).total == 10


def test_a_cap_that_binds_is_recorded() -> None:
    """With marks of 20 the published cap is reached at 1.7 times the baseline: beyond, nothing tells programs apart."""
    fast = reward(evaluation(program=5e-4), marks(5), "scratch")
    assert fast.value == 3
    assert fast.capped
    assert not reward(evaluation(program=1.4e-3), marks(5), "scratch").capped


def test_a_graph_around_eager_is_no_speedup_over_the_best_stock_option() -> None:
    stock = evaluation(program=1e-3, eager=8e-3, compiled=1e-3)
    assert reward(stock, marks(3), "scratch", RewardSettings.preset("paper")).value == 3
    assert reward(stock, marks(3), "scratch").speedup == 1


def test_a_rejection_pays_nothing_whatever_the_marks_say() -> None:
    assert reward(evaluation(findings=(rejection("patches_timer"),)), marks(5), "scratch").value == 0
