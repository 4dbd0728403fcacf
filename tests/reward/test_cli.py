"""``stitchcuda rubric``: a real program is evaluated, profiled and marked; what was seen is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stitchcuda.cli import rubric
from stitchcuda.errors import StitchError
from stitchcuda.reward.judge_known import KnownProgram
from stitchcuda.reward.model import DIMENSIONS
from stitchcuda.reward.seen import Seen, read_seen
from tests.cli.world import TASK
from tests.reward import judged
from tests.reward.test_rubric import BOUND, DEVICE
from tests.reward.test_rubric_draft import ask
from tests.support.scripted_endpoint import ScriptedEndpoint, status, tool

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


@pytest.fixture
def run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs ``stitchcuda rubric`` in this process, in the folder of the task, with a cache of its own."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("STITCHCUDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(rubric.app, list(words))

    return invoke


@pytest.fixture
def kept(home: Path) -> Path:
    """What was seen of an honest program."""
    path = home / "seen.json"
    seen = Seen.of(judged.task(), judged.SKILL, judged.observed(), DEVICE, BOUND)
    path.write_text(seen.model_dump_json())
    return path


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, (result.output, result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_program_with_a_kernel_of_its_own_is_marked_and_rewarded_with_reasons(
    run: Callable[..., Result], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCHCUDA_CACHE", str(cache))
    found = document(run("small.py", "native", "--target", "cpu", "--json", "--keep", "seen.json"))
    marks = found["score"]["marks"]
    assert set(marks) == set(DIMENSIONS)
    assert all(mark["reasons"] for mark in marks.values())
    assert found["total"] == sum(mark["score"] for mark in marks.values())
    assert marks["anti_hacking"]["score"] >= 3
    assert found["judge"] is None
    reward = found["reward"]
    assert reward["value"] == pytest.approx(min(reward["base"] * reward["multiplier"], 3.0))
    assert reward["over_eager"] > 0
    assert {d["operator"] for d in found["task_rubric"]["dominant"]} & {"aten::mul", "aten::relu", "aten::add"}
    again = document(run("seen.json", "--json"))
    assert (again["score"], again["reward"]) == (found["score"], found["reward"])
    assert again["task_rubric"] == found["task_rubric"]


def test_what_a_task_asks_for_is_made_once_and_kept(run: Callable[..., Result], kept: Path) -> None:
    made = run("make", str(kept))
    assert made.exit_code == 0, made.output
    assert "fuse aten::softmax, aten::mul" in made.stdout
    path = Path(made.stderr.split("kept ")[-1].strip())
    assert json.loads(path.read_text())["author"] == "rules"


def test_a_models_rubric_is_kept_and_shown_with_every_program_of_the_task(
    run: Callable[..., Result], kept: Path
) -> None:
    asks = [
        ask(operators=["aten::softmax"]),
        ask(text="Read x once, in the softmax.", operators=["aten::mul"], gain=1.2),
    ]
    with ScriptedEndpoint([tool({"asks": asks})]) as endpoint:
        made = run("make", str(kept), "--model", "openai:scripted", "--base-url", endpoint.base_url)
    assert made.exit_code == 0, made.output
    shown = run(str(kept))
    assert "openai:scripted" in shown.stdout
    assert "Read x once, in the softmax. (weight 5 of 5)" in shown.stdout


def test_a_judge_is_shown_beside_the_evidence(run: Callable[..., Result], kept: Path) -> None:
    answer = tool(
        judged.verdict({"cuda_engineering": 3, "anti_hacking": 5, "operator_coverage": 5, "skill_compliance": 5})
    )
    with ScriptedEndpoint(lambda request, number: answer) as endpoint:
        words = (str(kept), "--judge", "openai:scripted", "--votes", "2", "--base-url", endpoint.base_url)
        plain = run(*words)
        found = document(run(*words, "--json"))
        assert endpoint.count == 4
    assert "not calibrated: it can only lower marks" in plain.stdout
    assert "judge: as shown (E1)" in plain.stdout
    outcome = found["judge"]
    assert outcome["outcome"] == "counted"
    engineering = "cuda_engineering"
    assert found["score"]["marks"][engineering]["score"] == outcome["evidence"]["marks"][engineering]["score"] - 1 == 3


def test_a_judge_that_fails_changes_nothing_and_is_said(run: Callable[..., Result], kept: Path) -> None:
    with ScriptedEndpoint(lambda request, number: status(401)) as endpoint:
        done = run(str(kept), "--judge", "openai:scripted", "--votes", "1", "--base-url", endpoint.base_url)
    assert done.exit_code == 0
    assert "the evidence stands alone: 0 of 1 votes can be used" in " ".join(done.stdout.split())


def test_a_calibrated_judge_is_known_by_its_name(run: Callable[..., Result], home: Path, kept: Path) -> None:
    seen, lines = read_seen(kept).model_dump(), []
    for number in range(4):
        known = dict.fromkeys(DIMENSIONS, 4.0 - number % 2)
        lines.append(KnownProgram(**seen, id=f"p{number}", marks=known).model_dump_json())
    (home / "known.jsonl").write_text("\n".join(lines))
    with ScriptedEndpoint(lambda request, number: tool(judged.verdict(5))) as endpoint:
        judge = ("--judge", "openai:scripted", "--votes", "1", "--base-url", endpoint.base_url)
        tried = run("calibrate", "known.jsonl", *judge)
        assert tried.exit_code == 0, tried.output
        found = document(run(str(kept), *judge, "--json"))["judge"]
        other = document(run(str(kept), *judge, "--temperature", "1", "--json"))["judge"]
    assert "+1.50" in tried.stdout
    assert "4 programs with known marks, 0 failed" in tried.stdout
    assert found["calibrated"]
    assert found["score"]["marks"]["anti_hacking"]["score"] == 3.5, "the bias is taken off"
    assert not other["calibrated"], "another temperature is another judge"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("small.py", "native", "--baseline", "mine"), "unknown baseline 'mine'"),
        (("small.py", "native", "--feedback", "small.py"), "name it with --improves"),
        (("small.py", "native", "--step", "small.py"), "is no Step"),
        (("small.py", "native", "--step", "binary"), "binary is no Step"),
        (("small.py",), "name the PROGRAM"),
        (("native/manifest.json",), "is not what was seen of a program"),
        (("small.py", "native", "--judge", "mine"), "is not a model"),
        (("make", "small.py", "--model", "mine"), "is not a model"),
        (("calibrate", "native/manifest.json", "--judge", "openai:x"), "is no program with known marks"),
    ],
)
def test_wrong_use_is_a_sentence(words: tuple[str, ...], says: str, home: Path, run: Callable[..., Result]) -> None:
    (home / "binary").write_bytes(b"\x7fELF\xff\xfe")
    done = run(*words)
    assert isinstance(done.exception, StitchError)
    assert says in str(done.exception)
