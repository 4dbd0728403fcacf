"""A real Ray cluster with one node that works, which has a CPU besides its actor's: what is built meanwhile, and how
long a job waits when that node is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.compute.ray_cluster import RayCompute
from tests.compute.support import PATIENCE, probe, ray_cluster, task_of, until
from tests.program.samples import cpu_program


@pytest.fixture
def cluster() -> Iterator[Any]:
    with ray_cluster(0, 2) as cluster:
        yield cluster


@pytest.mark.timeout(600)
def test_the_next_program_is_built_while_its_device_is_busy(cluster: Any, tmp_path: Path) -> None:
    with RayCompute(cache=tmp_path, build_ahead=True) as place:
        place.submit(probe(pause_s=1))
        running = place.submit(probe(pause_s=600))
        waiting = place.submit(probe(task=task_of("linear"), program=cpu_program()))
        until(lambda: list(tmp_path.rglob("*.so")), "a library in the cache")
        assert not running.done()
        assert not waiting.done()


@pytest.mark.timeout(600)
def test_a_job_whose_node_is_lost_waits_as_long_for_another_as_any_job(cluster: Any, tmp_path: Path) -> None:
    patience = 15.0
    with RayCompute(cache=tmp_path, watch_s=0.1, patience_s=patience) as place:
        running = place.submit(probe(pause_s=600))
        until(lambda: place.capacity().running, "the job's beginning")
        time.sleep(patience / 3)  # The job waited for its actor too; that is over, and does not count.
        lost = time.monotonic()
        cluster.remove_node(cluster.worker_nodes.copy().pop())
        failure = running.result(PATIENCE).failure
        assert failure is not None
        assert failure.reason == "no_device"
        assert time.monotonic() - lost > patience
