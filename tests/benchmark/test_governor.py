"""Limits that all items of a sweep share."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from stitchcuda.agents.roles import ReplyRecord, RequestKey
from stitchcuda.benchmark.governor import USUAL_TOKENS, Governor, Stopped
from stitchcuda.benchmark.measuring import measured_seconds
from stitchcuda.errors import SweepSpent
from stitchcuda.workflow.effects import Cut
from stitchcuda.workflow.journal import Journal
from tests.workflow.world import ToyMind, config, go, idea, new_folder


def reply(ordinal: int, tokens: int = 100, usd: float = 0.0) -> ReplyRecord:
    key = RequestKey(node="plan#0", role="planner", ordinal=ordinal, request_hash=f"{ordinal}")
    return ReplyRecord(key=key, reply={}, input_tokens=tokens, output_tokens=0, usd=usd)


def test_requests_wait_for_room_in_the_minute() -> None:
    governor = Governor(tokens_per_minute=60 * USUAL_TOKENS * 4)  # room for four of the usual size a second
    governor._room = 0.0
    began = time.monotonic()
    for _ in range(2):
        governor.admit()
    assert time.monotonic() - began >= 0.45


@pytest.mark.parametrize("lane", ["", "b1.1"])
def test_a_wait_for_room_is_none_of_the_runs_time(tmp_path: Path, lane: str) -> None:
    governor = Governor(tokens_per_minute=60 * USUAL_TOKENS * 4)
    governor._room = 0.0
    folder = new_folder(tmp_path, config())
    with Journal.open(folder.path) as journal:
        where = journal.lane(lane) if lane else journal.main

        def produce() -> Cut:
            assert governor.over(journal).find(reply(0).key) is None
            time.sleep(0.1)
            return Cut(reason="")

        began = time.monotonic()
        with where.active():
            where.effect("cut", Cut, produce)
        assert 0.1 <= where.elapsed <= time.monotonic() - began - 0.2


def test_what_a_request_took_beyond_what_was_thought_is_paid_back_by_waiting() -> None:
    governor = Governor(tokens_per_minute=600_000)
    taken = governor.admit()
    governor.settle(taken, 600_000 + int(taken), 0.0)
    assert governor._room < 0


def test_requests_that_were_paid_already_wait_for_nothing(tmp_path: Path) -> None:
    governor = Governor(usd=1.0, spent=2.0)
    with Journal.create(tmp_path) as journal:
        journal.append(reply(0))
        log = governor.over(journal)
        assert log.find(reply(0).key) is not None
        with pytest.raises(SweepSpent, match=r"\$2\.00 of the sweep's \$1\.00"):
            log.find(reply(1).key)


def test_a_run_that_the_sweeps_dollars_do_not_reach_for_is_gone_on_with_later(tmp_path: Path) -> None:
    def poor(what: str) -> None:
        if what.startswith("code"):
            Governor(usd=1.0, spent=1.0).admit()

    mind = ToyMind([[idea("a")]], {"a/one": ["correct 1.3"]}, before=poor)
    folder = new_folder(tmp_path, config())
    with pytest.raises(SweepSpent):
        go(folder, mind)
    assert folder.summary() is None, "it counts neither for nor against anybody"
    mind.before = lambda what: None
    assert go(folder, mind, resumed=True).status == "correct"


def test_dollars_of_all_runs_add_up(tmp_path: Path) -> None:
    governor = Governor(usd=1.0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with Journal.create(tmp_path / name) as journal:
            log = governor.over(journal)
            assert log.find(reply(0).key) is None
            log.append(reply(0, usd=0.6))
    assert governor.spent == pytest.approx(1.2)
    assert governor.out_of_money


def test_a_request_that_waits_ends_when_the_sweep_is_stopped() -> None:
    governor = Governor(tokens_per_minute=1)
    governor._room = -1e9
    threading.Timer(0.05, governor.stop.set).start()
    with pytest.raises(Stopped):
        governor.admit()


def test_a_note_that_a_killed_process_left_half_written_does_not_count(tmp_path: Path) -> None:
    notes = tmp_path / "measured.jsonl"
    notes.write_text('{"kind": "evaluate", "seconds": 2.5}\n{"kind": "profile", "seconds": 1.0}\n{"kind": "pro')
    assert measured_seconds(notes) == 3.5
    assert measured_seconds(tmp_path / "none") == 0.0
