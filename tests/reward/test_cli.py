"""``stitchcuda rubric`` as a user runs it: real programs are evaluated, profiled and marked, without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.world import GOOD, TASK, WRONG, stitchcuda


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a task and two programs."""
    (tmp_path / "small.py").write_text(TASK)
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path


def test_a_program_without_kernels_is_marked_and_rewarded_with_reasons(home: Path, cache: Path) -> None:
    done = stitchcuda("rubric", "small.py", "good.py", "--target", "cpu", "--json", cache=cache, cwd=home)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    marks = found["score"]["marks"]
    assert marks["anti_hacking"]["score"] <= 3
    assert marks["operator_coverage"]["score"] == 1
    assert all(mark["reasons"] for mark in marks.values())
    assert found["total"] == sum(mark["score"] for mark in marks.values())
    assert found["reward"]["value"] > 0
    assert found["reward"]["over_eager"] is not None
    assert {d["operator"] for d in found["task_rubric"]["dominant"]} & {"aten::mul", "aten::relu", "aten::add"}


def test_a_wrong_program_gets_nothing_and_exits_with_one(home: Path, cache: Path) -> None:
    done = stitchcuda("rubric", "--target", "cpu", "small.py", "wrong.py", cache=cache, cwd=home)
    assert done.returncode == 1, done.stderr
    assert "reward 0: wrong_output" in done.stdout
    assert "total 6 of 20" in done.stdout


def test_what_a_task_asks_for_is_made_once_and_kept(home: Path, cache: Path) -> None:
    done = stitchcuda("rubric", "make", "small.py", "--target", "cpu", cache=cache, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "fuse aten::" in done.stdout
    path = Path(done.stderr.split("kept ")[-1].strip())
    assert json.loads(path.read_text())["task"] == "small"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("small.py", "good.py", "--baseline", "mine"), "unknown baseline 'mine'"),
        (("small.py", "good.py", "--feedback", "good.py"), "name it with --improves"),
        (("small.py", "good.py", "--step", "good.py"), "is no Step"),
    ],
)
def test_wrong_use_is_a_sentence(words: tuple[str, ...], says: str, home: Path, cache: Path) -> None:
    done = stitchcuda("rubric", *words, "--target", "cpu", cache=cache, cwd=home)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
