"""How a sweep treats its items, whatever an item does."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from stitchcuda import __version__
from stitchcuda.benchmark.folder import Sweep, load_results, read_sweep
from stitchcuda.benchmark.log import NAME, Log, read_log
from stitchcuda.benchmark.model import Item, Record, SweepConfig
from stitchcuda.benchmark.suite import items_of
from stitchcuda.benchmark.sweep import Running, resume, start
from stitchcuda.errors import ComputeError, InfrastructureError, ModelAccessError, RunError, StitchError
from tests.benchmark.samples import record
from tests.benchmark.test_suite import SOURCE


class Worked(Running):
    """A pass over items that are done by ``work`` instead of by runs."""

    def work(self, item: Item, turn: int) -> Record:
        return record(item.name, 1.5, seed=item.seed, item=item.id)

    def _once(self, item: Item) -> Record:
        self.turns = getattr(self, "turns", Counter[str]())
        self.turns[item.id] += 1
        return self.work(item, self.turns[item.id])


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name in "abcdef":
        (folder / f"{name}.py").write_text(SOURCE.format("relu"))
    return folder


def begin(tasks: Path, place: Path, kind: type[Worked], **more: object) -> Sweep:
    """A sweep over the tasks by this kind of pass."""
    config = SweepConfig.checked(**({"suite": "folder", "folder": str(tasks), "target": "cpu"} | more))
    place.mkdir()
    with Log(place) as log:
        items = [item.model_dump(mode="json") for item in items_of(config)]
        log.add("begun", {"config": config.model_dump(mode="json"), "items": items})
        return kind(log, place, lambda line: None).run()


def begun(place: Path) -> list[str]:
    """Items in the order in which they were begun."""
    return [str(entry.data["item"]) for entry in read_log(place / NAME)[0] if entry.kind == "item"]


def test_every_item_is_done_once_however_many_work_on_them(tasks: Path, tmp_path: Path) -> None:
    class Slow(Worked):
        together = 0
        most = 0
        guard_count = threading.Lock()

        def work(self, item: Item, turn: int) -> Record:
            with self.guard_count:
                Slow.together += 1
                Slow.most = max(Slow.most, Slow.together)
            time.sleep(0.05)
            with self.guard_count:
                Slow.together -= 1
            return super().work(item, turn)

    sweep = begin(tasks, tmp_path / "sweep", Slow, jobs=3, seeds=2)
    assert sweep.complete
    assert Counter(begun(tmp_path / "sweep")) == {item.id: 1 for item in sweep.items}
    assert len(sweep.records) == 12
    assert Slow.most == 3
    assert load_results(tmp_path / "sweep" / "results.json").records == load_results(tmp_path / "sweep").records


def test_an_item_at_which_the_machine_fails_once_is_tried_again(tasks: Path, tmp_path: Path) -> None:
    class Flaky(Worked):
        def work(self, item: Item, turn: int) -> Record:
            if item.name == "b" and turn == 1:
                raise InfrastructureError("the worker was lost")
            return super().work(item, turn)

    sweep = begin(tasks, tmp_path / "sweep", Flaky)
    assert sweep.complete
    assert [entry.data["reason"] for entry in read_log(tmp_path / "sweep" / NAME)[0] if entry.kind == "failed"] == [
        "the worker was lost"
    ]


def test_an_item_at_which_the_machine_fails_each_time_stays_open(tasks: Path, tmp_path: Path) -> None:
    class Broken(Worked):
        def work(self, item: Item, turn: int) -> Record:
            if item.name == "b":
                raise InfrastructureError("the disk is full")
            return super().work(item, turn)

    sweep = begin(tasks, tmp_path / "sweep", Broken)
    assert not sweep.complete
    assert sweep.open == {"b.0": "the disk is full"}
    assert "- b.0: the disk is full" in (tmp_path / "sweep" / "table.md").read_text()


@pytest.mark.parametrize(
    "error", [InfrastructureError("the GPU fell off the bus"), ModelAccessError("no answer"), ComputeError("no device")]
)
def test_a_sweep_ends_where_item_after_item_fails(tasks: Path, tmp_path: Path, error: StitchError) -> None:
    class Dead(Worked):
        def work(self, item: Item, turn: int) -> Record:
            raise error

    with pytest.raises(type(error), match=f"3 items in a row failed.*{error}"):
        begin(tasks, tmp_path / "sweep", Dead)
    assert begun(tmp_path / "sweep") == ["a.0", "b.0", "c.0"]
    assert read_sweep(tmp_path / "sweep").open["f.0"] == "not run yet"


def test_a_task_that_did_not_run_is_tried_again_when_the_sweep_is_resumed(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crowded(Worked):
        def work(self, item: Item, turn: int) -> Record:
            if item.name == "b":
                return record(item.name, item=item.id, status="not_runnable", message="it ran out of memory")
            return super().work(item, turn)

    first = begin(tasks, tmp_path / "sweep", Crowded)
    assert first.complete
    monkeypatch.setattr("stitchcuda.benchmark.sweep.Running", Worked)
    again = resume(tmp_path / "sweep", tell=lambda line: None)
    assert again.resumed[0]["stitchcuda"] == __version__, "who went on with it is kept"
    assert begun(tmp_path / "sweep").count("b.0") == 2
    assert len(begun(tmp_path / "sweep")) == 7
    assert [found.status for found in again.records] == ["correct"] * 6


def test_no_item_is_begun_once_the_dollars_are_used(tasks: Path, tmp_path: Path) -> None:
    class Costly(Worked):
        def work(self, item: Item, turn: int) -> Record:
            self.governor.settle(0.0, 100, 0.6)
            return super().work(item, turn)

    sweep = begin(tasks, tmp_path / "sweep", Costly, usd=1.0)
    assert [found.item for found in sweep.records] == ["a.0", "b.0"]
    assert set(sweep.open.values()) == {"the sweep's dollars were used before its turn"}


def test_an_error_that_nobody_expected_ends_the_sweep_and_keeps_what_is_done(tasks: Path, tmp_path: Path) -> None:
    class Wrong(Worked):
        def work(self, item: Item, turn: int) -> Record:
            if item.name == "c":
                raise ZeroDivisionError
            return super().work(item, turn)

    with pytest.raises(ZeroDivisionError):
        begin(tasks, tmp_path / "sweep", Wrong, jobs=2)
    assert len(read_sweep(tmp_path / "sweep").records) >= 1


def test_a_finished_sweep_is_not_run_again_and_a_folder_holds_one(tasks: Path, tmp_path: Path) -> None:
    first = begin(tasks, tmp_path / "sweep", Worked)
    length = (tmp_path / "sweep" / NAME).stat().st_size
    again = resume(tmp_path / "sweep", tell=lambda line: None)
    assert again.records == first.records
    assert (tmp_path / "sweep" / NAME).stat().st_size == length
    config = SweepConfig.checked(suite="folder", folder=str(tasks), target="cpu")
    with pytest.raises(RunError, match="holds a sweep already"):
        start(config, tmp_path / "sweep", tell=lambda line: None)


def test_a_task_that_was_changed_on_the_way_is_refused(tasks: Path, tmp_path: Path) -> None:
    class Broken(Worked):
        def work(self, item: Item, turn: int) -> Record:
            if item.name == "f":
                raise InfrastructureError("lost")
            return super().work(item, turn)

    begin(tasks, tmp_path / "sweep", Broken)
    (tasks / "f.py").write_text(SOURCE.format("tanh"))
    with pytest.raises(RunError, match=r"f\.py is not what it was"):
        resume(tmp_path / "sweep", tell=lambda line: None)


def test_a_program_that_was_generated_anew_on_the_way_is_refused(tasks: Path, tmp_path: Path) -> None:
    class Broken(Worked):
        def work(self, item: Item, turn: int) -> Record:
            raise InfrastructureError("lost")

    for name in "ab":
        (tmp_path / f"{name}.py").write_text(SOURCE.format("relu").replace("Model", "ModelNew"))
    begin(tasks, tmp_path / "sweep", Broken, suite="score", programs=str(tmp_path))
    (tmp_path / "b.py").write_text(SOURCE.format("tanh").replace("Model", "ModelNew"))
    with pytest.raises(RunError, match=r"b\.py is not what it was"):
        resume(tmp_path / "sweep", tell=lambda line: None)


def test_what_may_change_on_resuming_is_checked(tasks: Path, tmp_path: Path) -> None:
    begin(tasks, tmp_path / "sweep", Worked)
    with pytest.raises(StitchError, match="unknown compute"):
        resume(tmp_path / "sweep", tell=lambda line: None, changed={"compute": "moon"})
    resume(tmp_path / "sweep", tell=lambda line: None, changed={"jobs": 5})
    assert read_sweep(tmp_path / "sweep").config.jobs == 5


def test_a_spool_is_the_same_folder_wherever_the_sweep_is_resumed_from(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tasks)
    assert SweepConfig.checked(suite="score", compute="spool:here").compute == f"spool:{tasks / 'here'}"
    begin(tasks, tmp_path / "sweep", Worked)
    resume(tmp_path / "sweep", tell=lambda line: None, changed={"compute": "spool:there"})
    monkeypatch.chdir(tmp_path)
    assert read_sweep(tmp_path / "sweep").config.compute == f"spool:{tasks / 'there'}"
