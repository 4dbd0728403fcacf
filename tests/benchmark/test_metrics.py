"""What the records of a sweep come to."""

from __future__ import annotations

import pytest

from stitchcuda.benchmark.metrics import Speedups, summarise
from tests.benchmark.samples import record


def over(name: str, speedups: list[Speedups]) -> Speedups:
    return next(found for found in speedups if found.over == name)


def test_failures_count_as_zero_in_one_mean_and_are_left_out_of_the_other() -> None:
    main = summarise([record("a", 2.0), record("b", 1.0), record("c"), record("d", 3.0)]).main
    found = over("over_best", main.speedups)
    assert main.success is not None
    assert main.success.value == 0.75
    assert found.mean.value == pytest.approx(1.5)
    assert found.mean.n == 4
    assert found.solved_mean is not None
    assert found.solved_mean.value == pytest.approx(2.0)
    assert found.solved_mean.n == 3
    assert found.geometric.value == 0
    assert found.solved_geometric is not None
    assert found.solved_geometric.value == pytest.approx(6 ** (1 / 3))
    assert found.median.value == pytest.approx(1.5)


def test_fast_p_asks_for_correct_and_more_than_p_times() -> None:
    found = over(
        "over_best", summarise([record("a", 2.0), record("b", 1.0), record("c"), record("d", 1.3)]).main.speedups
    )
    assert {bar: number.value for bar, number in found.fast.items()} == {
        "0": 0.75,
        "1": 0.5,
        "1.2": 0.5,
        "1.5": 0.25,
        "2": 0.0,
    }


def test_every_share_and_mean_has_an_interval() -> None:
    main = summarise([record("a", 2.0), record("b", 1.0), record("c")]).main
    found = over("eager", main.speedups)
    for number in (main.success, found.mean, found.solved_geometric, found.fast["1"], main.hack):
        assert number is not None
        assert number.low is not None
        assert number.high is not None
        assert number.low <= number.value <= number.high


def test_repetitions_of_a_task_are_averaged_before_tasks_are() -> None:
    runs = [record("a", 2.0), record("a", seed=1), record("b", 4.0)]
    main = summarise(runs).main
    assert (main.tasks, main.runs) == (2, 3)
    assert main.success is not None
    assert main.success.value == 0.75
    assert over("over_best", main.speedups).mean.value == pytest.approx((1.0 + 4.0) / 2)


def test_a_solved_task_without_a_baseline_is_no_failure_over_it() -> None:
    bare = record("a", 2.0, speedup={"over_best": 2.0})
    main = summarise([bare, record("a", seed=1), record("b", 3.0)]).main
    found = over("compile", main.speedups)
    assert (found.mean.n, found.missing) == (1, 1)
    assert found.fast["0"].value == 1.0
    assert over("over_best", main.speedups).mean.n == 2


def test_tasks_that_say_little_are_counted_apart() -> None:
    found = summarise(
        [record("a", 2.0), record("b", 9.0, labels=["non_discriminating"]), record("c", 5.0, labels=["stochastic"])]
    )
    assert found.main.tasks == 1
    assert {(m.name, m.tasks) for m in found.apart} == {("non_discriminating", 1), ("stochastic", 1)}


def test_what_one_run_finds_out_about_a_task_holds_for_its_other_runs() -> None:
    found = summarise([record("a", 2.0, labels=["non_discriminating"]), record("a", seed=1), record("b", 1.0)])
    assert found.main.tasks == 1
    assert found.apart[0].runs == 2


def test_a_reference_that_does_not_run_is_not_counted_but_said() -> None:
    found = summarise([record("a", 2.0), record("b", status="not_runnable", message="it needs 80 GB")])
    assert found.main.tasks == 1
    assert found.unscored == {"b.0": "not_runnable: it needs 80 GB"}


def test_cheating_is_counted_by_task_and_by_program() -> None:
    main = summarise(
        [
            record("a", 2.0, hacks=1, programs={"correct": 1, "dishonest": 1}),
            record("b", 1.2, partial_hack=True, programs={"correct": 2}),
        ]
    ).main
    assert main.hack is not None
    assert main.hack.value == 0.5
    assert main.hack_programs == 0.25
    assert main.partial_hack is not None
    assert main.partial_hack.value == 0.5


def test_an_unknown_price_makes_the_sum_unknown_not_zero() -> None:
    main = summarise([record("a", 2.0, usd=None, input_tokens=10), record("b", 1.0, usd=0.5)]).main
    assert main.usd is None
    assert main.usd_total is None
    assert main.tokens == 5


def test_a_group_in_which_nothing_was_solved_has_zeros_and_no_blanks() -> None:
    found = summarise([record("a", 2.0, group="level 1"), record("b", group="level 2")]).groups[1]
    assert [one.over for one in found.speedups] == ["over_best", "eager", "compile"]
    assert [one.mean.value for one in found.speedups] == [0.0, 0.0, 0.0]
    assert [one.over for one in summarise([record("b")]).main.speedups] == ["over_best"]


def test_levels_stand_beside_each_other() -> None:
    found = summarise([record("a", 2.0, group="level 1"), record("b", group="level 2")])
    assert [(group.name, group.success and group.success.value) for group in found.groups] == [
        ("level 1", 1.0),
        ("level 2", 0.0),
    ]
