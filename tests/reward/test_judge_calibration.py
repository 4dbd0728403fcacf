"""How far a judge is from known marks: figures by hand, what follows from them, keeping them by the model's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcuda.errors import RewardError
from stitchcuda.reward.judge_calibration import ENOUGH, Calibration, Marks, calibrate, place, spearman, store, stored
from stitchcuda.reward.judge_known import KnownProgram, read, try_judge
from stitchcuda.reward.model import DIMENSIONS, Dimension
from tests.reward import judged
from tests.reward.samples import evaluation

KNOWN = [1.0, 2.0, 3.0, 4.0, 5.0] * 4


def marks(score: float) -> dict[Dimension, float]:
    return dict.fromkeys(DIMENSIONS, score)


def tried(found: list[float | None], known: list[float] | None = None) -> Calibration:
    """Of a judge that gave these marks, the same on all dimensions."""
    truth: list[Marks] = [marks(score) for score in known or KNOWN]
    answers: list[Marks | None] = [None if score is None else marks(score) for score in found]
    return calibrate(truth, answers, model="openai:judge", prompt="0", labels="by hand", measured_on="2026-01-01")


def test_bias_spread_and_agreement_are_those_of_the_differences() -> None:
    found = tried([2.0, 3.0, 3.0], [1.0, 2.0, 4.0]).dimensions["cuda_engineering"]
    assert found.bias == pytest.approx(1 / 3)
    assert found.spread == pytest.approx(((4 / 9 + 4 / 9 + 16 / 9) / 2) ** 0.5)
    assert found.exact == 0
    assert found.spearman == pytest.approx(0.866, abs=1e-3)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3], [2, 4, 9], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 2, 4], [1, 3, 2, 4], 0.948683),
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_rank_correlation_shares_ranks_of_equal_marks(
    first: list[float], second: list[float], expected: float | None
) -> None:
    found = spearman(first, second)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-5))


def test_a_judge_that_agrees_may_raise_marks_and_its_bias_is_taken_off() -> None:
    found = tried([min(score + 0.5, 5.0) for score in KNOWN])
    assert all(found.raises(name) for name in DIMENSIONS)
    assert 0 < found.offset("cuda_engineering") <= 0.5


@pytest.mark.parametrize(
    "given_marks",
    [
        [5.0] * len(KNOWN),
        [6.0 - score for score in KNOWN],
        [*KNOWN[: ENOUGH - 1], None],
    ],
    ids=["always 5", "the other way round", "too few"],
)
def test_a_judge_that_always_says_five_or_disagrees_may_not(given_marks: list[float | None]) -> None:
    assert not any(tried(given_marks).raises(name) for name in DIMENSIONS)


def test_failed_judgements_are_counted_and_two_are_needed() -> None:
    assert tried([1.0, None, 3.0], [1.0, 2.0, 3.0]).failures == 1
    with pytest.raises(RewardError, match="1 of 3 programs were judged"):
        tried([1.0, None, None], [1.0, 2.0, 3.0])


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=2, max_size=40))
def test_figures_are_numbers_in_their_bounds(pairs: list[tuple[int, int]]) -> None:
    found = tried([float(j) for _, j in pairs], [float(k) for k, _ in pairs]).dimensions["operator_coverage"]
    assert -4 <= found.bias <= 4
    assert 0 <= found.spread <= 6
    assert found.spearman is None or -1 <= found.spearman <= 1


def test_it_is_kept_by_the_models_name(tmp_path: Path) -> None:
    found = tried(list(KNOWN))
    path = place(tmp_path, found.model)
    assert stored(path) is None
    store(found, path)
    assert stored(path) == found
    assert place(tmp_path, "openai:other") != path
    path.write_text("{}")
    with pytest.raises(RewardError, match="calibrate again"):
        stored(path)


def known_program(number: int, status: str = "correct") -> KnownProgram:
    seen = judged.observed()
    return KnownProgram.model_validate(
        {
            "id": f"p{number}",
            "task": judged.task(),
            "skill": "scratch",
            "evaluation": seen.evaluation if status == "correct" else evaluation("wrong_output"),
            "program": seen.program,
            "reference": seen.reference,
            "profile": seen.profile,
            "marks": marks(1 + number % 5),
        }
    )


def test_programs_with_known_marks_are_read_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "known.jsonl"
    programs = [known_program(0), known_program(1)]
    path.write_text("\n".join(p.model_dump_json() for p in programs) + "\n\n")
    assert read(path) == programs
    assert read(path)[0].observed.evaluation == judged.observed().evaluation
    for broken, says in (("", "holds no program"), ('{"id": "p0"}', "line 1 of")):
        path.write_text(broken)
        with pytest.raises(RewardError, match=says):
            read(path)


def test_a_judge_is_tried_on_correct_programs_alone() -> None:
    pytest.importorskip("pydantic_ai")
    from stitchcuda.reward.judge import Judge
    from tests.support.scripted_endpoint import ScriptedEndpoint, tool

    programs = [*(known_program(number) for number in range(4)), known_program(4, "wrong_output")]
    with ScriptedEndpoint(lambda request, number: tool(judged.verdict(4))) as endpoint:
        judge = Judge(judged.settings(endpoint.base_url, votes=1))
        found, outcomes = try_judge(judge, programs)
        assert endpoint.count == 4
    assert set(outcomes) == {"p0", "p1", "p2", "p3"}
    assert (found.programs, found.prompt, found.model) == (4, judge.prompt, "openai:scripted")
    assert found.offset("anti_hacking") == pytest.approx(4 - 2.5)
