"""A spool on disk: one claim for each job, one result that stands, leases by the file server's clock, and nothing that
somebody leaves in the folder does harm."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stitchcuda.compute.model import NAME, Job, Outcome
from stitchcuda.compute.spool_entry import Entry
from stitchcuda.compute.spool_files import BadFile
from stitchcuda.compute.spool_folder import SpoolFolder
from stitchcuda.errors import ComputeError, InfrastructureError
from tests.compute.support import evaluation_of, probe


@pytest.fixture
def folder(tmp_path: Path) -> SpoolFolder:
    return SpoolFolder(tmp_path / "spool", lease_s=4)


def claimed(folder: SpoolFolder, job: Job, worker: str = "w") -> Entry:
    found = folder.claim(folder.submit(job), worker)
    assert found is not None
    return found


def outcome(job: str, **changes: object) -> Outcome:
    return Outcome.model_validate({"job": job, "kind": "probe"} | changes)


def names(folder: SpoolFolder, where: str) -> list[str]:
    return sorted(p.name for p in (folder.path / where).iterdir() if not p.name.startswith("."))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


# ---- Claims ----


def test_of_many_that_claim_a_job_one_gets_it(folder: SpoolFolder) -> None:
    entries = [folder.submit(probe()) for _ in range(20)]
    got: list[Entry] = []
    start = threading.Barrier(8)

    def work(name: str) -> None:
        start.wait()
        for entry in entries:
            found = folder.claim(entry, name)
            if found is not None:
                got.append(found)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.id for entry in got) == sorted(entry.id for entry in entries)
    assert names(folder, "jobs") == []


def test_a_claimed_job_is_the_one_that_was_submitted(folder: SpoolFolder) -> None:
    job = evaluation_of("relu")
    assert folder.read(claimed(folder, job)) == job


def test_jobs_are_listed_by_priority_and_then_as_they_came(folder: SpoolFolder) -> None:
    for name, priority in (("b1", 50), ("a", 1), ("b2", 50)):
        folder.submit(probe(id=name, priority=priority))
    assert [entry.id for entry in folder.listed("jobs")] == ["a", "b1", "b2"]


@given(st.from_regex(NAME, fullmatch=True), st.integers(1, 999), st.sampled_from(["", "node7-cuda0"]))
def test_a_name_says_what_it_was_made_of(job: str, attempt: int, worker: str) -> None:
    entry = Entry("50-0000000000000001", "0.1-p1", "cpu", "any", job, attempt, 999, worker)
    assert Entry.parse(entry.name) == entry
    assert len(entry.name) <= 255


# ---- Leases ----


def test_a_fresh_lease_holds_and_one_without_a_sign_of_life_goes_back(folder: SpoolFolder) -> None:
    held, lost = claimed(folder, probe(id="held")), claimed(folder, probe(id="lost"))
    age(folder.path / "claimed" / lost.name, 5)
    assert [entry.id for entry in folder.expire()] == ["lost"]
    assert folder.renew(held)
    assert not folder.renew(lost)
    again = folder.listed("jobs")
    assert [(entry.id, entry.attempt) for entry in again] == [("lost", 2)]


def test_a_job_that_waited_longer_than_a_lease_is_not_taken_for_lost_when_it_is_claimed(folder: SpoolFolder) -> None:
    entry = folder.submit(probe())
    age(folder.path / "jobs" / entry.name, 100)
    assert folder.claim(entry, "w") is not None
    assert folder.expire() == []


def test_the_clock_of_this_machine_does_not_count(folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    held = claimed(folder, probe())
    monkeypatch.setattr(time, "time", lambda: 4e9)
    monkeypatch.setattr(time, "time_ns", lambda: 4 * 10**18)
    assert folder.expire() == []
    assert folder.renew(held)


def test_a_job_is_given_up_after_its_attempts_and_says_so(folder: SpoolFolder) -> None:
    first = claimed(folder, probe(id="unlucky", attempts=2))
    age(folder.path / "claimed" / first.name, 9)
    folder.expire()
    second = folder.claim(folder.listed("jobs")[0], "w2")
    assert second is not None
    age(folder.path / "claimed" / second.name, 9)
    folder.expire()
    told = folder.result("unlucky")
    assert told is not None
    assert told.failure is not None
    assert told.failure.reason == "worker_lost"
    assert names(folder, "jobs") == names(folder, "claimed") == []
    assert any(name.endswith(".reason") for name in names(folder, "failed"))


def test_a_job_put_back_in_order_costs_no_attempt(folder: SpoolFolder) -> None:
    folder.release(claimed(folder, probe()), counted=False)
    assert [entry.attempt for entry in folder.listed("jobs")] == [1]


def test_a_claim_whose_worker_died_after_its_result_is_cleared_away(folder: SpoolFolder) -> None:
    entry = claimed(folder, probe(id="done"))
    folder.finish(outcome("done"), None)
    age(folder.path / "claimed" / entry.name, 9)
    assert folder.expire() == []
    assert names(folder, "claimed") == names(folder, "jobs") == []


# ---- Results ----


def test_the_first_result_stands_and_a_later_one_is_kept_beside_it(folder: SpoolFolder) -> None:
    assert folder.finish(outcome("a", run_seconds=1.0), None)
    assert not folder.finish(outcome("a", run_seconds=2.0), None)
    told = folder.result("a")
    assert told is not None
    assert told.run_seconds == 1.0
    assert list(folder.results()) == ["a"]
    assert len(names(folder, "done")) == 2


def test_of_many_results_at_once_one_stands(folder: SpoolFolder) -> None:
    first: list[bool] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        first.append(folder.finish(outcome("a", attempts=number), None))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(first) == [False] * 7 + [True]


def test_without_hard_links_one_result_stands_too(folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, destination: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert folder.finish(outcome("a", run_seconds=1.0), None)
    assert not folder.finish(outcome("a", run_seconds=2.0), None)
    told = folder.result("a")
    assert told is not None
    assert told.run_seconds == 1.0
    folder.forget("a")
    assert folder.finish(outcome("a", run_seconds=3.0), None), "submitted again, it may have a result again"
    died = folder.path / "done" / ".won-b.json"
    died.touch()
    os.utime(died, (0, 0))
    assert folder.finish(outcome("b"), None), "who was to write it died before"
    assert folder.result("b") is not None


def test_a_damaged_result_is_a_failure_and_goes_to_failed(folder: SpoolFolder) -> None:
    (folder.path / "done" / "a.json").write_text('{"job": "a", "ki')
    told = folder.result("a")
    assert told is not None
    assert told.failure is not None
    assert told.failure.reason == "infrastructure"
    assert "a.json" in names(folder, "failed")


def test_artifacts_outside_of_the_spool_are_not_named(folder: SpoolFolder) -> None:
    folder.finish(outcome("a", artifacts={"x": "../../etc/passwd", "y": "/etc/passwd", "z": "a~1~w/trace.json"}), None)
    told = folder.result("a")
    assert told is not None
    assert told.artifacts == {"z": str(folder.path / "artifacts" / "a~1~w" / "trace.json")}


# ---- What others leave there ----


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "half-written": lambda path: path.write_bytes(probe().encode()[:100]),
    "empty": lambda path: path.touch(),
    "no JSON": lambda path: path.write_bytes(b"\x00\xff" * 100),
    "nested": lambda path: path.write_text("[" * 200_000),
    "another schema": lambda path: path.write_text(json.dumps({"schema_version": 2, "kind": "dance"})),
    "another id": lambda path: path.write_bytes(probe(id="somebody-else").encode()),
    "a list": lambda path: path.write_text("[]"),
    "a link": _link,
    "a dangling link": lambda path: path.symlink_to("/nowhere"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "huge": _huge,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_damaged_job_is_refused_with_a_reason(folder: SpoolFolder, kind: str) -> None:
    entry = Entry.of(probe(id="bad"))
    HOSTILE[kind](folder.path / "jobs" / entry.name)
    mine = folder.claim(folder.listed("jobs")[0], "w")
    assert mine is not None
    with pytest.raises(BadFile):
        folder.read(mine)


@pytest.mark.parametrize("name", ["job.json", "50-xyz~q~a~1of3.json", "a" * 255, "-rf", "50 ~ .json", "x\ny"])
def test_a_file_that_is_no_job_is_moved_away(folder: SpoolFolder, name: str) -> None:
    (folder.path / "jobs" / name).write_text("{}")
    assert folder.listed("jobs") == []
    assert names(folder, "jobs") == []
    assert len(names(folder, "failed")) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.binary(max_size=300))
def test_no_bytes_do_harm_as_a_job_or_as_a_result(folder: SpoolFolder, data: bytes) -> None:
    entry = Entry.of(probe(id="bad"))
    (folder.path / "claimed" / "x").write_bytes(data)
    os.rename(folder.path / "claimed" / "x", folder.path / "claimed" / entry.name)
    with pytest.raises(BadFile):
        folder.read(entry)
    (folder.path / "done" / "bad.json").write_bytes(data)
    told = folder.result("bad")
    assert told is not None
    assert told.failure is not None


def test_a_strange_file_among_the_workers_is_moved_away(folder: SpoolFolder) -> None:
    (folder.path / "workers" / "x.json").write_text("hello")
    assert folder.workers() == []
    assert "x.json" in names(folder, "failed")


# ---- The folder itself ----


def test_a_folder_of_something_else_is_not_made_a_spool(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ComputeError, match="other files"):
        SpoolFolder(tmp_path)
    with pytest.raises(ComputeError, match="no spool"):
        SpoolFolder(tmp_path, create=False)


def test_a_spool_of_another_format_is_refused(folder: SpoolFolder) -> None:
    (folder.path / "spool.json").write_text(json.dumps({"format": 2, "lease_s": 60}))
    with pytest.raises(ComputeError, match="format 2"):
        SpoolFolder(folder.path)


def test_a_full_disk_is_told_in_a_sentence_and_leaves_nothing_half_written(small_disk: Path) -> None:
    folder = SpoolFolder(small_disk / "spool")

    def fill() -> None:
        for number in range(1000):
            folder.submit(probe(id=f"n{number}"))

    with pytest.raises(InfrastructureError, match=r"disk of the spool .* is full"):
        fill()
    entries = folder.listed("jobs")
    assert entries
    (small_disk / "spool" / "jobs" / entries[-1].name).unlink()
    for entry in entries[:-1]:
        mine = folder.claim(entry, "w")
        assert mine is not None
        assert folder.read(mine).id == entry.id
