"""Intervals and paired tests, against values from tables and from counting."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcuda.benchmark.statistics import EXACT, geometric, interval, mean, sign_test, wilcoxon, wilson


def test_an_interval_is_the_same_every_time_and_holds_its_figure() -> None:
    values = [0.0, 1.1, 1.3, 0.9, 2.4, 1.7]
    found = interval(values, mean)
    assert found == interval(values, mean)
    assert found is not None
    assert found[0] < sum(values) / 6 < found[1]


def test_one_value_has_no_interval() -> None:
    assert interval([1.5], mean) is None


def test_an_interval_of_the_mean_is_as_wide_as_theory_says() -> None:
    values = [float(index % 2) for index in range(400)]
    low, high = interval(values, mean) or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(1.96 * 0.5 / math.sqrt(400), rel=0.1)


def test_a_geometric_mean_with_a_failure_in_it_is_zero() -> None:
    import numpy as np

    assert geometric(np.array([[2.0, 8.0], [0.0, 8.0]])).tolist() == [pytest.approx(4.0), 0.0]


def test_a_share_of_none_still_has_an_upper_end() -> None:
    low, high = wilson(0, 10)
    assert low == 0
    assert high == pytest.approx(0.2775, abs=1e-3)  # of ten, by the score interval's table


def test_the_sign_test_counts_coins() -> None:
    assert sign_test([1, 2, 3, 4, 5, 0]) == (5, 0, 2 / 2**5)
    assert sign_test([1, -1]) == (1, 1, 1.0)
    assert sign_test([0.0]) == (0, 0, 1.0)


def test_wilcoxon_has_the_critical_value_of_the_tables() -> None:
    # n = 8: a smaller rank sum of 3 is the 5 % two-sided critical value (p = 0.0391), 4 is beyond it (p = 0.0547).
    three = [-1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    four = [-1.0, 2.0, -3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert wilcoxon(three)[1] == pytest.approx(0.0391, abs=1e-4)
    assert wilcoxon(four)[1] == pytest.approx(0.0547, abs=1e-4)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_wilcoxon_is_what_counting_all_signs_gives(values: list[int]) -> None:
    positive, p, n = wilcoxon([float(value) for value in values])
    kept = [abs(value) for value in values if value]
    assert n == len(kept)
    if not kept:
        assert p == 1.0
        return
    ranks = [sum(o < v for o in kept) + (sum(o == v for o in kept) + 1) / 2 for v in kept]
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=n)]
    tail = min(sum(s <= positive for s in sums), sum(s >= positive for s in sums)) / len(sums)
    assert p == pytest.approx(min(1.0, 2 * tail))


def test_many_pairs_are_judged_alike_by_both_ways() -> None:
    values = [(-1.0) ** index * (index + 1) + 9 for index in range(EXACT)]
    exact, approximate = wilcoxon(values)[1], wilcoxon([*values, 0.5])[1]
    assert approximate == pytest.approx(exact, rel=0.25)
