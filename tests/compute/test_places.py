"""Twelve KernelBench-format tasks through this machine and through a spool, one of whose workers is killed in the
middle of a job: the same verdicts. Ray's part is in ``test_ray``."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from stitchcuda.compute.local import LocalCompute
from stitchcuda.compute.spool import SpoolCompute
from stitchcuda.errors import ComputeError, TaskError
from stitchcuda.hardware.detect import detect
from stitchcuda.task.model import Task
from stitchcuda.workflow.bench import ComputeBench
from tests.compute.support import (
    EXPECTED,
    FACTS,
    PATIENCE,
    VERDICTS,
    evaluation_of,
    start_worker,
    task_of,
    until,
    verdicts,
)


def caught_in_a_job(place: SpoolCompute, worker: subprocess.Popen[str], name: str) -> str | None:
    """Stop a worker; the id of the job that it now cannot end, or None, and it goes on."""
    worker.send_signal(signal.SIGSTOP)
    for entry in place.folder.listed("claimed"):
        if entry.worker.startswith(name) and not place.folder.finished(entry.id):
            return entry.id
    worker.send_signal(signal.SIGCONT)
    return None


@pytest.mark.timeout(900)
def test_this_machine_says_what_is_right(tmp_path: Path) -> None:
    with LocalCompute(cache=tmp_path, build_ahead=True) as place:
        assert verdicts({name: place.submit(evaluation_of(name)) for name in VERDICTS}) == EXPECTED


@pytest.mark.timeout(900)
def test_a_spool_with_two_workers_says_the_same_though_one_is_killed_in_a_job(tmp_path: Path) -> None:
    with SpoolCompute(tmp_path / "spool", lease_s=4) as place:
        workers = [start_worker(place.folder.path, tmp_path / "cache", "--name", name) for name in ("one", "two")]
        futures = {name: place.submit(evaluation_of(name)) for name in VERDICTS}
        until(lambda: sum(future.done() for future in futures.values()) >= 2, "two results")
        victim = until(lambda: caught_in_a_job(place, workers[0], "one"), "a worker in a job")
        workers[0].send_signal(signal.SIGKILL)
        workers[0].wait()
        assert verdicts(futures) == EXPECTED
        attempts = {future.result(PATIENCE).job: future.result(PATIENCE).attempts for future in futures.values()}
        assert attempts[victim] >= 2
        workers[1].terminate()
        workers[1].wait(PATIENCE)


@pytest.mark.timeout(600)
def test_a_run_measures_at_a_place_as_it_does_in_its_own_process(tmp_path: Path) -> None:
    job = evaluation_of("relu")
    assert job.program is not None
    with LocalCompute(cache=tmp_path) as place:
        bench = ComputeBench(place)
        facts = bench.inspect(task_of("relu"))
        assert facts.outputs[0].shape == (8, 16)
        broken = Task(name="broken", origin="test", source="import torch\n", target=task_of("relu").target)
        with pytest.raises(TaskError, match="Model"):
            bench.inspect(broken)
        bench.use(task_of("relu"), facts, detect("cpu"))
        assert bench.profile(None).subject == "reference"
        counted = bench.profile(job.program, counters=1)
        assert counted.source == "kineto"
        assert counted.processor is not None or any("without counters" in remark for remark in counted.remarks)
        elsewhere = detect("cpu").model_copy(update={"name": "another machine"})
        bench.use(task_of("relu"), FACTS, elsewhere)
        with pytest.raises(ComputeError, match="another machine"):
            bench.baselines()
