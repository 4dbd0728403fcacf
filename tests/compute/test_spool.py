"""A spool with real workers: whatever is killed, stopped or of another version, every job ends once and is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.compute.devices import find_devices
from stitchcuda.compute.model import Job, JobFailure, Outcome, Versions, Wanted
from stitchcuda.compute.spool import SpoolCompute
from stitchcuda.compute.spool_folder import Registered, SpoolFolder
from stitchcuda.compute.spool_worker import SpoolWorker, Stop
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.hardware.detect import detect
from stitchcuda.workflow.bench import ComputeBench
from tests.compute.support import FACTS, PATIENCE, evaluation_of, probe, start_worker, task_of, until

BLOCKED = ("pydantic_ai", "openai", "anthropic", "google", "ray", "jinja2", "pypdf", "sentence_transformers", "pyarrow")
"""Packages that a GPU node need not have."""


def claims(spool: SpoolCompute) -> list[str]:
    return [entry.worker for entry in spool.folder.listed("claimed")]


def end(worker: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> int:
    worker.send_signal(how)
    return worker.wait(PATIENCE)


def test_a_job_of_a_killed_worker_is_done_by_another(spool: SpoolCompute, tmp_path: Path) -> None:
    first = start_worker(spool.folder.path, tmp_path)
    future = spool.submit(probe(pause_s=2))
    until(lambda: claims(spool), "a claim")
    end(first, signal.SIGKILL)
    second = start_worker(spool.folder.path, tmp_path, "--until-empty")
    outcome = future.result(PATIENCE)
    assert outcome.ok
    assert outcome.attempts >= 2
    assert second.wait(PATIENCE) == 0


def test_a_worker_that_is_asked_to_stop_puts_its_job_back_uncounted(spool: SpoolCompute, tmp_path: Path) -> None:
    worker = start_worker(spool.folder.path, tmp_path)
    spool.submit(probe(pause_s=600, id="long"))
    until(lambda: claims(spool), "a claim")
    assert end(worker) == 128 + signal.SIGTERM
    assert [(entry.id, entry.attempt) for entry in spool.folder.listed("jobs")] == [("long", 1)]
    assert claims(spool) == []
    assert spool.folder.workers() == []


def test_a_worker_that_slept_past_its_lease_drops_the_job(spool: SpoolCompute, tmp_path: Path) -> None:
    worker = start_worker(spool.folder.path, tmp_path)
    future = spool.submit(probe(pause_s=600, id="held"))
    until(lambda: claims(spool), "a claim")
    worker.send_signal(signal.SIGSTOP)
    until(lambda: any(entry.attempt > 1 for entry in spool.folder.listed("jobs")), "the end of the lease")
    worker.send_signal(signal.SIGCONT)
    # It comes back, finds its lease lost, ends the job's process and takes the next job: the same one.
    until(lambda: any(entry.attempt > 1 for entry in spool.folder.listed("claimed")), "a second claim")
    assert future.cancel() or not future.done()
    end(worker)


def test_a_worker_makes_the_folder_that_it_is_to_work_on(tmp_path: Path) -> None:
    worker = start_worker(tmp_path / "spool", tmp_path, "--once")
    assert worker.wait(PATIENCE) == 0
    SpoolFolder(tmp_path / "spool", create=False).close()


def test_once_does_one_job_and_until_empty_the_rest(spool: SpoolCompute, tmp_path: Path) -> None:
    futures = [spool.submit(probe(id=f"n{number}")) for number in range(3)]
    once = start_worker(spool.folder.path, tmp_path, "--once", "--json", stdout=subprocess.PIPE)
    assert json.loads(once.communicate(timeout=PATIENCE)[0])["done"] == 1
    assert futures[0].result(PATIENCE).ok
    rest = start_worker(spool.folder.path, tmp_path, "--until-empty", "--json", stdout=subprocess.PIPE)
    assert json.loads(rest.communicate(timeout=PATIENCE)[0])["done"] == 2
    assert all(future.result(PATIENCE).ok for future in futures)


def test_a_worker_waits_for_the_next_round_and_ends_after_so_long_without_a_job(
    spool: SpoolCompute, tmp_path: Path
) -> None:
    worker = start_worker(spool.folder.path, tmp_path, "--idle", "6")
    for name in ("first", "second"):
        assert spool.submit(probe(id=name)).result(PATIENCE).ok
        time.sleep(1.5)  # nothing is left, here or at other workers
    assert worker.poll() is None
    assert worker.wait(PATIENCE) == 0


def test_a_device_that_is_idle_waits_as_long_as_another_of_its_worker_has_a_job(
    spool: SpoolCompute, tmp_path: Path
) -> None:
    devices = find_devices("cpu") * 2
    worker = SpoolWorker(spool.folder.path, cache=tmp_path, devices=devices, stop=Stop(idle=1), hidden=False)
    future = spool.submit(probe(pause_s=4))
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: claims(spool), "a claim")
    time.sleep(3)
    assert len(spool.folder.workers()) == 2
    assert future.result(PATIENCE).ok
    thread.join(PATIENCE)
    assert spool.folder.workers() == []


def test_a_worker_needs_torch_and_pydantic_and_no_model_or_retrieval_package(
    spool: SpoolCompute, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {BLOCKED!r}:\n"
        "            raise ImportError(f'{name} is not on this machine')\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    future = spool.submit(evaluation_of("relu", facts=None))
    command = [sys.executable, "-m", "stitchcuda.cli.main", "worker", "--spool", str(spool.folder.path), "--once"]
    environment = os.environ | {"STITCHCUDA_CACHE": str(tmp_path), "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--device", "cpu"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcome = future.result(PATIENCE)
    assert outcome.failure is None
    assert outcome.evaluation is not None
    assert outcome.evaluation.status == "correct"


def test_an_orchestrator_that_comes_back_gets_what_was_done_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    with SpoolCompute(path, lease_s=4) as first:
        futures = [first.submit(probe(id=f"n{number}")) for number in range(4)]
    failure = futures[0].result(0).failure
    assert failure is not None
    assert failure.reason == "cancelled"
    start_worker(path, tmp_path, "--once").wait(PATIENCE)
    with SpoolCompute(path) as second:
        again = [second.submit(probe(id=f"n{number}")) for number in range(5)]
        assert len(second.folder.listed("jobs")) == 4, "a job that is there is not submitted again"
        assert again[0].result(PATIENCE).ok
        start_worker(path, tmp_path, "--until-empty").wait(PATIENCE)
        assert all(future.result(PATIENCE).ok for future in again)
    assert len(list(SpoolFolder(path).results())) == 5


def test_a_spool_can_be_carried_to_the_worker_and_its_results_back(spool: SpoolCompute, tmp_path: Path) -> None:
    futures = [spool.submit(probe(id=f"n{number}")) for number in range(3)]
    away = tmp_path / "away"
    shutil.copytree(spool.folder.path, away)
    assert start_worker(away, tmp_path, "--until-empty").wait(PATIENCE) == 0
    for result in (away / "done").iterdir():
        aside = spool.folder.path / "done" / f".{result.name}"
        shutil.copy(result, aside)
        aside.rename(spool.folder.path / "done" / result.name)
    assert all(future.result(PATIENCE).ok for future in futures)
    # The copies that stayed here are done already, and a worker finds that out.
    assert start_worker(spool.folder.path, tmp_path, "--until-empty").wait(PATIENCE) == 0
    assert spool.folder.listed("jobs") == []
    assert sorted(spool.folder.results()) == ["n0", "n1", "n2"]


def test_a_job_that_failed_for_want_of_a_machine_is_tried_anew_when_it_is_submitted_anew(
    spool: SpoolCompute, tmp_path: Path
) -> None:
    (spool.folder.path / "done" / "a.json").write_text("damaged")
    assert not spool.submit(probe(id="b")).done()
    future = spool.submit(probe(id="a"))
    start_worker(spool.folder.path, tmp_path, "--until-empty").wait(PATIENCE)
    assert future.result(PATIENCE).ok


def test_an_earlier_failure_is_never_given_to_who_submits_the_job_anew(
    spool: SpoolCompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = JobFailure(reason="infrastructure", message="an earlier one")
    spool.folder.finish(Outcome(job="a", kind="probe", failure=failure), None)
    finished = spool.folder.finished

    def slowly(job: str) -> bool:
        time.sleep(1.2)  # time enough for a look at what is there
        return finished(job)

    monkeypatch.setattr(spool.folder, "finished", slowly)
    future = spool.submit(probe(id="a"))
    assert not future.done()
    assert [entry.id for entry in spool.folder.listed("jobs")] == ["a"]


def test_a_resumed_run_goes_on_with_the_job_that_lost_its_workers(spool: SpoolCompute) -> None:
    program = evaluation_of("relu").program
    assert program is not None

    def measured(outcome: dict[str, Any]) -> tuple[str, Evaluation]:
        """What a run says of its program when its job ends so, and that job."""
        bench = ComputeBench(spool)
        bench.of_run("run")
        bench.use(task_of("relu"), FACTS, detect("cpu"))
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(bench.evaluate, program, "screen")
            entry = until(lambda: spool.folder.listed("jobs"), "a job")[0]
            claim = spool.folder.claim(entry, "w")
            spool.folder.finish(Outcome(job=entry.id, kind="evaluate", **outcome), claim)
            return entry.id, future.result(PATIENCE)

    lost = JobFailure(reason="worker_lost", message="3 times a worker was lost")
    first, said = measured({"failure": lost})
    assert said.status == "infrastructure_error"
    assert "worker_lost: 3 times a worker was lost" in said.message
    right = Evaluation(status="correct", message="", tier="screen", precision="fp32")
    second, said = measured({"evaluation": right})
    assert second == first
    assert said == right


def test_an_evaluation_at_which_the_machine_failed_is_no_result_for_who_submits_the_job_anew(
    spool: SpoolCompute,
) -> None:
    job = evaluation_of("relu", id="a")
    failed = Evaluation(status="infrastructure_error", message="no memory", tier="screen", precision="fp32")
    spool.folder.finish(Outcome(job="a", kind="evaluate", evaluation=failed), None)
    future = spool.submit(job)
    assert not future.done()
    assert [entry.id for entry in spool.folder.listed("jobs")] == ["a"]


def test_a_damaged_job_ends_with_a_reason_and_the_worker_goes_on(spool: SpoolCompute, tmp_path: Path) -> None:
    damaged, sound = spool.submit(probe(id="damaged")), spool.submit(probe(id="sound"))
    entry = spool.folder.listed("jobs")[0]
    os.truncate(spool.folder.path / "jobs" / entry.name, 40)
    (spool.folder.path / "jobs" / "junk").mkdir()
    assert start_worker(spool.folder.path, tmp_path, "--until-empty").wait(PATIENCE) == 0
    assert sound.result(PATIENCE).ok
    failure = damaged.result(PATIENCE).failure
    assert failure is not None
    assert failure.reason == "bad_job"
    assert (spool.folder.path / "failed" / "junk").is_dir()


def test_who_works_on_a_spool_can_be_asked(spool: SpoolCompute, tmp_path: Path) -> None:
    worker = start_worker(spool.folder.path, tmp_path, "--name", "node7")
    spool.submit(probe(id="long", pause_s=600))
    spool.submit(probe(id="next"))
    until(lambda: claims(spool), "a claim")
    command = [sys.executable, "-m", "stitchcuda.cli.main", "worker", "show", "--spool", str(spool.folder.path)]
    told = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert (told["waiting"], told["running"], told["done"], told["failed"]) == (1, 1, 0, 0)
    assert [(w["name"].partition(".")[0], w["job"]) for w in told["workers"]] == [("node7-cpu0", "long")]
    assert "node7-cpu0" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    end(worker)


def test_who_waits_for_a_worker_is_told_once_what_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.compute.spool.PATIENCE_SECONDS", 0.1)
    told: list[str] = []
    with SpoolCompute(tmp_path / "spool", tell=told.append) as place:
        place.submit(probe(wanted=Wanted(kind="cuda", name="a GPU that nobody has")))
        until(lambda: told, "a sentence")
        assert f"worker --spool {place.folder.path}" in told[0]
        assert "1 job waits for cuda" in told[0]
        time.sleep(0.5)
        assert len(told) == 1
        place.folder.register(
            Registered(name="w", host="h", pid=1, device="another GPU", kind="cuda", facts=detect("cpu"))
        )
        until(lambda: len(told) == 2, "another sentence")
        assert "its workers have another GPU" in told[1]


def test_nobody_is_told_to_start_a_worker_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcuda.compute.spool.PATIENCE_SECONDS", 0.1)
    told: list[str] = []
    with SpoolCompute(tmp_path / "spool", tell=told.append) as place:
        place.folder.register(
            Registered(name="w", host="h", pid=1, device=detect("cpu").name, kind="cpu", facts=detect("cpu"))
        )
        place.submit(probe(wanted=Wanted(kind="cpu", name=detect("cpu").name)))
        time.sleep(1.0)
        assert told == []
        place.submit(probe(wanted=Wanted(kind="cpu", name="another")))
        until(lambda: told, "a sentence")
        assert detect("cpu").name in told[0]


def test_the_first_device_that_answers_is_everybodys(spool: SpoolCompute) -> None:
    asked = [Job(kind="ceilings", wanted=Wanted(kind="cuda")) for _ in range(3)]
    futures = [spool.submit(job) for job in asked[:2]]
    entry = spool.folder.listed("jobs")[0]
    assert [entry.id for entry in spool.folder.listed("jobs")] == [asked[0].id]
    claim = spool.folder.claim(entry, "w")
    spool.folder.finish(Outcome(job=entry.id, kind="ceilings", device=detect("cpu")), claim)
    answers = [future.result(PATIENCE) for future in [*futures, spool.submit(asked[2])]]
    assert [answer.job for answer in answers] == [job.id for job in asked]
    assert all(answer.device == detect("cpu") for answer in answers)


def test_a_device_that_could_not_be_measured_is_asked_for_anew(spool: SpoolCompute) -> None:
    first = spool.submit(Job(kind="ceilings", wanted=Wanted(kind="cuda"), id="a"))
    failure = JobFailure(reason="infrastructure", message="busy")
    claim = spool.folder.claim(spool.folder.listed("jobs")[0], "w")
    spool.folder.finish(Outcome(job="a", kind="ceilings", failure=failure), claim)
    assert first.result(PATIENCE).failure == failure
    spool.submit(Job(kind="ceilings", wanted=Wanted(kind="cuda"), id="b"))
    assert [entry.id for entry in spool.folder.listed("jobs")] == ["b"]


def test_a_withdrawn_job_is_not_begun(spool: SpoolCompute) -> None:
    future = spool.submit(probe())
    assert future.cancel()
    until(lambda: not spool.folder.listed("jobs"), "the withdrawal")


def test_a_worker_leaves_jobs_of_another_version_alone_and_says_so(spool: SpoolCompute, tmp_path: Path) -> None:
    spool.folder.submit(probe(versions=Versions(stitchcuda="9.9.0")))
    worker = start_worker(spool.folder.path, tmp_path, "--until-empty", stderr=subprocess.PIPE)
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 1
    assert "another version" in said
    assert len(spool.folder.listed("jobs")) == 1


def test_an_orchestrator_refuses_when_all_workers_are_of_another_version(tmp_path: Path) -> None:
    with SpoolCompute(tmp_path / "spool", lease_s=0.4) as spool:
        foreign = Registered(
            name="node1-cpu0",
            host="node1",
            pid=1,
            device="any",
            kind="cpu",
            facts=detect("cpu"),
            versions=Versions(stitchcuda="9.9.0"),
        )
        future = spool.submit(probe())
        deadline = time.monotonic() + PATIENCE
        while not future.done() and time.monotonic() < deadline:
            spool.folder.register(foreign)
            time.sleep(0.1)
        failure = future.result(0).failure
        assert failure is not None
        assert failure.reason == "version_mismatch"
        assert "node1-cpu0: 9.9.0" in failure.message
        assert spool.folder.listed("jobs") == []


@pytest.mark.parametrize(
    "options", [[], ["--once", "--until-empty"], ["--until-empty", "--idle", "9"], ["--device", "tpu"]]
)
def test_wrong_use_is_told_in_a_sentence(spool: SpoolCompute, tmp_path: Path, options: list[str]) -> None:
    where = ["--spool", str(spool.folder.path)] if options else []
    command = [sys.executable, "-m", "stitchcuda.cli.main", "worker", *where, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
