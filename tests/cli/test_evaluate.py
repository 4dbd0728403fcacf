"""``stitchcuda evaluate`` as a user runs it: exit codes, JSON, the table, and wrong use."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.world import in_turn

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    @torch.compiler.disable  # tests/e2e evaluates with what is compiled
    def forward(self, x):
        return torch.relu(x) + 1

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""

GOOD = TASK.replace("class Model(", "class ModelNew(")
WRONG = GOOD.replace("+ 1", "+ 1.001")

Told = dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def told(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What is said of four command lines, given one after the other since starting is most of what they take."""
    folder = tmp_path_factory.mktemp("evaluate")
    programs = {"good": GOOD, "wrong": WRONG, "empty": "x = 1"}
    for name, source in {"task": TASK, **programs}.items():
        (folder / f"{name}.py").write_text(source)
    lines = {
        "good": ("good.py", "--json"),
        "wrong": ("wrong.py",),
        "tier": ("good.py", "--tier", "best"),
        "empty": ("empty.py",),
    }
    whole = [("evaluate", "task.py", *words, "--target", "cpu") for words in lines.values()]
    return dict(zip(lines, in_turn(*whole, cache=cache, cwd=folder, COLUMNS="120"), strict=True))


def test_a_correct_program_exits_with_zero_and_prints_one_object(told: Told) -> None:
    done = told["good"]
    assert done.returncode == 0, done.stdout + done.stderr
    evaluation = json.loads(done.stdout)
    assert evaluation["status"] == "correct"
    assert set(evaluation["timings"]) >= {"program", "eager", "compile"}
    assert evaluation["speedup"]["over_best"] > 0


def test_a_wrong_program_exits_with_one_and_says_why(told: Told) -> None:
    done = told["wrong"]
    assert done.returncode == 1
    assert "wrong_output" in done.stdout
    assert "expected" in done.stdout
    assert "Traceback" not in done.stderr


def test_wrong_use_exits_with_two_and_a_sentence(told: Told) -> None:
    assert told["tier"].returncode == 2
    assert told["tier"].stderr.startswith("error: unknown tier 'best'")
    assert told["empty"].returncode == 2
    assert "ModelNew" in told["empty"].stderr
