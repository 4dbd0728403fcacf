"""A bench on a compute place: under which names it asks."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from stitchcuda.compute.model import Job, Outcome
from stitchcuda.compute.spool import SpoolCompute
from stitchcuda.compute.spool_folder import SpoolFolder
from stitchcuda.errors import InfrastructureError, NotMeasured
from stitchcuda.workflow.bench import ComputeBench
from stitchcuda.workflow.instruments import Instruments
from stitchcuda.workflow.journal import Journal
from tests.workflow.world import DEVICE, FACTS, TASK, Ear, config, new_folder, program


class Stopped(SpoolCompute):
    """Nobody works on it, and it is closed as soon as a job lies in it."""

    def submit(self, job: Job) -> Future[Outcome]:
        future = super().submit(job)
        self.close()
        return future


def ask(spool: Path, run: str) -> None:
    """Ask for the task's facts and be stopped before there is an answer."""
    bench = ComputeBench(Stopped(spool))
    bench.of_run(run)
    with pytest.raises(InfrastructureError, match="still in the spool"):
        bench.inspect(TASK)


def test_a_resumed_run_does_not_have_the_same_measured_twice(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    ask(spool, "a")
    ask(spool, "a")
    assert len(SpoolFolder(spool).listed("jobs")) == 1


def test_another_run_measures_for_itself(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    ask(spool, "a")
    ask(spool, "b")
    assert len(SpoolFolder(spool).listed("jobs")) == 2


def test_what_a_run_asks_for_again_is_measured_again(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with SpoolCompute(spool) as compute, ThreadPoolExecutor(2) as pool:
        bench = ComputeBench(compute)
        bench.of_run("a")
        asking = [pool.submit(bench.inspect, TASK) for _ in range(2)]
        deadline = time.monotonic() + 30
        while len(SpoolFolder(spool).listed("jobs")) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        compute.close()
    assert all(isinstance(one.exception(), InfrastructureError) for one in asking)
    assert len(SpoolFolder(spool).listed("jobs")) == 2


def test_a_profile_that_an_interrupt_ended_is_taken_when_the_run_goes_on(tmp_path: Path) -> None:
    """The place closes while the profile is waited for, and is closed when the next is asked for."""
    bench = ComputeBench(Stopped(tmp_path / "spool"))
    bench.use(TASK, FACTS, DEVICE)
    folder = new_folder(tmp_path / "runs", config())
    with Journal.open(folder.path) as journal:
        instruments = Instruments(bench, None, folder, Ear())
        for _ in range(2):
            with pytest.raises(NotMeasured):
                instruments.profiled(journal.main, "001", program("correct 1.5"))
        assert journal.last("profile") is None
