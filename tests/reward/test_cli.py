"""``stitchcuda rubric`` as a user runs it: real programs are evaluated, profiled and marked, without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.world import TASK, stitchcuda

NATIVE = """
import torch
from bindings import sixteen_steps
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = torch.empty_like(x)
        sixteen_steps(x, self.scale.detach(), y, x.shape[0], x.shape[1])
        return y
"""

KERNEL = """
#include <algorithm>
#include <cstdint>

extern "C" int sixteen_steps(const float* x, const float* scale, float* y, int64_t rows, int64_t columns, void*) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const float v = x[r * columns + c];
      y[r * columns + c] = v + 16.f * std::max(v * scale[c], 0.f);
    }
  return 0;
}
"""


def tensor(name: str, role: str = "input") -> dict[str, str]:
    return {"name": name, "dtype": "float32", "role": role}


def scalar(name: str) -> dict[str, str]:
    return {"name": name, "kind": "scalar", "dtype": "int64"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a task and a program that has a kernel of its own."""
    (tmp_path / "small.py").write_text(TASK)
    native = tmp_path / "native"
    native.mkdir()
    (native / "program.py").write_text(NATIVE)
    (native / "kernels.cpp").write_text(KERNEL)
    arguments = [tensor("x"), tensor("scale"), tensor("y", "output"), scalar("rows"), scalar("columns")]
    launcher = {"name": "sixteen_steps", "source": "kernels.cpp", "arguments": arguments}
    (native / "manifest.json").write_text(json.dumps({"version": 1, "target": "cpu", "launchers": [launcher]}))
    return tmp_path


def test_a_program_with_a_kernel_of_its_own_is_marked_and_rewarded_with_reasons(home: Path, cache: Path) -> None:
    done = stitchcuda("rubric", "--target", "cpu", "small.py", "native", "--json", cache=cache, cwd=home)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    marks = found["score"]["marks"]
    assert marks["operator_coverage"]["score"] == 5
    assert marks["anti_hacking"]["score"] >= 3
    assert marks["skill_compliance"]["score"] >= 4
    assert all(mark["reasons"] for mark in marks.values())
    assert found["total"] == sum(mark["score"] for mark in marks.values())
    reward = found["reward"]
    assert reward["value"] == pytest.approx(min(reward["base"] * reward["multiplier"], 3.0))
    assert reward["over_eager"] > 1
    assert {d["operator"] for d in found["task_rubric"]["dominant"]} & {"aten::mul", "aten::relu", "aten::add"}


def test_what_a_task_asks_for_is_made_once_and_kept(home: Path, cache: Path) -> None:
    done = stitchcuda("rubric", "make", "small.py", "--target", "cpu", cache=cache, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "fuse aten::" in done.stdout
    path = Path(done.stderr.split("kept ")[-1].strip())
    assert json.loads(path.read_text())["task"] == "small"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("small.py", "native", "--baseline", "mine"), "unknown baseline 'mine'"),
        (("small.py", "native", "--feedback", "small.py"), "name it with --improves"),
        (("small.py", "native", "--step", "small.py"), "is no Step"),
    ],
)
def test_wrong_use_is_a_sentence(words: tuple[str, ...], says: str, home: Path, cache: Path) -> None:
    done = stitchcuda("rubric", *words, "--target", "cpu", cache=cache, cwd=home)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
