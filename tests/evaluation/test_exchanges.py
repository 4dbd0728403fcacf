"""What an exchange costs without a Program: who is asked, and what is remembered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stitchcuda.evaluation.runner_client import Subject
from stitchcuda.evaluation.session import ASKED, Exchanges, Session
from stitchcuda.evaluation.timing import Sample
from tests.evaluation.conftest import QUICK


class Place:
    """As much of an Evaluator as a session asks for here."""

    def __init__(self, kind: str, *, room: bool = True) -> None:
        self.kind, self.settings, self.crowded = kind, QUICK, False
        self.plan = {"cases": ["few", "many"]}
        self.exchanges = Exchanges()
        self.room = lambda count, programs: room


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many exchanges there were; the first of every process takes long, later ones less the later they are."""
    count: list[int] = []

    def exchange(session: Session, case: str | None) -> None:
        count.append(session.number)
        seconds = 9.0 if count.count(session.number) == 1 else 1 / len(count)
        session.controls.setdefault(str(case), []).append(Sample(0.0, 0.0, 0.0, 0.0, seconds))

    monkeypatch.setattr(Session, "exchange_without_program", exchange)
    return count


def session(place: Any, *, by_itself: bool = False) -> Session:
    made = Session(Subject("program"), cast("Any", place))
    made.by_itself = by_itself
    made.control()
    return made


def test_on_cuda_a_few_processes_are_asked_and_the_smallest_counts(asked: list[int]) -> None:
    place = Place("cuda")
    first = [session(place) for _ in range(ASKED)]
    assert len(set(asked)) == ASKED
    later = session(SimpleNamespace(**vars(place)))
    assert len(set(asked)) == ASKED
    assert later.costs == {case: min(each.costs[case] for each in first) for case in ("few", "many")}


def test_on_cpu_every_process_is_asked(asked: list[int]) -> None:
    place = Place("cpu")
    made = [session(place) for _ in range(ASKED + 2)]
    assert len(set(asked)) == len(made)


def test_one_that_is_by_itself_asks_and_tells_nobody(asked: list[int]) -> None:
    place = Place("cuda")
    for _ in range(ASKED):
        session(place)
    known = dict(place.exchanges.costs)
    alone = session(place, by_itself=True)
    assert asked[-1] == alone.number
    assert alone.costs != known
    assert place.exchanges.costs == known


def test_without_room_for_a_second_process_each_is_asked(asked: list[int]) -> None:
    place = Place("cuda", room=False)
    made = [session(place) for _ in range(ASKED + 1)]
    assert asked[-1] == made[-1].number
