"""Marks of evidence beside marks of two readers who have not seen how evidence marks: ``labelled/`` holds the programs,
what was measured of them, and the readers' marks. Nothing is evaluated here."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from functools import cache

import pytest

from stitchcuda.program.files import load_program
from stitchcuda.program.validate import validate
from stitchcuda.reward.model import DIMENSIONS, Dimension
from tests.reward import labelled
from tests.reward.labelled import HACKS, READERS, agreement, comparison

GIVEAWAYS = re.compile(r"\b(pass.?through|trivial|decorat|decoy|honest|cheat|hack|partial|average|excellent)", re.I)


@cache
def known() -> list[comparison.Row]:
    """Every program with all marks."""
    return comparison.rows(labelled.items(), [labelled.labels(reader) for reader in READERS], labelled.classes())


def test_there_are_sixty_programs_over_ten_tasks_of_every_kind() -> None:
    items, kinds = labelled.items(), labelled.classes()
    assert len(items) >= 60
    assert len({item.task for item in items}) >= 10
    assert sum(item.target == "cuda" for item in items) >= 18
    assert sum(item.skill == "improve" for item in items) >= 16
    assert {item.id for item in items} == set(kinds)
    of_kind = Counter(kinds.values())
    assert set(of_kind) == HACKS | {"partial", "average", "excellent"}
    assert min(of_kind.values()) >= 5


def test_both_halves_hold_every_kind_and_both_skills() -> None:
    kinds = labelled.classes()
    by_half: defaultdict[str, set[str]] = defaultdict(set)
    for item in labelled.items():
        by_half[item.half] |= {kinds[item.id], item.skill, item.target}
    assert by_half["tuning"] == by_half["test"]


def test_programs_are_well_formed_and_do_not_say_what_they_are() -> None:
    for item in labelled.items():
        for name in filter(None, (item.id, item.before)):
            program = load_program(labelled.program_path(name))
            validate(program)
            for path, text in program.files.items():
                assert not GIVEAWAYS.search(text), f"{name}/{path}"


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_marked_every_program_in_whole_levels(reader: str) -> None:
    given = labelled.labels(reader)
    assert set(given) == {item.id for item in labelled.items()}
    for name, marks in given.items():
        assert set(marks) == set(DIMENSIONS), name
        assert all(value in (1, 2, 3, 4, 5) for value in marks.values()), name


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_readers_agree_with_each_other(dimension: Dimension) -> None:
    assert comparison.between_readers(known(), "cpu")[dimension]["kappa"] >= 0.7


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_evidence_ranks_programs_of_tasks_it_was_not_tuned_on_as_readers_do(dimension: Dimension) -> None:
    assert comparison.of_evidence(known(), "test", "cpu")[dimension]["spearman"] >= 0.85


def test_every_hack_ranks_below_every_honest_program() -> None:
    seen = [row for row in known() if row.evidence is not None and row.item.target == "cpu"]
    found = comparison.order(seen)
    assert found["wrong"] == []
    assert found["highest_hack"] < found["lowest_honest"]


def test_equal_values_share_a_rank_and_agreement_is_known_at_its_ends() -> None:
    assert agreement.ranks([3, 1, 3, 2]) == [3.5, 1, 3.5, 2]
    assert agreement.spearman([1, 2, 3], [2, 4, 9]) == pytest.approx(1)
    assert agreement.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(agreement.spearman([1, 1], [1, 2]))
    assert agreement.kappa([1, 5, 1, 5], [1, 5, 1, 5]) == pytest.approx(1)
    assert agreement.kappa([1, 5, 1, 5], [1, 5, 5, 1]) == pytest.approx(0)
    assert agreement.difference([1, 5], [2, 5]) == 0.5
