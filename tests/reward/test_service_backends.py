"""Measurements come from a compute place or from a record, and a missing or failed one is told apart from a verdict."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from stitchcuda.benchmark.folder import SETTINGS
from stitchcuda.benchmark.log import Log
from stitchcuda.benchmark.measuring import HELD, Notes
from stitchcuda.compute import open_compute
from stitchcuda.compute.model import Capacity, Job, JobFailure, Outcome
from stitchcuda.errors import InfrastructureError, RecordMissing, RunError, TaskError
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.reward import Reward
from stitchcuda.reward.score import Item, Unscored
from stitchcuda.reward.service import ServiceSettings
from stitchcuda.reward.service_backends import ComputeBackend, RecordedEvaluations, Recorder
from stitchcuda.reward.service_blocking import BlockingService
from stitchcuda.task.model import Target, Task
from stitchcuda.workflow.effects import Coded, Created, Measured, Profiled
from stitchcuda.workflow.journal import Journal
from tests.cli.world import PROGRAM
from tests.cli.world import TASK as SMALL
from tests.report.test_profile_html import H200
from tests.reward.test_cli import KERNEL, NATIVE, scalar, tensor
from tests.reward.test_service import CALM, GRU, TASK, Pool, program, reply


class Place:
    """A compute place that answers each job with the next outcome of a list."""

    def __init__(self, *outcomes: dict[str, object]) -> None:
        self.outcomes = list(outcomes)
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> Future[Outcome]:
        self.jobs.append(job)
        future: Future[Outcome] = Future()
        future.set_result(Outcome.model_validate({"job": job.id, "kind": job.kind} | self.outcomes.pop(0)))
        return future

    def capacity(self) -> Capacity:
        return Capacity(devices=[H200], workers=1, queued=0, running=0)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def failure(reason: str) -> dict[str, object]:
    """An outcome without a result."""
    return {"failure": JobFailure.model_validate({"reason": reason, "message": "so it was"})}


DONE: dict[str, object] = {"evaluation": GRU.evaluation}


def test_a_job_names_the_device_and_its_limits() -> None:
    place = Place({"device": H200}, DONE)
    backend = ComputeBackend.on(place, "cuda", item_seconds=60.0)
    assert asyncio.run(backend.evaluate(TASK, program())) == GRU.evaluation
    job = place.jobs[1]
    assert (job.kind, job.wanted.name, job.time_limit_s, job.program) == ("evaluate", "NVIDIA H200", 60.0, program())


def test_a_second_time_out_is_the_programs() -> None:
    once = ComputeBackend(Place(failure("time_limit"), DONE), H200)
    assert asyncio.run(once.evaluate(TASK, program())).status == "correct"
    twice = ComputeBackend(Place(failure("time_limit"), failure("time_limit")), H200, item_seconds=60.0)
    found = asyncio.run(twice.evaluate(TASK, program()))
    assert (found.status, found.message) == ("timed_out", "no verdict within 60 s, 2 times")


@pytest.mark.parametrize("reason", ["worker_lost", "infrastructure", "no_device", "version_mismatch", "cancelled"])
def test_the_places_failures_leave_a_completion_unscored(reason: str) -> None:
    place = Place(*[failure(reason)] * 3)
    with BlockingService(ComputeBackend(place, H200), CALM) as service:
        found = service.score(TASK, reply())
    assert found == Unscored(kind="infrastructure", reason=f"{reason}: so it was", tries=3)


def test_a_task_that_does_not_run_is_an_error_of_its_own() -> None:
    for kind in ("evaluate", "profile"):
        backend = ComputeBackend(Place(failure("task")), H200)
        with pytest.raises(TaskError, match="so it was"):
            asyncio.run(backend.evaluate(TASK, program()) if kind == "evaluate" else backend.profile(TASK, None))


def test_a_place_without_a_device_is_said_at_once() -> None:
    with pytest.raises(InfrastructureError, match="no_device"):
        ComputeBackend.on(Place(failure("no_device")), "cuda")


def test_what_a_stamp_holds_changes_it() -> None:
    stamps = {
        ComputeBackend(Place(), H200).stamp,
        ComputeBackend(Place(), H200, tier="publish").stamp,
        ComputeBackend(Place(), H200, settings=EvaluationSettings(screen_calls=5)).stamp,
        ComputeBackend(Place(), H200.model_copy(update={"driver": "999"})).stamp,
    }
    assert len(stamps) == 4
    assert ComputeBackend(Place(), H200.model_copy(update={"ceilings": None})).stamp in stamps


def journal(folder: Path) -> Path:
    """A run's journal with a base program, two programs in lanes side by side and a reply that held none."""
    folder.mkdir()
    with Journal.create(folder) as writing:
        writing.effect(
            "created",
            Created,
            lambda: Created(stitchcuda="0", config={}, task=TASK, device=H200, base=program(0)),
        )
        for node, kind, value in (
            ("reference#0", "profile", Profiled(profile=GRU.reference)),
            ("round#1.0:code#0", "program", Coded(program=program(1))),
            ("round#1.1:code#0", "program", Coded(program=program(2))),
            ("round#1.0:evaluate#0", "evaluation", Measured(digest=program(1).digest, evaluation=GRU.evaluation)),
            (
                "round#1.1:evaluate#0",
                "evaluation",
                Measured(
                    digest=program(2).digest, evaluation=GRU.evaluation.model_copy(update={"status": "wrong_output"})
                ),
            ),
            ("round#1.0:profile#0", "profile", Profiled(profile=GRU.profile)),
            ("round#1.1:code#1", "program", Coded(problem="no code")),
        ):
            writing.node = node
            writing.effect(kind, type(value), lambda value=value: value)  # type: ignore[misc]
    return folder


def test_a_runs_journal_is_scored_again_without_running_anything(tmp_path: Path) -> None:
    backend = RecordedEvaluations(journal(tmp_path / "run"))
    assert len(backend) == 2
    with BlockingService(backend, CALM) as service:
        right, wrong, none = service.score_all([Item(TASK, reply(1)), Item(TASK, reply(2)), Item(TASK, "sorry")])
    with BlockingService(Pool(), CALM) as service:
        assert right == service.score(TASK, reply(1)), "as when it is measured"
    assert isinstance(wrong, Reward)
    assert isinstance(none, Reward)
    assert (wrong.status, wrong.value, none.status) == ("wrong_output", 0.0, "no_program")


def test_a_sweeps_folder_is_read_for_its_runs(tmp_path: Path) -> None:
    item = tmp_path / "items" / "gru.0"
    item.mkdir(parents=True)
    journal(item / "run")
    Notes(item / HELD).add("evaluate", 1.0)
    (tmp_path / SETTINGS).touch()
    with Log(tmp_path) as log:
        log.add("begun", {"items": []})
    assert len(RecordedEvaluations(tmp_path)) == 2


def test_what_was_not_recorded_is_named(tmp_path: Path) -> None:
    backend = RecordedEvaluations(journal(tmp_path / "run"))
    with BlockingService(backend, CALM) as service:
        with pytest.raises(RecordMissing, match="2 programs of 1 tasks, of other programs only"):
            service.score(TASK, reply(3))
        with pytest.raises(RecordMissing, match="none of this task"):
            service.score(TASK.model_copy(update={"source": "class Model: pass\n"}), reply(1))


def test_what_a_recorder_keeps_is_scored_alike_and_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "records" / "one.jsonl"
    items = [Item(TASK, reply(n)) for n in range(3)]
    with BlockingService(Recorder(Pool(), path), CALM) as service:
        live = service.score_all(items[:2])
    with path.open("ab") as file:
        file.write(b'{"task": "abc')
    with BlockingService(Recorder(Pool(), path), CALM) as service:
        live += service.score_all(items[2:])
    backend = RecordedEvaluations(path.parent)
    with BlockingService(backend, CALM) as service:
        assert service.score_all(items) == live


def test_machines_failures_are_not_recorded(tmp_path: Path) -> None:
    failed = GRU.evaluation.model_copy(update={"status": "infrastructure_error"})
    with BlockingService(Recorder(Pool(lambda count: failed), tmp_path / "r.jsonl"), CALM) as service:
        assert isinstance(service.score(TASK, reply()), Unscored)
    assert not (tmp_path / "r.jsonl").exists()


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no recorded"):
        RecordedEvaluations(tmp_path)
    (tmp_path / "other.jsonl").write_text(json.dumps({"name": "x"}) + "\n")
    with pytest.raises(RunError, match="line 1"):
        RecordedEvaluations(tmp_path)
    damaged = journal(tmp_path / "run") / "journal.jsonl"
    damaged.write_text(damaged.read_text().replace("wrong_output", "correct"))
    with pytest.raises(RunError, match="damaged"):
        RecordedEvaluations(damaged)


@pytest.mark.slow
def test_real_completions_are_measured_on_this_machine(tmp_path: Path, cache: Path) -> None:
    task = Task(name="small", origin="small.py", source=SMALL, target=Target(kind="cpu", arch="native"))
    manifest = {
        "version": 1,
        "target": "cpu",
        "launchers": [
            {
                "name": "sixteen_steps",
                "source": "kernels.cpp",
                "arguments": [tensor("x"), tensor("scale"), tensor("y", "output"), scalar("rows"), scalar("columns")],
            }
        ],
    }
    good = (
        f"```python program.py{NATIVE}```\n\n```cpp kernels.cpp{KERNEL}```\n\n"
        f"```json manifest.json\n{json.dumps(manifest)}\n```\n"
    )
    wrong = good.replace("16.f *", "15.f *")
    hangs = f"```python program.py{PROGRAM.format(expression='[0 for _ in iter(int, 1)]')}```\n"
    with open_compute("local", cache=cache) as compute:
        settings = EvaluationSettings(call_timeout_s=10.0)
        backend = Recorder(ComputeBackend.on(compute, "cpu", settings=settings), tmp_path / "record.jsonl")
        with BlockingService(backend, ServiceSettings(), cache=tmp_path / "cache.db") as service:
            right, bad, late = service.score_all([Item(task, good), Item(task, wrong), Item(task, hangs)])
    assert isinstance(right, Reward)
    assert isinstance(bad, Reward)
    assert (right.status, right.hack) == ("correct", False)
    assert right.value > 0
    assert right.total is not None
    assert right.total > 8
    assert (bad.status, bad.value) == ("wrong_output", 0.0)
    assert isinstance(late, Reward)
    assert (late.status, late.value) == ("timed_out", 0.0)
    with BlockingService(RecordedEvaluations(tmp_path), CALM) as service:
        assert service.score_all([Item(task, good), Item(task, wrong)]) == [right, bad]
