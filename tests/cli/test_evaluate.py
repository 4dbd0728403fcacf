"""``stitchcuda evaluate`` as a user runs it: exit codes, JSON, the table, and wrong use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""

GOOD = TASK.replace("class Model(", "class ModelNew(")


def run(cache: Path, folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Write the two files and evaluate them."""
    (folder / "task.py").write_text(TASK)
    (folder / "new.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "stitchcuda.cli.main",
        "evaluate",
        "task.py",
        "new.py",
        "--target",
        "cpu",
        *options,
    ]
    environment = os.environ | {"STITCHCUDA_CACHE": str(cache), "COLUMNS": "120"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_a_correct_program_exits_with_zero_and_prints_one_object(cache: Path, tmp_path: Path) -> None:
    done = run(cache, tmp_path, GOOD, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    evaluation = json.loads(done.stdout)
    assert evaluation["status"] == "correct"
    assert set(evaluation["timings"]) >= {"program", "eager"}
    assert evaluation["speedup"]["over_best"] > 0


def test_a_wrong_program_exits_with_one_and_says_why(cache: Path, tmp_path: Path) -> None:
    done = run(cache, tmp_path, GOOD.replace("+ 1", "+ 1.001"))
    assert done.returncode == 1
    assert "wrong_output" in done.stdout
    assert "expected" in done.stdout
    assert "Traceback" not in done.stderr


def test_wrong_use_exits_with_two_and_a_sentence(cache: Path, tmp_path: Path) -> None:
    done = run(cache, tmp_path, GOOD, "--tier", "best")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown tier 'best'")
    done = run(cache, tmp_path, "x = 1")
    assert done.returncode == 2
    assert "ModelNew" in done.stderr
