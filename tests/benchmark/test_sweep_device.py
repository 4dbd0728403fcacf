"""On which device a sweep measures: one, found when it begins, whatever else comes and goes."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pytest

from stitchcuda import compute
from stitchcuda.benchmark.folder import read_sweep
from stitchcuda.benchmark.model import SweepConfig
from stitchcuda.benchmark.sweep import resume, start
from stitchcuda.compute.model import Capacity, FailureReason, Job, JobFailure, Outcome
from stitchcuda.errors import ComputeError, InfrastructureError, StitchError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.hardware.model import Ceilings, Device
from stitchcuda.task.model import Target
from tests.benchmark.test_suite import SOURCE
from tests.compute.support import FACTS


def device(name: str, kind: Literal["cuda", "cpu"] = "cuda") -> Device:
    ceilings = Ceilings(copy_bytes_per_second=1e12, flops_per_second={"fp32": 1e13}, measured_on="2026-12-01")
    target = Target(kind=kind, arch="sm_90" if kind == "cuda" else "native")
    return Device(target=target, name=name, multiprocessors=1, memory_bytes=1, cache_bytes=1, ceilings=ceilings)


H200, A100, XEON = device("NVIDIA H200"), device("NVIDIA A100"), device("Xeon", "cpu")


class Elsewhere:
    """A place whose devices answer in turn; jobs of the kind ``lost`` fail for that reason."""

    def __init__(self, *devices: Device, lost: str = "", reason: FailureReason = "worker_lost") -> None:
        self.devices, self.turn, self.lost, self.reason = devices, cycle(devices or [H200]), lost, reason
        self.seen: list[Job] = []

    def submit(self, job: Job) -> Future[Outcome]:
        self.seen.append(job)
        future: Future[Outcome] = Future()
        fitting = [one for one in self.devices if job.wanted.fits(one)]
        if not fitting:
            future.set_result(self._failed(job, JobFailure(reason="no_device", message=f"no {job.wanted.name}")))
        elif job.kind == self.lost:
            future.set_result(self._failed(job, JobFailure(reason=self.reason, message="it failed")))
        else:
            answering = next(one for one in self.turn if one in fitting)
            future.set_result(self._done(job, answering))
        return future

    def _failed(self, job: Job, failure: JobFailure) -> Outcome:
        return Outcome(job=job.id, kind=job.kind, failure=failure)

    def _done(self, job: Job, answering: Device) -> Outcome:
        verdict = Evaluation(status="wrong_output", message="all zeros", tier=job.tier, precision="fp32")
        return Outcome(job=job.id, kind=job.kind, device=answering, facts=FACTS, evaluation=verdict)

    def capacity(self) -> Capacity:
        kinds = sorted({one.target.kind for one in self.devices}, reverse=True)
        return Capacity(kinds=kinds, devices=list(self.devices), workers=len(self.devices), queued=0, running=0)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[Elsewhere]:
    """What is opened next, the last of the list."""
    there: list[Elsewhere] = []
    monkeypatch.setattr(compute, "open_compute", lambda where: there[-1])
    return there


@pytest.fixture
def config(tmp_path: Path) -> SweepConfig:
    """Six programs to be scored."""
    for folder, model in (("tasks", "Model"), ("programs", "ModelNew")):
        (tmp_path / folder).mkdir()
        for name in "abcdef":
            (tmp_path / folder / f"{name}.py").write_text(SOURCE.format("relu").replace("Model", model))
    folders = {"folder": str(tmp_path / "tasks"), "programs": str(tmp_path / "programs")}
    return SweepConfig.checked(suite="score", compute="ray", target="auto", **folders)


def quiet(line: str) -> None:
    pass


def test_all_items_measure_on_the_device_that_answered_first(
    config: SweepConfig, tmp_path: Path, places: list[Elsewhere]
) -> None:
    places.append(Elsewhere(H200, A100, XEON))
    sweep = start(config, tmp_path / "sweep", tell=quiet)
    assert len(sweep.records) == 6
    assert (sweep.config.target, sweep.config.device) == ("cuda", "NVIDIA H200")
    asked = [job for job in places[-1].seen if job.kind == "ceilings"]
    assert [job.wanted.name for job in asked] == [""], "what the device is, is asked once"
    assert {job.wanted.name for job in places[-1].seen if job.kind != "ceilings"} == {"NVIDIA H200"}


def test_a_resumed_sweep_waits_for_its_own_device_and_takes_no_other(
    config: SweepConfig, tmp_path: Path, places: list[Elsewhere]
) -> None:
    places.append(Elsewhere(H200, lost="inspect"))
    with pytest.raises(InfrastructureError, match="3 items in a row"):
        start(config, tmp_path / "sweep", tell=quiet)
    places.append(Elsewhere(A100, XEON))
    with pytest.raises(ComputeError, match="no NVIDIA H200"):
        resume(tmp_path / "sweep", tell=quiet)
    assert len(read_sweep(tmp_path / "sweep").open) == 6
    places.append(Elsewhere(A100, H200))
    sweep = resume(tmp_path / "sweep", tell=quiet)
    assert sweep.complete
    assert {job.wanted.name for job in places[-1].seen} == {"NVIDIA H200"}


def test_what_the_target_is_is_not_guessed_where_nobody_works(
    config: SweepConfig, tmp_path: Path, places: list[Elsewhere]
) -> None:
    places.append(Elsewhere())
    with pytest.raises(ComputeError, match="say --target cuda or --target cpu"):
        start(config, tmp_path / "sweep", tell=quiet)
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_of_this_machine_is_not_gone_on_with_on_another(
    config: SweepConfig, tmp_path: Path, places: list[Elsewhere]
) -> None:
    places.append(Elsewhere(XEON, lost="inspect"))
    with pytest.raises(InfrastructureError):
        start(config, tmp_path / "sweep", tell=quiet)
    with pytest.raises(StitchError, match="measured on 'Xeon', and this machine has"):
        resume(tmp_path / "sweep", tell=quiet, changed={"compute": "local"})
    assert len(read_sweep(tmp_path / "sweep").open) == 6


def test_a_task_that_is_tried_again_is_not_answered_from_what_was_said_before(
    config: SweepConfig, tmp_path: Path, places: list[Elsewhere]
) -> None:
    places.append(Elsewhere(H200, lost="inspect", reason="task"))
    first = start(config, tmp_path / "sweep", tell=quiet)
    assert {found.status for found in first.records} == {"not_runnable"}
    places.append(Elsewhere(H200))
    again = resume(tmp_path / "sweep", tell=quiet)
    assert {found.status for found in again.records} == {"nothing_correct"}
    asked = [{job.id for job in place.seen if job.kind == "inspect"} for place in places]
    assert len(asked[1]) == 6
    assert asked[0].isdisjoint(asked[1])


def test_a_run_whose_task_did_not_run_is_begun_anew(
    config: SweepConfig, tmp_path: Path, places: list[Elsewhere]
) -> None:
    runs = config.model_copy(update={"suite": "folder", "programs": None})
    places.append(Elsewhere(H200, lost="inspect"))
    with pytest.raises(InfrastructureError):
        start(runs, tmp_path / "sweep", tell=quiet)
    places.append(Elsewhere(H200, lost="inspect", reason="task"))
    assert {found.status for found in resume(tmp_path / "sweep", tell=quiet).records} == {"not_runnable"}
    resume(tmp_path / "sweep", tell=quiet)
    asked = [job.id for job in places[-1].seen if job.kind == "inspect"]
    assert len(asked) == len(set(asked)) == 12
