"""The journal: durable, tamper-evident, replayed in order; a torn end is cut and a full disk is a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from stitchcuda.agents.llm import SpendingLog, TimedLog
from stitchcuda.agents.roles import ReplyLog, ReplyRecord, RequestKey
from stitchcuda.benchmark.governor import Governor
from stitchcuda.errors import InfrastructureError, RunError
from stitchcuda.workflow.journal import Journal, Lane
from stitchcuda.workflow.lock import is_running
from stitchcuda.workflow.records import NAME, read_records, wall_seconds


class Number(BaseModel):
    value: float
    pair: tuple[int, int] = (1, 2)


def record(node: str = "code#0", ordinal: int = 0) -> ReplyRecord:
    key = RequestKey(node=node, role="coder", ordinal=ordinal, request_hash="h")
    return ReplyRecord(key=key, reply={"text": "é"}, input_tokens=10, output_tokens=5, usd=0.25)


def boom() -> Number:
    raise AssertionError("an effect was repeated")


def test_an_effect_is_served_from_the_journal_after_reopening(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        live = journal.effect("number", Number, lambda: Number(value=float("nan")))
    with Journal.open(tmp_path) as journal:
        again = journal.effect("number", Number, boom)
        assert journal.served == 1
    assert live.pair == again.pair == (1, 2)
    assert str(live.value) == str(again.value) == "nan"


def test_the_clock_of_a_resumed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        journal.effect("number", Number, lambda: Number(value=1))
        before = journal.elapsed
    with Journal.open(tmp_path) as journal:
        journal.effect("number", Number, boom)
        assert journal.elapsed == before


def test_a_failed_effect_leaves_no_record(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        with pytest.raises(AssertionError):
            journal.effect("number", Number, boom)
        assert journal.effect("number", Number, lambda: Number(value=3)).value == 3
    assert len(read_records(tmp_path / NAME)[0]) == 1


def test_a_line_whose_writing_was_interrupted_spoils_none_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def interrupted(handle: int) -> None:
        real(handle)
        monkeypatch.setattr(os, "fsync", real)
        raise KeyboardInterrupt

    with Journal.create(tmp_path) as journal:
        beside = journal.lane("round#1.0")
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.note("state", {"long": "x" * 1000})
        beside.note("short", {})
    assert [record.kind for record in read_records(tmp_path / NAME)[0]] == ["short"]


def test_replies_are_found_by_their_key_and_counted_once(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        log: ReplyLog = journal
        assert log.find(record().key) is None
        log.append(record())
        assert log.find(record().key) == record()
    with Journal.open(tmp_path) as journal:
        assert journal.find(record().key) == record()
        assert journal.find(record(ordinal=1).key) is None
        assert journal.replies == [record()]
        assert not journal.replaying, "replies are not part of the order"


def test_the_model_layer_is_told_what_it_will_not_see_again(tmp_path: Path) -> None:
    with Journal.create(tmp_path) as journal:
        assert isinstance(journal, SpendingLog)
        journal.node = "code#0"
        journal.append(record("code#0"))
        journal.effect("number", Number, lambda: Number(value=1))
        journal.node = "code#1"
        journal.append(record("code#1"))
        assert (journal.spent().requests, journal.spent().usd) == (1, 0.25)


def test_the_model_layer_is_told_how_long_the_run_has_worked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("stitchcuda.workflow.journal.time", SimpleNamespace(monotonic=lambda: clock.now))

    def told(lane: Lane, seconds: float) -> float:
        """At the end of an effect that takes so long."""

        def work() -> Number:
            clock.now += seconds
            with lane.active():
                return Number(value=journal.worked())

        return lane.effect("number", Number, work).value

    with Journal.create(tmp_path) as journal:
        assert isinstance(journal, TimedLog)
        assert isinstance(Governor().over(journal), TimedLog)
        assert told(journal.main, 5) == 5
        first, second = journal.lane("round#1.0"), journal.lane("round#1.1")
        assert told(first, 10) == 15
        assert told(first, 10) == 25
        assert told(second, 7) == 12, "what went beside it took none of its time"
        assert told(journal.lane("round#2.0"), 1) == 26, "of a round the longest lane counts"
        clock.now += 1000
        assert journal.worked() == 26
    assert wall_seconds(read_records(tmp_path / NAME)[0]) == 26


def fill(folder: Path, count: int = 4) -> bytes:
    with Journal.create(folder) as journal:
        for n in range(count):
            journal.effect("number", Number, partial(Number, value=n))
    return (folder / NAME).read_bytes()


def test_any_torn_end_is_cut_and_everything_before_it_kept(tmp_path: Path) -> None:
    whole = fill(tmp_path)
    for length in {*range(0, len(whole), 17), *(n for n, byte in enumerate(whole) if byte == ord("\n"))}:
        (tmp_path / NAME).write_bytes(whole[:length])
        with Journal.open(tmp_path) as journal:
            kept = whole[:length].count(b"\n")
            for n in range(4):
                value = journal.effect("number", Number, boom if n < kept else partial(Number, value=n))
                assert value.value == n
        assert len(read_records(tmp_path / NAME)[0]) == 4


def test_a_tail_of_zeros_as_after_a_power_cut_is_cut(tmp_path: Path) -> None:
    whole = fill(tmp_path)
    (tmp_path / NAME).write_bytes(whole + bytes(100))
    Journal.open(tmp_path).close()
    assert (tmp_path / NAME).read_bytes() == whole


@pytest.mark.parametrize("damage", ["flip", "drop", "swap", "forge"])
def test_damage_in_the_middle_is_refused_with_its_line(tmp_path: Path, damage: str) -> None:
    lines = fill(tmp_path).splitlines(keepends=True)
    if damage == "flip":
        lines[1] = lines[1].replace(b'"value":1.0', b'"value":7.0')
    elif damage == "drop":
        del lines[1]
    elif damage == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines[1] = b'{"seq": 1}\n'
    (tmp_path / NAME).write_bytes(b"".join(lines))
    with pytest.raises(RunError, match="damaged at line 2"):
        Journal.open(tmp_path)


def test_another_order_of_effects_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    with Journal.open(tmp_path) as journal:
        journal.node = "code#7"
        with pytest.raises(RunError, match="Resume with the version that began the run"):
            journal.effect("number", Number, boom)


def test_two_processes_cannot_have_one_run(tmp_path: Path) -> None:
    fill(tmp_path)
    assert not is_running(tmp_path)
    with Journal.open(tmp_path):
        assert is_running(tmp_path)
        code = (
            "import sys; from pathlib import Path; from stitchcuda.workflow.journal import Journal;"
            "Journal.open(Path(sys.argv[1]))"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
        )
        assert other.returncode != 0
        assert "in use by another stitchcuda process" in other.stderr
    Journal.open(tmp_path).close()


def test_a_folder_without_a_journal_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        Journal.open(tmp_path)


class Text(BaseModel):
    text: str


def test_a_full_disk_is_a_sentence_and_the_journal_goes_on_when_there_is_room(small_disk: Path) -> None:
    run = small_disk / "run"
    run.mkdir()
    ballast = small_disk / "ballast"
    with Journal.create(run) as journal:
        journal.effect("text", Text, lambda: Text(text="kept"))
        ballast.write_bytes(bytes(90_000))
        with pytest.raises(InfrastructureError, match=r"disk is full.*runs resume"):
            journal.effect("text", Text, lambda: Text(text="x" * 60_000))
    ballast.unlink()
    with Journal.open(run) as journal:
        assert journal.effect("text", Text, lambda: Text(text="repeated")).text == "kept"
        assert journal.effect("text", Text, lambda: Text(text="after")).text == "after"
    assert [json.loads(line)["seq"] for line in (run / NAME).read_text().splitlines()] == [0, 1]
