"""A Program's timed calls have to be as accurate as its first."""

from __future__ import annotations

from stitchcuda.evaluation.judging import Round
from stitchcuda.evaluation.levels import Levels

BUDGET = 2e-6


def levels(first: list[float], timed: list[float], family: str = "") -> str:
    """What is said of these errors of one output."""
    found = Levels()
    made = Round("one", None, [], [], -1, set(), family=family, values=family)
    for error in first:
        found.add(made, "0", error, BUDGET, timed=False)
    for error in timed:
        found.add(made, "0", error, BUDGET, timed=True)
    return found.risen()


def test_errors_of_another_size_in_timed_calls_are_told() -> None:
    assert "not computed alike" in levels([1e-7, 2e-7], [1.2e-6, 1.3e-6, 1e-7])


def test_errors_of_one_size_and_those_far_within_the_budget_are_not() -> None:
    assert not levels([4e-7, 5e-7], [1.2e-6, 1.5e-6])
    assert not levels([1e-9], [5e-7, 7e-7])


def test_one_call_in_between_says_nothing() -> None:
    assert not levels([1e-7], [1e-7, 1e-7, 1.9e-6])
    assert not levels([1e-7], [1.9e-6])


def test_inputs_that_span_many_magnitudes_say_nothing() -> None:
    assert not levels([1e-7], [1.9e-6, 1.9e-6], "offset")
    assert levels([1e-7], [1.9e-6, 1.9e-6], "signed")
