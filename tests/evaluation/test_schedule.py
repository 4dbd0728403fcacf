"""What is scattered over calls is random and yet certain to come."""

from __future__ import annotations

import pytest

from stitchcuda.evaluation.schedule import Strata, case_at, chosen_for_each, follows, related


@pytest.mark.parametrize("share", [0.7, 0.3, 0.5, 0.9])
def test_both_answers_come_in_every_stretch_and_the_share_is_kept(share: float) -> None:
    for _ in range(50):
        drawn = Strata(share)
        answers = [drawn() for _ in range(300)]
        assert sum(answers) / 300 == pytest.approx(share, abs=0.01)
        window = round(2 / min(share, 1 - share))
        assert all(len(set(answers[at : at + window])) == 2 for at in range(300 - window))


@pytest.mark.parametrize(("share", "answer"), [(0.0, False), (1.0, True)])
def test_a_share_of_none_or_all_is_just_that(share: float, answer: bool) -> None:
    drawn = Strata(share)
    assert {drawn() for _ in range(20)} == {answer}


def test_where_the_rarer_answer_falls_differs_from_one_evaluation_to_the_next() -> None:
    assert len({tuple(drawn() for _ in range(12)) for drawn in (Strata(0.7) for _ in range(50))}) > 10


@pytest.mark.parametrize("cases", [1, 2, 3])
@pytest.mark.parametrize("least", [3, 8])
def test_related_inputs_come_in_every_batch_behind_a_call_they_can_be_made_from(cases: int, least: int) -> None:
    for turn in range(1, least * cases):
        for _ in range(20):
            made = related(least * cases, cases, turn, ("permuted", "probe"))
            assert "probe" in made.values()
            assert len(made) == 2 or least * cases == 3
            assert turn not in made
            assert all(follows(at, cases) for at in made)


def test_every_case_gets_its_share_of_the_calls() -> None:
    given = [case_at(index, 3) for index in range(24)]
    assert [given.count(case) for case in range(3)] == [8, 8, 8]
    assert case_at(5, 1) == 0


@pytest.mark.parametrize("cases", [1, 2, 3])
def test_some_calls_of_every_case_are_chosen_and_none_that_is_made_from_another(cases: int) -> None:
    seen = set()
    for _ in range(50):
        made = related(8 * cases, cases, 1, ("signed", "permuted", "probe"))
        chosen = chosen_for_each(8 * cases, cases, made, 2)
        assert not chosen & set(made)
        assert all(sum(case_at(at, cases) == case for at in chosen) == 2 for case in range(cases))
        seen.add(frozenset(chosen))
    assert len(seen) > 10
    assert len(chosen_for_each(3, 1, {1: "probe"}, 5)) == 2
