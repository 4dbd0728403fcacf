"""Resuming: a run that was stopped anywhere ends as if it had not been, and repeats nothing that its journal holds."""

from __future__ import annotations

import contextlib
import json
import os
import random
from pathlib import Path

import pytest

from stitchcuda.errors import InfrastructureError, RunError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.workflow import events
from stitchcuda.workflow.folder import RunFolder, find_run, list_runs
from stitchcuda.workflow.records import NAME, read_records
from stitchcuda.workflow.result import Best, Result
from stitchcuda.workflow.story import read_story
from tests.workflow.world import (
    EXTENDED,
    Ear,
    Killed,
    ToyBench,
    ToyMind,
    config,
    extended,
    go,
    idea,
    in_turn,
    new_folder,
    program,
    stopping_at_the_last,
    words,
)

SETTINGS = config(replans=1)


def toy() -> ToyMind:
    """Repairs, a step that builds on another, a dead idea and a second plan."""
    return ToyMind(
        plans=[[idea("a", ["x", "y"]), idea("b")], [idea("c")]],
        programs={
            "a/x": ["wrong 1", "correct 1.2"],
            "a/y": ["build 2", "correct 1.4"],
            "b/one": ["nothing", "nothing"],
            "c/one": ["correct 1.3"],
        },
    )


def verdicts(folder: RunFolder) -> list[tuple[int, str, str]]:
    story = read_story(folder)
    return [(a.number, a.status, a.diagnosis) for a in story.attempts]


def without_clock(result: Result) -> dict[str, object]:
    data = result.model_dump()
    data["spent"]["seconds"] = 0
    return {name: value for name, value in data.items() if name not in ("run", "best", "message")}


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk guards against a machine that dies, not a process, and takes most of the time here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("no_sync")
def test_a_run_cut_at_any_line_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = new_folder(tmp_path, SETTINGS)
    undisturbed = go(whole, toy(), settings=SETTINGS)
    journal = (whole.path / NAME).read_bytes()
    ends = [n + 1 for n, byte in enumerate(journal) if byte == ord("\n")]
    draw = random.Random(7)
    cuts = [0, *ends, *draw.sample(range(len(journal)), 15)]
    for cut in cuts:
        folder = new_folder(tmp_path, SETTINGS)
        (folder.path / NAME).write_bytes(journal[:cut])
        done = [r for r in read_records(folder.path / NAME)[0] if r.kind in ("plan", "program", "feedback")]
        mind = toy()
        result = go(folder, mind, settings=SETTINGS, resumed=True)
        assert without_clock(result) == without_clock(undisturbed)
        assert verdicts(folder) == verdicts(whole)
        assert len(mind.asked) + len(done) == len(toy_questions(whole)), "a mind was asked what the journal holds"


def toy_questions(folder: RunFolder) -> list[str]:
    return [r.node for r in read_records(folder.path / NAME)[0] if r.kind in ("plan", "program", "feedback")]


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("moment", range(1, 12))
def test_a_mind_that_dies_in_the_middle_costs_only_that_question(tmp_path: Path, moment: int) -> None:
    whole = new_folder(tmp_path, SETTINGS)
    undisturbed = go(whole, toy(), settings=SETTINGS)
    mind = toy()
    left = moment

    def die(what: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    mind.before = die
    folder = new_folder(tmp_path, SETTINGS)
    with pytest.raises(Killed):
        go(folder, mind, settings=SETTINGS)
    result = go(folder, mind, settings=SETTINGS, resumed=True)
    assert without_clock(result) == without_clock(undisturbed)
    assert mind.asked == _asked_undisturbed(tmp_path)


def _asked_undisturbed(tmp_path: Path) -> list[str]:
    mind = toy()
    go(new_folder(tmp_path, SETTINGS), mind, settings=SETTINGS)
    return mind.asked


def test_nothing_is_measured_again_on_resume(tmp_path: Path) -> None:
    folder = new_folder(tmp_path, SETTINGS)
    go(folder, toy(), settings=SETTINGS)
    bench, ear = ToyBench(), Ear()
    go(folder, toy(), settings=SETTINGS, bench=bench, ear=ear, resumed=True)
    assert bench.asked == []


@pytest.mark.parametrize("room", [8, 12, 16, 20, 28, 36, 44, 52])
def test_a_disk_that_fills_up_anywhere_costs_no_paid_answer(small_disk: Path, tmp_path: Path, room: int) -> None:
    undisturbed = toy()
    expected = go(new_folder(tmp_path, SETTINGS), undisturbed, settings=SETTINGS)
    ballast = small_disk / "ballast"
    folder = new_folder(small_disk, SETTINGS)
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    os.truncate(ballast, max(0, ballast.stat().st_size - room * 1024))
    mind = toy()
    with pytest.raises(InfrastructureError, match=r"disk is full.*runs resume"):
        go(folder, mind, settings=SETTINGS)
    ballast.unlink()
    result = go(folder, mind, settings=SETTINGS, resumed=True)
    assert without_clock(result) == without_clock(expected)
    assert len(mind.asked) <= len(undisturbed.asked) + 1, "only the answer that found no room is asked for again"


def test_a_run_that_used_its_budget_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    steps = list("uvwxyz")

    def climbing() -> ToyMind:
        return ToyMind([[idea("a", steps)]], {f"a/{s}": [f"correct 1.{n}"] for n, s in enumerate(steps, 1)})

    settings = config(iterations=2)
    folder = new_folder(tmp_path, settings)
    assert go(folder, climbing(), settings=settings).over_best == 1.2
    more = settings.limits().model_copy(update={"iterations": 4})
    mind = climbing()
    assert go(folder, mind, settings=settings, resumed=True, more=more).over_best == 1.4
    assert [a for a in mind.asked if a.startswith("code")] == ["code a/w", "code a/x"]
    again = climbing()
    assert go(folder, again, settings=settings, resumed=True, more=more).over_best == 1.4
    assert again.asked == []


class Watching(Ear):
    """Keeps what ``best/`` holds whenever the run says something."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self.folder = folder
        self.best: set[str] = set()

    def emit(self, event: events.Event) -> None:
        super().emit(event)
        self.best.add(words(self.folder.load("best")) if self.folder.best.is_dir() else "")


def test_resuming_an_extended_run_leaves_the_best_program_in_place_at_every_moment(tmp_path: Path) -> None:
    programs = ["correct 1.2", "correct 2.0", "correct 1.1"]
    folder = extended(tmp_path, programs)
    assert words(folder.load("best")) == "correct 2.0"
    ear = Watching(folder)
    with pytest.raises(Killed):
        go(folder, stopping_at_the_last(programs), settings=EXTENDED, resumed=True, ear=ear)
    assert ear.best == {"correct 2.0"}
    assert json.loads((folder.path / "best.json").read_text())["number"] == read_story(folder).best == 2


def test_a_best_program_that_is_gone_or_older_than_the_journal_is_put_back(tmp_path: Path) -> None:
    programs = ["correct 1.2", "correct 2.0", "correct 1.1"]
    folder = extended(tmp_path, programs)
    for spoil in (folder.drop_best, lambda: folder.save_best(program("correct 1.2"), _best(1))):
        spoil()
        with pytest.raises(Killed):
            go(folder, stopping_at_the_last(programs), settings=EXTENDED, resumed=True)
        assert words(folder.load("best")) == "correct 2.0"


def _best(number: int) -> Best:
    evaluation = Evaluation(status="correct", message="", tier="screen", precision="fp32")
    return Best(number=number, idea="a", digest=program("correct 1.2").digest, evaluation=evaluation)


def test_a_run_that_goes_on_after_its_end_has_no_summary_until_it_ends_again(tmp_path: Path) -> None:
    programs = ["correct 1.2", "correct 2.0", "correct 1.1"]
    folder = extended(tmp_path, programs)
    assert folder.summary() is None
    result = go(folder, in_turn(programs), settings=EXTENDED, resumed=True)
    assert folder.summary() == result
    assert (result.number, result.over_best) == (2, 2.0)


def test_what_did_not_hold_in_the_end_is_not_put_back(tmp_path: Path) -> None:
    settings = config()
    folder = new_folder(tmp_path, settings)
    mind = ToyMind([[idea("a")]], {"a/one": ["flaky correct 1.2"]})
    go(folder, mind, settings=settings)
    (folder.path / "summary.json").unlink()
    ear = Watching(folder)
    go(folder, mind, settings=settings, resumed=True, ear=ear)
    assert ear.best == {""}
    assert not (folder.path / "best.json").exists()


def test_runs_are_listed_whatever_lies_beside_them(tmp_path: Path) -> None:
    done = new_folder(tmp_path, SETTINGS)
    go(done, toy(), settings=SETTINGS)
    damaged = new_folder(tmp_path, SETTINGS)
    (damaged.path / NAME).write_bytes(b"{}\n{}\n")
    unfinished = new_folder(tmp_path, SETTINGS)
    strange = new_folder(tmp_path, SETTINGS)
    (strange.path / "config.toml").write_bytes(b"\xff\xfe = [")
    summary = new_folder(tmp_path, SETTINGS)
    (summary.path / "summary.json").write_text("{")
    (tmp_path / "holiday photos").mkdir()
    (tmp_path / "file").write_text("")
    found = {entry.path.name: entry.status for entry in list_runs(tmp_path)}
    assert found == {
        done.path.name: "correct",
        damaged.path.name: "damaged",
        unfinished.path.name: "interrupted",
        strange.path.name: "damaged",
        summary.path.name: "damaged",
        "holiday photos": "not a run",
    }


def test_a_run_is_found_by_a_part_of_its_name(tmp_path: Path) -> None:
    folder = new_folder(tmp_path, SETTINGS)
    assert find_run(folder.path.name[-4:], tmp_path).path == folder.path
    (tmp_path / "holiday photos").mkdir()
    assert find_run("last", tmp_path).path == folder.path
    with pytest.raises(RunError, match=f"newest are {folder.path.name}"):
        find_run("nothing", tmp_path)
    with pytest.raises(RunError, match=r"holds no runs.*--out"):
        find_run("last", tmp_path / "holiday photos")
    assert find_run(str(folder.path), Path("elsewhere")).path == folder.path
