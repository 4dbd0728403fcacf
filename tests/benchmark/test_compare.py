"""Two sweeps, task by task."""

from __future__ import annotations

import pytest

from stitchcuda.benchmark.compare import compare, lines
from stitchcuda.errors import StitchError
from tests.benchmark.samples import PROVENANCE, record, sweep

NAMES = "abcdefgh"


def test_a_gain_on_every_task_is_told_from_chance() -> None:
    first, second = (sweep([record(n, base + i / 10) for i, n in enumerate(NAMES)]) for base in (1.0, 2.0))
    found = compare(first, second)
    assert (found.n, found.better, found.worse) == (8, 8, 0)
    assert found.sign_p == pytest.approx(2 / 2**8)
    assert found.wilcoxon_p == pytest.approx(2 / 2**8)
    assert found.ratio is not None
    assert found.ratio_low is not None
    assert 1 < found.ratio_low < found.ratio


def test_a_sweep_equals_itself() -> None:
    one = sweep([record("a", 2.0), record("b")])
    found = compare(one, one)
    assert (found.wilcoxon_p, found.solved_p, found.ratio) == (1.0, 1.0, 1.0)


def test_ratios_are_over_tasks_that_both_solved_and_say_so() -> None:
    found = compare(sweep([record("a", 1.0), record("b")]), sweep([record("a", 3.0), record("b", 2.0)]))
    assert found.both == 1
    assert found.ratio == pytest.approx(3.0)
    assert (found.solved_more, found.solved) == (1, (0.5, 1.0))
    assert "on the 1 tasks that both solved" in "\n".join(lines(found))


def test_what_cannot_be_paired_is_left_out_and_named() -> None:
    odd = record("c", 1.0, labels=["stochastic"])
    found = compare(sweep([record("a", 1.0), record("b", 1.0), odd]), sweep([record("a", 1.0), odd]))
    assert found.n == 1
    assert found.left_out == {"b": "no result in B", "c": "stochastic"}


def test_another_device_is_a_caution() -> None:
    other = record("a", 1.0, provenance=PROVENANCE | {"device": "NVIDIA A100"})
    (caution,) = compare(sweep([record("a", 1.0)]), sweep([other])).cautions
    assert caution == "different devices: NVIDIA H200 in A, NVIDIA A100 in B"


def test_sweeps_without_a_common_task_are_refused() -> None:
    with pytest.raises(StitchError, match="no finished task in common"):
        compare(sweep([record("a", 1.0)]), sweep([record("b", 1.0)]))
    with pytest.raises(StitchError, match="it has over_best, eager, compile"):
        compare(sweep([record("a", 1.0)]), sweep([record("a", 1.0)]), over="cublas")
