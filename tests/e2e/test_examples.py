"""An example goes through the command line to a verified program that other verbs can use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.demo import examples

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


def stitchcuda(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stitchcuda.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=560)


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One optimised example, the memory-bound one, which must gain."""
    folder = tmp_path_factory.mktemp("run")
    task = str(examples()["postprocess"])
    done = stitchcuda("optimize", task, "--target", "cpu", "--out", "runs", "--json", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = printed(done)
    assert isinstance(summary, dict)
    return summary | {"folder": folder}


def test_the_program_is_correct_faster_and_its_own(run: dict[str, Any]) -> None:
    assert run["status"] == "correct"
    assert run["speedup"]["eager"] > 1.2
    assert set(run["speedup"]) >= {"eager", "over_best"}
    assert run["seconds"]["program"] * run["speedup"]["eager"] == pytest.approx(run["seconds"]["eager"], rel=0.01)
    assert run["census"]["own"] > 0.5


def test_the_run_folder_holds_what_the_contract_says(run: dict[str, Any]) -> None:
    folder = run["folder"] / run["run"]
    for name in ("task.py", "config.toml", "journal.jsonl", "programs", "profiles", "best/program.py", "summary.json"):
        assert (folder / name).exists(), name
    assert json.loads((folder / "summary.json").read_text())["status"] == "correct"


def test_the_best_program_stands_on_its_own_evaluation_and_profile(run: dict[str, Any]) -> None:
    task, best = str(examples()["postprocess"]), str(run["folder"] / run["run"] / "best")
    evaluated = stitchcuda("evaluate", task, best, "--target", "cpu", "--json", cwd=run["folder"])
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    assert printed(evaluated)["status"] == "correct"
    profiled = stitchcuda("profile", task, best, "--target", "cpu", "--json", cwd=run["folder"])
    assert profiled.returncode == 0, profiled.stderr
    profile = printed(profiled)
    assert profile["subject"] == "program"
    assert any(kernel["origin"] == "own" for kernel in profile["kernels"])


def test_profile_of_the_reference_names_its_bottleneck(run: dict[str, Any]) -> None:
    done = stitchcuda("profile", str(examples()["postprocess"]), "--target", "cpu", cwd=run["folder"])
    assert done.returncode == 0, done.stderr
    assert "memory_bound" in done.stdout
    assert "predicted" in done.stdout


def test_baseline_measures_the_stock_options_and_names_the_best(run: dict[str, Any]) -> None:
    done = stitchcuda("baseline", str(examples()["postprocess"]), "--target", "cpu", "--json", cwd=run["folder"])
    assert done.returncode == 0, done.stderr
    (row,) = printed(done)
    assert {"eager", "compile"} <= set(row["timings"])
    assert row["best"] in row["timings"]
    assert row["timings"]["eager"]["median"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("profile", "missing.py"), "missing.py"),
        (("baseline", "missing.py"), "missing.py"),
        (("profile", "task.py", "--target", "tpu"), "tpu"),
        (("baseline", "task.py", "--precision", "fp8"), "fp8"),
        (("baseline", "task.py", "--tier", "gold"), "gold"),
    ],
)
def test_wrong_use_is_a_sentence_and_exit_status_2(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = stitchcuda(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
