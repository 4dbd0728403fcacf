"""What the demo made of an example: a verified program that other verbs can use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.demo import examples
from tests.cli.world import IN_TURN, in_turn
from tests.e2e.conftest import Demo

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def run(demo: Demo) -> dict[str, Any]:
    """The demo's run, as its summary tells it."""
    summary = json.loads((demo.run / "summary.json").read_text())
    assert isinstance(summary, dict)
    return summary | {"folder": demo.run}


Told = dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def told(run: dict[str, Any], cache: Path) -> Told:
    """What the other verbs say of the example and its best program, one after the other in one process, since starting
    is much of what each takes."""
    task, best = str(examples()["postprocess"]), str(run["folder"] / "best")
    lines = {
        "evaluate": ("evaluate", task, best, "--target", "cpu", "--json"),
        "profile": ("profile", task, best, "--target", "cpu", "--json"),
        "reference": ("profile", task, "--target", "cpu"),
        "baseline": ("baseline", task, "--target", "cpu", "--json"),
    }
    command = [sys.executable, "-c", IN_TURN, json.dumps(list(lines.values()))]
    environment = os.environ | {"STITCHCUDA_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=run["folder"], env=environment, timeout=560)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        verb: subprocess.CompletedProcess(lines[verb], code, out, err)
        for verb, (code, out, err) in zip(lines, said, strict=True)
    }


def test_the_program_is_correct_faster_and_its_own(run: dict[str, Any]) -> None:
    assert run["status"] == "correct"
    assert run["speedup"]["eager"] > 1.2
    assert set(run["speedup"]) >= {"eager", "over_best"}
    assert run["seconds"]["program"] * run["speedup"]["eager"] == pytest.approx(run["seconds"]["eager"], rel=0.01)
    assert run["census"]["own"] > 0.5


def test_the_run_folder_holds_what_the_contract_says(run: dict[str, Any]) -> None:
    folder = run["folder"]
    for name in ("task.py", "config.toml", "journal.jsonl", "programs", "profiles", "best/program.py", "summary.json"):
        assert (folder / name).exists(), name
    assert json.loads((folder / "summary.json").read_text())["status"] == "correct"


def test_the_best_program_stands_on_its_own_evaluation_and_profile(told: Told) -> None:
    evaluated, profiled = told["evaluate"], told["profile"]
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    assert printed(evaluated)["status"] == "correct"
    assert profiled.returncode == 0, profiled.stderr
    profile = printed(profiled)
    assert profile["subject"] == "program"
    assert any(kernel["origin"] == "own" for kernel in profile["kernels"])


def test_profile_of_the_reference_names_its_bottleneck(told: Told) -> None:
    done = told["reference"]
    assert done.returncode == 0, done.stderr
    assert "memory_bound" in done.stdout
    assert "predicted" in done.stdout


def test_baseline_measures_the_stock_options_and_names_the_best(told: Told) -> None:
    done = told["baseline"]
    assert done.returncode == 0, done.stderr
    (row,) = printed(done)
    assert {"eager", "compile"} <= set(row["timings"])
    assert row["best"] in row["timings"]
    assert row["timings"]["eager"]["median"] > 0


WRONG_USE = {
    ("profile", "missing.py"): "missing.py",
    ("baseline", "missing.py"): "missing.py",
    ("profile", "task.py", "--target", "tpu"): "tpu",
    ("baseline", "task.py", "--precision", "fp8"): "fp8",
    ("baseline", "task.py", "--tier", "gold"): "gold",
}


def test_wrong_use_is_a_sentence_and_exit_status_2(cache: Path, tmp_path: Path) -> None:
    for done, says in zip(in_turn(*WRONG_USE, cache=cache, cwd=tmp_path), WRONG_USE.values(), strict=True):
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
