"""This machine as a place: a lost process costs an attempt, a limit ends a job, and closing leaves nobody waiting."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitchcuda.compute import open_compute
from stitchcuda.compute.cpu_lock import cpu_lock
from stitchcuda.compute.local import LocalCompute
from stitchcuda.compute.model import Versions, Wanted
from stitchcuda.errors import InfrastructureError
from tests.compute.support import PATIENCE, openings, probe, until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCompute]:
    with LocalCompute(cache=tmp_path_factory.mktemp("cache")) as compute:
        yield compute


def worker_pid(place: LocalCompute) -> int:
    """The process that works now, once it does."""
    lane = until(lambda: place._lanes.get("cpu"), "a lane")[0]
    until(lambda: lane.busy is not None and lane.process is not None and lane.process.alive(), "a job's beginning")
    return int(lane.process.pid)


def test_a_job_whose_process_is_killed_is_done_by_the_next(place: LocalCompute) -> None:
    future = place.submit(probe(pause_s=3))
    os.kill(worker_pid(place), signal.SIGKILL)
    outcome = future.result(PATIENCE)
    assert outcome.ok
    assert outcome.attempts == 2


def test_a_job_that_takes_its_processes_with_it_ends_as_lost(place: LocalCompute) -> None:
    future = place.submit(probe(pause_s=60, attempts=2))
    first = worker_pid(place)
    os.kill(first, signal.SIGKILL)
    until(lambda: worker_pid(place) != first, "a second process")
    os.kill(worker_pid(place), signal.SIGKILL)
    outcome = future.result(PATIENCE)
    assert outcome.failure is not None
    assert outcome.failure.reason == "worker_lost"
    assert "SIGKILL" in outcome.failure.message
    assert "attempt 2 of 2" in outcome.failure.message


def test_a_job_past_its_limit_is_ended_and_the_next_goes_on(place: LocalCompute) -> None:
    outcome = place.submit(probe(pause_s=60, time_limit_s=0.3)).result(PATIENCE)
    assert outcome.failure is not None
    assert outcome.failure.reason == "time_limit"
    assert place.submit(probe()).result(PATIENCE).ok


def test_a_cancelled_job_never_begins(place: LocalCompute) -> None:
    running = place.submit(probe(pause_s=2))
    worker_pid(place)
    waiting = place.submit(probe())
    assert place.capacity().queued == 1
    assert waiting.cancel()
    assert running.result(PATIENCE).ok
    until(lambda: place.capacity().queued == 0, "the queue's end")


def test_a_job_of_another_version_is_refused_by_name(place: LocalCompute) -> None:
    outcome = place.submit(probe(versions=Versions(stitchcuda="9.9.9"))).result(PATIENCE)
    assert outcome.failure is not None
    assert outcome.failure.reason == "version_mismatch"
    assert "9.9.9" in outcome.failure.message


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
def test_a_device_that_is_not_here_is_said_to_be_missing(place: LocalCompute) -> None:
    outcome = place.submit(probe(wanted=Wanted(kind="cuda"))).result(PATIENCE)
    assert outcome.failure is not None
    assert outcome.failure.reason == "no_device"


@pytest.mark.usefixtures("two_kinds")
def test_a_job_goes_to_the_kind_of_gpu_that_it_names_and_to_no_other(tmp_path: Path) -> None:
    with LocalCompute(cache=tmp_path) as place:
        wanted = Wanted(kind="cuda", name="Kind 1")
        futures = [place.submit(probe(wanted=wanted, pause_s=0.2)) for _ in range(4)]
        workers = [future.result(PATIENCE).worker for future in futures]
        assert {worker.name for worker in workers if worker is not None} == {"cuda1"}
        assert [device.name for device in place.capacity().devices] == ["Kind 0", "Kind 1"]
        failure = place.submit(probe(wanted=Wanted(kind="cuda", name="Kind 2"))).result(PATIENCE).failure
        assert failure is not None
        assert failure.reason == "no_device"
        assert "Kind 2" in failure.message


@pytest.mark.usefixtures("two_kinds")
def test_a_gpu_that_does_not_answer_is_told_and_no_job_is_lost_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,broken")
    with LocalCompute(cache=tmp_path) as place:
        failure = place.submit(probe(wanted=Wanted(kind="cuda"))).result(PATIENCE).failure
        assert failure is not None
        assert failure.reason == "no_device"
        assert "cuInit gives 999" in failure.message
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert place.submit(probe(wanted=Wanted(kind="cuda"))).result(PATIENCE).ok


def test_closing_ends_the_running_job_and_those_that_wait(tmp_path: Path) -> None:
    with open_compute("local", cache=tmp_path) as place:
        assert isinstance(place, LocalCompute)
        running = place.submit(probe(pause_s=60))
        waiting = place.submit(probe())
        pid = worker_pid(place)
    for future in (running, waiting):
        failure = future.result(0).failure
        assert failure is not None
        assert failure.reason == "cancelled"
    assert not os.path.exists(f"/proc/{pid}")
    with pytest.raises(InfrastructureError, match="closed"):
        place.submit(probe())


def test_one_at_a_time_measures_on_the_cpu(tmp_path: Path) -> None:
    inside: list[str] = []

    def second() -> None:
        with cpu_lock(tmp_path):
            inside.append("second")

    with cpu_lock(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        inside.append("first")
    thread.join(PATIENCE)
    assert inside == ["first", "second"]


@pytest.mark.timeout(600)
def test_two_workers_share_tasks_out_and_do_not_open_each_twice(tmp_path: Path) -> None:
    with LocalCompute(cache=tmp_path, cpu_workers=2) as place:
        assert 3 <= openings(place, ["linear", "square", "sum"], each=3) <= 4
