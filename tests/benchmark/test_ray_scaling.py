"""What the measurement on several GPUs makes of its outcomes, and, where KernelBench is there, that it runs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stitchcuda.compute.local import LocalCompute
from stitchcuda.compute.model import Job, JobFailure, Outcome, WorkerInfo
from stitchcuda.evaluation.model import Evaluation, Status
from tests.compute.support import evaluation_of, probe

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ray_scaling.py"
SIBLINGS = ("evaluation_throughput", "programs", "provenance", "throughput_page")


@pytest.fixture(scope="module")
def scaling() -> Iterator[ModuleType]:
    path, before = list(sys.path), set(sys.modules)
    spec = importlib.util.spec_from_file_location("ray_scaling_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    for name in set(SIBLINGS) - before:
        sys.modules.pop(name, None)


def outcome(status: Status, worker: str, seconds: float, **stages: float) -> Outcome:
    return Outcome(
        job="j",
        kind="evaluate",
        evaluation=Evaluation(status=status, message="", tier="screen", precision="fp32", seconds=stages),
        worker=WorkerInfo(name=worker, host="h", pid=1),
        run_seconds=seconds,
    )


def test_rates_and_idle_time_are_those_of_all_workers(scaling: ModuleType) -> None:
    outcomes = {
        "a": outcome("correct", "gpu0", 3.0, open=1.5, check=1.0),
        "b": outcome("wrong_output", "gpu1", 1.0, open=0.75),
        "c": outcome("correct", "gpu1", 2.0, check=0.5),
        "d": Outcome(job="d", kind="evaluate", failure=JobFailure(reason="worker_lost", message="")),
    }
    told = scaling.tell(outcomes, 2, 4.0)
    assert told["per_minute"] == 60.0
    assert told["idle_share"] == 0.25
    assert told["busy_seconds"] == [3.0, 3.0]
    assert told["opened"] == [1, 1]
    assert told["stages"] == {"open": 2.25, "check": 1.5}
    assert told["jobs"]["c"] == {"worker": 1, "run_seconds": 2.0, "queue_seconds": 0.0, "stages": {"check": 0.5}}
    assert told["jobs"]["d"]["worker"] is None
    assert told["verdicts"] == {"a": "correct", "b": "wrong_output", "c": "correct", "d": "failed: worker_lost"}


def sets(one: float, two: float, **changed: str) -> dict[str, Any]:
    verdicts = {"a": "correct", "b": "crashed"}
    base = {"programs": 2, "idle_share": 0.1, "kernel_utilisation": [0.5], "opened": [1], "stages": {"open": 1.25}}
    base["jobs"] = {"a": {"run_seconds": 2.0}, "b": {"run_seconds": 1.5}}
    return {
        "1": base | {"per_minute": one, "verdicts": verdicts},
        "2": base | {"per_minute": two, "verdicts": verdicts | changed},
    }


def test_another_verdict_or_too_small_a_gain_is_a_failure_and_is_named(scaling: ModuleType) -> None:
    good = {"cuda": sets(10, 19)}
    assert scaling.ending(good, "cuda", []) == 0
    assert "| 2 | 2 | 19.0 | 1.90x | 10.0% | 50% | 1 |" in scaling.page(good, "cuda")
    assert "- 2: open 1.2; jobs 3.5" in scaling.page(good, "cuda")
    assert "Every verdict is the same" in scaling.page(good, "cuda")
    assert scaling.ending(good, "cuda", [4]) == scaling.UNFINISHED
    assert scaling.ending({"cuda": sets(10, 17)}, "cuda", []) == 1
    assert scaling.ending({"cpu": sets(10, 12)}, "cpu", []) == 0, "simulated nodes share their cores"
    other = {"cpu": sets(10, 19, b="correct")}
    assert scaling.ending(other, "cpu", []) == 1
    assert "- b: crashed on 1, correct on 2" in scaling.page(other, "cpu")
    less = {"cuda": sets(10, 12)}
    less["cuda"]["1"] |= {"verdicts": {"a": "correct"}}
    assert scaling.ending(less, "cuda", [1]) == scaling.UNFINISHED, "sets of other programs are not compared"


def test_a_set_is_begun_where_there_is_time_for_it_going_by_another(scaling: ModuleType) -> None:
    assert scaling.needed({}, 30, 2) == 15 * scaling.EVALUATION_SECONDS
    known = {"2": {"seconds": 100.0, "workers": 2, "programs": 20}}
    assert scaling.needed(known, 30, 1) == pytest.approx(scaling.SPARE * 300.0)


def test_each_gpu_has_the_same_share_of_the_cores(scaling: ModuleType) -> None:
    before = os.sched_getaffinity(0)
    with scaling.share_of_cores(1, len(before)) as cores:
        assert cores == 1
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    with scaling.share_of_cores(2, 2) as cores:
        assert cores == len(before)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """The test runner's own answers to signals stand again afterwards."""
    before = {what: signal.getsignal(what) for what in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for what, handler in before.items():
            signal.signal(what, handler)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("interrupted", [True, False])
def test_a_set_that_is_cut_off_ends_in_order_and_what_it_did_is_kept(
    scaling: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    class Place(LocalCompute):
        """In Ray's place; the first evaluation that is done ends the wait, or the time is over at once."""

        problem = ""

        def submit(self, job: Job) -> Future[Outcome]:
            future = super().submit(job)
            if interrupted and job.kind == "evaluate":
                for _ in range(2):
                    future.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGINT))
            return future

    monkeypatch.setattr(scaling, "cluster", lambda target, workers: contextlib.nullcontext())
    monkeypatch.setattr(scaling, "RayCompute", lambda cache: Place(cache=tmp_path / "cache"))
    jobs = {"short": evaluation_of("linear"), "long": probe(pause_s=200)}
    until = time.monotonic() + (200 if interrupted else 0)
    kept: list[dict[str, Any]] = []
    with handlers_kept(), pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
        signal.signal(signal.SIGINT, scaling.interrupt)
        assert not scaling.measure("cpu", 1, jobs, tmp_path, until, kept.append)
    assert [told["verdicts"] for told in kept] == [{"short": "correct"} if interrupted else {}]


def test_an_interrupt_leaves_a_page_and_says_that_something_is_left(
    scaling: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(options: object, results: Any, left: list[int]) -> None:
        results.all["cuda cut off"] = {"1": sets(10, 19)["1"] | {"seconds": 12.0}}
        raise KeyboardInterrupt

    monkeypatch.setattr(scaling, "work", cut_off)
    monkeypatch.setattr(sys, "argv", ["ray_scaling.py", "--results", str(tmp_path / "r.json")])
    with handlers_kept():
        assert scaling.main() == scaling.UNFINISHED
    assert "Cut off on 1: 2 programs in 12 s." in (tmp_path / "r.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_simulated_nodes_say_what_one_says(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    root = os.environ.get("KERNELBENCH_ROOT")
    if not root:
        pytest.skip("needs a checkout of KernelBench: KERNELBENCH_ROOT")
    results = tmp_path / "ray_scaling_cpu.json"
    command = [sys.executable, str(SCRIPT), "--target", "cpu", "--workers", "1,2", "--count", "6"]
    command += ["--kernelbench", root, "--cache", str(tmp_path / "cache"), "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(results.read_text())["cpu"]
    assert told["1"]["verdicts"] == told["2"]["verdicts"]
    assert set(told["1"]["verdicts"].values()) == {"correct"}
    assert len(told["2"]["busy_seconds"]) == 2
    assert told["1"]["opened"] == [6]
