"""``stitchcuda train``: what is wrong is said in a sentence before anything is loaded, and a training runs from it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stitchcuda.cli.main import app, register_verbs
from stitchcuda.errors import DeviceError, StitchError, ToolMissing, TrainingError
from stitchcuda.training.checkpoint import read_result
from tests.training import tiny


@pytest.fixture(scope="module", autouse=True)
def _verbs() -> None:
    register_verbs()


def train(*words: object) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, words)])


def problem(*words: object) -> BaseException:
    found = train(*words).exception
    assert found is not None
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, a model, and recorded evaluations."""
    pytest.importorskip("trl")
    folder = tmp_path_factory.mktemp("train")
    tiny.write_rows(folder / "data", short=True)
    tiny.write_model(folder / "model")
    tiny.write_recorded(folder / "recorded.jsonl")
    return folder


def test_presets_are_printed_whole() -> None:
    assert train("presets").output.split() == ["qwen3-32b-lora", "one-gpu", "tiny-cpu"]
    assert json.loads(train("presets", "qwen3-32b-lora").output)["grpo"]["group"] == 6


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "trl" else there(name, *rest))
    found = problem("sft", "--data", tmp_path, "--model", tmp_path, "--out", tmp_path / "out")
    assert isinstance(found, ToolMissing)
    assert str(found) == "training needs trl; install stitchcuda[train]"


def test_what_is_wrong_is_said_before_anything_is_written(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rest = ("--model", place / "model", "--out", out)
    tiny_cpu = ("--preset", "tiny-cpu")
    data = ("--data", place / "data")
    import torch

    if not torch.cuda.is_available():
        found = problem("grpo", *data, *rest)
        assert isinstance(found, DeviceError)
        assert "need a GPU" in str(found)
    assert "is no data set" in str(problem("sft", *tiny_cpu, "--data", tmp_path, *rest))
    assert "holds no model" in str(problem("sft", *tiny_cpu, *data, "--model", tmp_path, "--out", out))
    assert "grpo.grup" in str(problem("grpo", *tiny_cpu, *data, *rest, "--set", "grpo.grup=4"))
    assert "unknown compute" in str(problem("grpo", *tiny_cpu, *data, *rest, "--compute", "cloud"))
    assert "unknown target" in str(problem("grpo", *tiny_cpu, *data, *rest, "--target", "tpu"))
    assert "unknown engine" in str(problem("grpo", *tiny_cpu, *data, *rest, "--engine", "x"))
    assert not out.exists()
    assert isinstance(problem("resume", tmp_path), TrainingError)


def test_rows_that_do_not_fit_are_counted_and_none_is_an_error(place: Path, tmp_path: Path) -> None:
    words = ("--preset", "tiny-cpu", "--data", place / "data", "--model", place / "model", "--out", tmp_path / "out")
    found = problem("sft", *words, "--set", "lengths.prompt=3")
    assert isinstance(found, TrainingError)
    assert "no row of" in str(found)
    assert "prompt too long: 3" in str(found)
    assert not (tmp_path / "out" / "train.json").exists()  # so that it can be tried again there


def test_a_model_is_looked_at_as_it_is(place: Path, tmp_path: Path) -> None:
    words = ["--preset", "tiny-cpu", "--data", place / "data", "--model", place / "model"]
    more = ["--compute", f"recorded:{place / 'recorded.jsonl'}", "--set", "lengths.completion=2"]
    many = [*more, "--set", "held_out.samples=16"]
    found = [train("evaluate", *words, *many, "--out", tmp_path / name, "--seed", 5, "--json") for name in "ab"]
    assert [one.exit_code for one in found] == [0, 0], found[0].output
    first, again = (json.loads(one.stdout) for one in found)
    assert (first["stopped"], first["rows"]) == ("looked", {"held_out": 2})
    assert 0 < first["held_out"]["eval_reward/correct"] < first["held_out"]["eval_group/solved"] <= 1
    assert first["held_out"]["eval_reward"] == again["held_out"]["eval_reward"]
    told = train("evaluate", *words, *more, "--out", tmp_path / "c")
    assert "2 held-out rows:" in told.stdout
    assert "reward/correct: " in told.stdout


def test_grpo_and_its_resumption_from_the_command_line(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "grpo"
    words = ["--preset", "tiny-cpu", "--data", place / "data", "--model", place / "model", "--out", out]
    recorded = ["--compute", f"recorded:{place / 'recorded.jsonl'}", "--set", "lengths.completion=2"]
    done = train("grpo", *words, *recorded, "--steps", 2, "--seed", 3, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["stopped"], told["step"], told["rows"]["train"]) == ("done", 2, 3)
    assert "step 2 of 2: " in done.stderr
    assert "holds a training already" in str(problem("grpo", *words))
    more = train("resume", out, "--steps", 3)
    assert more.exit_code == 0, more.output
    assert f"done at step 3 of 3; the weights are in {out / 'adapter'}" in more.stdout
    again = train("resume", out)
    assert again.exit_code == 0, again.output
    assert "done at step 3 of 3" in again.stdout, "the changed number of steps is kept"
    result = read_result(out)
    assert result is not None
    assert result.step == 3
    (place / "data" / "train.parquet").rename(tmp_path / "kept")
    try:
        (place / "data" / "train.parquet").write_bytes(b"other")
        assert "are not those that the training began with" in str(problem("resume", out))
    finally:
        (tmp_path / "kept").replace(place / "data" / "train.parquet")
    assert isinstance(problem("merge", tmp_path, "--out", tmp_path / "m"), StitchError)


def test_a_resumed_start_has_the_budget_of_the_settings_anew_unless_it_is_given_another(
    place: Path, tmp_path: Path
) -> None:
    out = tmp_path / "grpo"
    words = ["--preset", "tiny-cpu", "--data", place / "data", "--model", place / "model", "--out", out]
    recorded = ["--compute", f"recorded:{place / 'recorded.jsonl'}", "--set", "lengths.completion=2"]
    for step, command in ((1, ["grpo", *words, *recorded, "--set", "seconds=0.01"]), (2, ["resume", out])):
        done = train(*command)
        assert done.exit_code == 0, done.output
        assert f"seconds at step {step} of 3" in done.stdout
    kept = (out / "train.json").read_bytes()
    assert "done at step 3 of 3" in train("resume", out, "--seconds", 600).stdout
    assert (out / "train.json").read_bytes() == kept
