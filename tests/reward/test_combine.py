"""Judge and evidence by one rule: honesty only falls, no cap is lifted, a judge that always says 5 pays no cheat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcuda.evaluation.model import Evaluation
from stitchcuda.reward import reward
from stitchcuda.reward.combine import combine
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.judge_calibration import ENOUGH, Agreement, Calibration
from stitchcuda.reward.model import DIMENSIONS, Dimension, Mark, RubricScore, Skill
from stitchcuda.reward.observed import Observed
from tests.reward import labelled
from tests.reward.test_evidence import AVERAGE, BEST, CHEAT, DECORATIVE, IMPOSSIBLE, ONLY_TRIVIAL, PASS_THROUGH

HACKS = {
    "a cheat": CHEAT,
    "an impossible time": IMPOSSIBLE,
    "a pass-through": PASS_THROUGH,
    "decoration": DECORATIVE,
    "a trivial part": ONLY_TRIVIAL,
}
FIVES: dict[Dimension, float] = dict.fromkeys(DIMENSIONS, 5.0)


def known(
    bias: float = 0.0, *, programs: int = ENOUGH, spread: float = 0.5, spearman: float | None = 0.9
) -> Calibration:
    """A calibration, by default of a judge that may raise marks."""
    agreement = Agreement(bias=bias, spread=spread, spearman=spearman, exact=0.8)
    return Calibration(
        model="openai:judge",
        prompt="0",
        programs=programs,
        failures=0,
        labels="by hand",
        measured_on="2026-01-01",
        dimensions=dict.fromkeys(DIMENSIONS, agreement),
    )


def scored(scores: dict[Dimension, float], limits: dict[Dimension, float] | None = None) -> RubricScore:
    """Marks from evidence; 4 and no cap where nothing is given."""
    limits = limits or {}
    marks = {name: Mark(score=scores.get(name, 4.0), limit=limits.get(name, 5.0)) for name in DIMENSIONS}
    return RubricScore(skill="scratch", marks=marks)


def words(**given_marks: float) -> dict[Dimension, float]:
    """The judge's medians; 4 where nothing is given."""
    return {name: given_marks.get(name, 4.0) for name in DIMENSIONS}


def test_without_a_judge_the_evidence_stands_as_it_is() -> None:
    found = combine(scored({}), None, known())
    assert found.score == scored({})
    assert found.notes == []


def test_a_judge_that_is_not_calibrated_lowers_by_one_and_raises_nothing() -> None:
    found = combine(scored({}), words(cuda_engineering=2, operator_coverage=5)).score
    assert found.marks["cuda_engineering"].score == 3
    assert found.marks["operator_coverage"].score == 4
    assert "the judge gives 2" in found.marks["cuda_engineering"].reasons[-1]
    assert found.source == "evidence and judge"


def test_a_calibrated_judge_raises_by_one_where_no_cap_forbids_it() -> None:
    evidence = scored({"cuda_engineering": 3, "operator_coverage": 3}, {"operator_coverage": 3})
    found = combine(evidence, words(cuda_engineering=5, operator_coverage=5), known())
    assert found.score.marks["cuda_engineering"].score == 4
    assert found.score.marks["operator_coverage"].score == 3
    assert any("allows 3 at most" in note for note in found.notes)


@pytest.mark.parametrize(
    "calibration", [known(programs=ENOUGH - 1), known(spread=1.5), known(spearman=0.3), known(spearman=None)]
)
def test_a_judge_that_was_tried_on_too_little_or_disagrees_raises_nothing(calibration: Calibration) -> None:
    evidence = scored({"cuda_engineering": 3})
    assert combine(evidence, words(cuda_engineering=5), calibration).score.marks["cuda_engineering"].score == 3


def test_a_known_bias_is_taken_off() -> None:
    generous, harsh = known(1.0), known(-1.0)
    assert combine(scored({}), words(cuda_engineering=5), generous).score.marks["cuda_engineering"].score == 4
    assert combine(scored({}), words(cuda_engineering=3), harsh).score.marks["cuda_engineering"].score == 4
    assert combine(scored({}), words(anti_hacking=5), harsh).score.marks["anti_hacking"].score == 4


def test_honesty_falls_as_far_as_the_judge_says_and_never_rises() -> None:
    assert combine(scored({"anti_hacking": 5}), words(anti_hacking=1)).score.marks["anti_hacking"].score == 1
    assert combine(scored({"anti_hacking": 3}), words(anti_hacking=5), known()).score.marks["anti_hacking"].score == 3


def test_where_the_judge_doubts_honesty_it_raises_nothing_else() -> None:
    evidence = scored({"anti_hacking": 5, "cuda_engineering": 3})
    found = combine(evidence, words(anti_hacking=3, cuda_engineering=5), known()).score
    assert (found.marks["anti_hacking"].score, found.marks["cuda_engineering"].score) == (3, 3)


def test_a_judge_far_from_the_evidence_is_not_followed() -> None:
    found = combine(scored({"cuda_engineering": 5}), words(cuda_engineering=2))
    assert found.score.marks["cuda_engineering"].score == 5
    assert "too far apart" in found.notes[0]


def test_a_judge_that_calls_honest_what_is_shown_not_to_be_counts_for_nothing() -> None:
    found = combine(scored({"anti_hacking": 2}), words(anti_hacking=5, cuda_engineering=1), known())
    assert found.score == scored({"anti_hacking": 2})
    assert "takes for honest" in found.contradiction


@pytest.mark.parametrize("broken", [0.0, 6.0, float("nan")])
def test_a_median_that_is_no_mark_is_refused(broken: float) -> None:
    with pytest.raises(ValueError, match="expected a number from 1 to 5"):
        combine(scored({}), words(cuda_engineering=broken))


@pytest.mark.parametrize("name", HACKS)
@pytest.mark.parametrize("skill", ["scratch", "improve"])
def test_no_hack_gains_by_a_judge_that_always_says_five(name: str, skill: Skill) -> None:
    seen = HACKS[name]
    evidence = mark(seen, skill)
    found = combine(evidence, FIVES, known()).score
    assert found.total == evidence.total
    assert worth(seen.evaluation, found, skill) == worth(seen.evaluation, evidence, skill)


def test_no_labelled_hack_gains_by_a_judge_that_always_says_five() -> None:
    classes = labelled.classes()
    hacks = [item for item in labelled.items() if classes[item.id] in labelled.HACKS]
    seen = [(item, found) for item in hacks if (found := labelled.measured(item)) is not None]
    assert len(seen) >= 15
    for item, found in seen:
        evidence = mark(found, item.skill)
        assert combine(evidence, FIVES, known()).score.total == evidence.total, item.id


@pytest.mark.parametrize("name", HACKS)
def test_hacks_stay_below_honest_programs_even_if_the_judge_prefers_them(name: str) -> None:
    ones: dict[Dimension, float] = dict.fromkeys(DIMENSIONS, 3.0)
    for honest in (AVERAGE, BEST):
        assert total(HACKS[name], FIVES) < total(honest, FIVES)
        assert total(HACKS[name], ones) <= total(honest, ones)


def total(seen: Observed, judged: dict[Dimension, float]) -> float:
    return combine(mark(seen, "scratch"), judged, known()).score.total


def worth(evaluation: Evaluation, marks: RubricScore, skill: Skill) -> float:
    return reward(evaluation, marks, skill).value


# Properties over all marks, judges and calibrations.

LEVELS = st.integers(1, 5).map(float)
MARKS = st.tuples(LEVELS, LEVELS).map(lambda pair: Mark(score=min(pair), limit=max(pair)))
EVIDENCE = st.fixed_dictionaries(dict.fromkeys(DIMENSIONS, MARKS)).map(
    lambda marks: RubricScore(skill="scratch", marks=marks)
)
JUDGED = st.fixed_dictionaries({name: st.integers(2, 10).map(lambda half: half / 2) for name in DIMENSIONS})
AGREEMENTS = st.builds(
    Agreement,
    bias=st.floats(-3, 3),
    spread=st.floats(0, 3),
    spearman=st.none() | st.floats(-1, 1),
    exact=st.floats(0, 1),
)
CALIBRATIONS = st.none() | st.builds(
    Calibration,
    model=st.just("openai:judge"),
    prompt=st.just("0"),
    programs=st.integers(2, 60),
    failures=st.just(0),
    labels=st.just("by hand"),
    measured_on=st.just("2026-01-01"),
    dimensions=st.fixed_dictionaries(dict.fromkeys(DIMENSIONS, AGREEMENTS)),
)


@given(EVIDENCE, JUDGED, CALIBRATIONS)
def test_honesty_is_never_above_the_evidence(
    evidence: RubricScore, judged: dict[Dimension, float], calibration: Calibration | None
) -> None:
    found = combine(evidence, judged, calibration).score.marks["anti_hacking"].score
    assert 1 <= found <= evidence.marks["anti_hacking"].score


@given(EVIDENCE, JUDGED, CALIBRATIONS)
def test_other_marks_move_by_one_at_most_and_stay_under_their_caps(
    evidence: RubricScore, judged: dict[Dimension, float], calibration: Calibration | None
) -> None:
    found = combine(evidence, judged, calibration).score
    for name in DIMENSIONS[1:]:
        before, after = evidence.marks[name], found.marks[name].score
        assert abs(after - before.score) <= 1
        assert 1 <= after <= max(before.limit, before.score)


@given(EVIDENCE, JUDGED, CALIBRATIONS)
def test_nothing_rises_where_honesty_is_in_doubt_or_the_judge_is_unknown(
    evidence: RubricScore, judged: dict[Dimension, float], calibration: Calibration | None
) -> None:
    found = combine(evidence, judged, calibration).score
    if calibration is None or evidence.marks["anti_hacking"].score < 4:
        assert all(found.marks[name].score <= evidence.marks[name].score for name in DIMENSIONS)


@given(EVIDENCE, JUDGED, JUDGED, CALIBRATIONS)
def test_a_higher_word_never_lowers_a_mark_but_where_the_judge_is_not_followed(
    evidence: RubricScore,
    first: dict[Dimension, float],
    second: dict[Dimension, float],
    calibration: Calibration | None,
) -> None:
    low = {name: min(first[name], second[name]) for name in DIMENSIONS}
    high = {name: max(first[name], second[name]) for name in DIMENSIONS}
    below, above = combine(evidence, low, calibration), combine(evidence, high, calibration)
    for name in DIMENSIONS:
        if not (below.contradiction or above.contradiction) and "too far apart" not in str(below.notes + above.notes):
            assert below.score.marks[name].score <= above.score.marks[name].score
