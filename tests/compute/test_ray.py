"""A real Ray cluster of three nodes on this machine: the verdicts of the other places, though a node is lost on the
way, and what it says when it cannot do a job."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.compute import open_compute
from stitchcuda.compute.model import Wanted
from stitchcuda.compute.ray_cluster import RayCompute
from stitchcuda.errors import ToolMissing
from stitchcuda.hardware.detect import detect
from stitchcuda.program.model import Program
from tests.compute.support import (
    EXPECTED,
    PATIENCE,
    VERDICTS,
    evaluation_of,
    openings,
    probe,
    ray_cluster,
    until,
    verdicts,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes, each with one CPU."""
    with ray_cluster(1, 1, 1) as cluster:
        yield cluster


@pytest.mark.timeout(900)
def test_a_job_whose_process_is_killed_is_done_by_the_next(cluster: Any, tmp_path: Path) -> None:
    with RayCompute(cache=tmp_path) as place:
        first = place.submit(probe()).result(PATIENCE)
        assert first.worker is not None
        # A lane counts as a worker before its actor answers; a device that is known has one that can begin at once.
        until(lambda: len(place.capacity().devices) == 3, "an actor on every node")
        futures = [place.submit(probe(pause_s=5, attempts=5)) for _ in range(3)]
        until(lambda: place.capacity().running == 3, "three running jobs")
        time.sleep(2)  # A job counts as running once it is on its way to its actor; the process must be in its pause.
        os.kill(first.worker.pid, signal.SIGKILL)
        outcomes = [future.result(PATIENCE) for future in futures]
        assert all(outcome.ok for outcome in outcomes)
        assert sorted(outcome.attempts for outcome in outcomes) == [1, 1, 2]


@pytest.mark.timeout(900)
def test_three_workers_do_not_open_the_same_tasks(cluster: Any, tmp_path: Path) -> None:
    with RayCompute(cache=tmp_path, build_ahead=True) as place:
        place.submit(probe()).result(PATIENCE)
        until(lambda: len(place.capacity().devices) == 3, "an actor on every node")
        opened = openings(place, ["linear", "square", "sum", "norm"], each=4)
    # Each of them once, and again by who has nothing left to do; not each of them by everybody, which were twelve.
    assert 4 <= opened <= 8


@pytest.mark.timeout(900)
def test_where_actors_hold_every_cpu_no_job_waits_for_a_build_that_cannot_begin(cluster: Any, tmp_path: Path) -> None:
    to_build = Program(files={"program.py": "# load_inline"})
    with RayCompute(cache=tmp_path, build_ahead=True) as place:
        place.submit(probe()).result(PATIENCE)
        until(lambda: len(place.capacity().devices) == 3, "an actor on every node")
        began = time.monotonic()
        futures = [place.submit(probe(program=to_build, pause_s=0.5)) for _ in range(9)]
        assert all(future.result(PATIENCE).ok for future in futures)
        assert time.monotonic() - began < 45


@pytest.mark.timeout(900)
def test_twelve_tasks_have_the_same_verdicts_though_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    with RayCompute(cache=tmp_path) as place:
        futures = {name: place.submit(evaluation_of(name)) for name in VERDICTS}
        until(lambda: sum(future.done() for future in futures.values()) >= 2, "two results")
        until(lambda: place.capacity().workers == 3, "a lane on every node")
        cluster.remove_node(cluster.worker_nodes.copy().pop())
        assert verdicts(futures) == EXPECTED
        until(lambda: place.capacity().workers == 2, "the loss of a lane")


@pytest.mark.timeout(600)
def test_a_device_that_no_node_has_is_said_to_be_missing(cluster: Any) -> None:
    with RayCompute(watch_s=0.1, patience_s=0.3) as place:
        failure = place.submit(probe(wanted=Wanted(kind="cuda"))).result(PATIENCE).failure
    assert failure is not None
    assert failure.reason == "no_device"
    assert "no node" in failure.message


@pytest.mark.timeout(600)
def test_a_job_never_goes_to_another_device_than_the_one_it_names(cluster: Any, tmp_path: Path) -> None:
    with RayCompute(cache=tmp_path, watch_s=0.1, patience_s=3) as place:
        here, elsewhere = Wanted(kind="cpu", name=detect("cpu").name), Wanted(kind="cpu", name="another")
        futures = [place.submit(probe(wanted=wanted)) for wanted in (elsewhere, here)]
        failure = futures[0].result(PATIENCE).failure
        assert failure is not None
        assert failure.reason == "no_device"
        assert "'another'" in failure.message
        assert futures[1].result(PATIENCE).ok


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ToolMissing, match=r"stitchcuda\[ray\]"):
        open_compute("ray")
