"""What the measurement on several GPUs makes of its outcomes, and, where KernelBench is there, that it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stitchcuda.compute.model import JobFailure, Outcome, WorkerInfo
from stitchcuda.evaluation.model import Evaluation, Status

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


def outcome(status: Status, worker: str, seconds: float) -> Outcome:
    return Outcome(
        job="j",
        kind="evaluate",
        evaluation=Evaluation(status=status, message="", tier="screen", precision="fp32"),
        worker=WorkerInfo(name=worker, host="h", pid=1),
        run_seconds=seconds,
    )


def test_rates_and_idle_time_are_those_of_all_workers(scaling: ModuleType) -> None:
    outcomes = {
        "a": outcome("correct", "gpu0", 3.0),
        "b": outcome("wrong_output", "gpu1", 1.0),
        "c": outcome("correct", "gpu1", 2.0),
        "d": Outcome(job="d", kind="evaluate", failure=JobFailure(reason="worker_lost", message="")),
    }
    told = scaling.tell(outcomes, 2, 4.0)
    assert told["per_minute"] == 60.0
    assert told["idle_share"] == 0.25
    assert told["busy_seconds"] == [3.0, 3.0]
    assert told["verdicts"] == {"a": "correct", "b": "wrong_output", "c": "correct", "d": "failed: worker_lost"}


def sets(one: float, two: float, **changed: str) -> dict[str, Any]:
    verdicts = {"a": "correct", "b": "crashed"}
    base = {"programs": 2, "idle_share": 0.1, "kernel_utilisation": [0.5]}
    return {
        "1": base | {"per_minute": one, "verdicts": verdicts},
        "2": base | {"per_minute": two, "verdicts": verdicts | changed},
    }


def test_another_verdict_or_too_small_a_gain_is_a_failure_and_is_named(scaling: ModuleType) -> None:
    good = {"cuda": sets(10, 19)}
    assert scaling.ending(good, "cuda", []) == 0
    assert "| 2 | 2 | 19.0 | 1.90x | 10.0% | 50% |" in scaling.page(good, "cuda")
    assert "Every verdict is the same" in scaling.page(good, "cuda")
    assert scaling.ending(good, "cuda", [4]) == scaling.UNFINISHED
    assert scaling.ending({"cuda": sets(10, 17)}, "cuda", []) == 1
    assert scaling.ending({"cpu": sets(10, 12)}, "cpu", []) == 0, "simulated nodes share their cores"
    other = {"cpu": sets(10, 19, b="correct")}
    assert scaling.ending(other, "cpu", []) == 1
    assert "- b: crashed on 1, correct on 2" in scaling.page(other, "cpu")


def test_each_gpu_has_the_same_share_of_the_cores(scaling: ModuleType) -> None:
    before = os.sched_getaffinity(0)
    with scaling.share_of_cores(1, len(before)) as cores:
        assert cores == 1
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    with scaling.share_of_cores(2, 2) as cores:
        assert cores == len(before)


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
