"""A Program's timed calls have to be as accurate as its first."""

from __future__ import annotations

import pytest
import torch

from stitchcuda.evaluation.judging import Round
from stitchcuda.evaluation.levels import Levels

BUDGET = 2e-6


MANY = torch.empty(4096)


def levels(
    first: list[float],
    timed: list[float],
    family: str = "",
    output: torch.Tensor = MANY,
    budget: float = BUDGET,
) -> str:
    """What is said of these errors of one output."""
    found = Levels()
    made = Round("one", None, [], [], -1, set(), family=family, values=family)
    for error in first:
        found.add(made, "0", output, error, budget, timed=False)
    for error in timed:
        found.add(made, "0", output, error, budget, timed=True)
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


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_ties_that_fall_otherwise_in_timed_calls_say_nothing(dtype: torch.dtype) -> None:
    integers = MANY.to(dtype)
    assert not levels([0.0, 0.0], [1 / 4096, 1 / 4096], output=integers, budget=0.0)
    assert not levels([1 / 4096], [8 / 4096, 8 / 4096], output=integers, budget=8 / 4096)


def test_the_error_of_a_few_numbers_is_a_matter_of_luck() -> None:
    assert not levels([1e-8, 2e-8], [1.2e-6, 1.3e-6], output=torch.empty(()))
    assert not levels([1e-8, 2e-8], [1.2e-6, 1.3e-6], output=torch.empty(12, 12))
    assert levels([1e-8, 2e-8], [1.2e-6, 1.3e-6], output=torch.empty(16, 16, dtype=torch.complex64))


def test_a_program_without_error_in_its_first_calls_may_err_a_little_in_timed_ones() -> None:
    assert not levels([0.0, 0.0], [7e-7, 7e-7])
    assert levels([0.0, 0.0], [9e-7, 9e-7])
