"""A training that is killed goes on as if it had not been, and one that has reason to stop leaves a checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from stitchcuda.errors import TrainingError
from stitchcuda.training.checkpoint import (
    CHECKPOINTS,
    WHOLE,
    held,
    latest,
    mark_whole,
    read_result,
    read_started,
    write_started,
)
from stitchcuda.training.checkpoint_model import load_model, origin_of, write_merged
from stitchcuda.training.grpo import run_grpo
from stitchcuda.training.metrics import read_metrics, starts
from stitchcuda.training.metrics_trainer import Stops
from stitchcuda.training.sft import run_sft
from tests.training import tiny

KILLED = """
import os, signal, sys
from pathlib import Path
from stitchcuda.training import metrics_trainer
from stitchcuda.training.checkpoint import read_started
from stitchcuda.training.grpo import run_grpo
plain = metrics_trainer.Keeper.on_step_end
def until(self, args, state, control, **named):
    if state.global_step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(self, args, state, control, **named)
metrics_trainer.Keeper.on_step_end = until
out = Path(sys.argv[1])
run_grpo(read_started(out), out)
"""
"""Kills itself where the third step ends, before anything of it is written."""
LOOKS_FOR_IT = """
import sys, time
from pathlib import Path
from stitchcuda.training.checkpoint import latest
out = Path(sys.argv[1])
(out / f"ready-{sys.argv[2]}").touch()
while len(list(out.glob("ready-*"))) < 2:
    pass
print(latest(out, 2).name)
"""
STEPS = 5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows whose prompts are short, a model, and recorded evaluations."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny.write_rows(folder / "data", short=True)
    tiny.write_model(folder / "model")
    tiny.write_recorded(folder / "recorded.jsonl")
    return folder


def begin(place: Path, name: str, **changes: object) -> Path:
    """A folder in which GRPO with recorded rewards is about to start: two updates of each sampling."""
    grpo = {"steps": STEPS + 1, "prompts": 4, "updates": 2, "kl": 0.1, "optimizer": {"micro_batch": 4}}
    config = tiny.settings(grpo=grpo, saving={"every": 2}, held_out={"every": 2, "rows": 2}, **changes)
    started = tiny.started("grpo", config, place / "data", place / "model", f"recorded:{place / 'recorded.jsonl'}")
    return tiny.begun(place / name, started)


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """One that is not interrupted."""
    out = begin(place, "whole")
    run_grpo(read_started(out), out)
    return out


def test_a_killed_training_goes_on_to_the_same_losses(place: Path, whole: Path) -> None:
    out = begin(place, "killed")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(out)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    checkpoint = latest(out, 1)
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-2"
    result = run_grpo(read_started(out), out)
    assert (result.stopped, result.step) == ("done", STEPS + 1)
    assert starts(out) == 2
    before, after = read_metrics(whole), read_metrics(out)
    assert [line["start"] for line in after] == [1, 1, 2, 2, 2, 2]
    for one, other in zip(before, after, strict=True):
        for name in ("loss", "reward", "kl", "entropy", "grad_norm", "group/deviation"):
            # A sampling's own numbers stand in the line of the first step that uses it.
            assert other.get(name) == one.get(name), (name, one["step"])
    assert any(line["loss"] != 0 for line in after[2:])
    assert len({line["reward"] for line in after if "reward" in line}) > 1
    looks = [line["eval_reward"] for line in read_metrics(whole, "eval")]
    assert looks == [line["eval_reward"] for line in read_metrics(out, "eval")]


def test_a_budget_of_seconds_ends_a_start_between_samplings_with_a_checkpoint(place: Path, whole: Path) -> None:
    out = begin(place, "budget", seconds=0.01)
    result = run_grpo(read_started(out), out)
    assert (result.stopped, result.step) == ("seconds", 2)
    assert (out / "adapter" / "adapter_model.safetensors").is_file()
    assert [line["step"] for line in read_metrics(out, "eval")] == [0], "no look once the time is spent"
    started = read_started(out)
    longer = started.model_copy(update={"config": started.config.model_copy(update={"seconds": None})})
    assert run_grpo(longer, out).stopped == "done"
    assert [line["loss"] for line in read_metrics(out)] == [line["loss"] for line in read_metrics(whole)]


def test_the_weights_are_written_before_the_last_look(place: Path) -> None:
    looks = {"every": 0, "rows": 2, "at_start": False, "at_end": True}
    started = tiny.started("sft", tiny.settings(held_out=looks), place / "data", place / "model")
    out = tiny.begun(place / "looks", started)
    found: list[bool] = []

    def tell(text: str) -> None:
        if "held out" in text:
            seen = read_result(out)
            found.append(seen is not None and Path(seen.model).is_dir())

    result = run_sft(started, out, tell=tell)
    assert found == [True]
    assert "eval_loss" in result.held_out
    assert read_result(out) == result


def test_a_signal_ends_the_step_and_leaves_a_checkpoint(place: Path) -> None:
    started = tiny.started("sft", tiny.settings(sft={"steps": 50}), place / "data", place / "model")
    out = tiny.begun(place / "signal", started)

    def tell(text: str) -> None:
        if text.startswith("step 2 of"):
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    result = run_sft(started, out, tell=tell)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (result.stopped, result.step) in {("signal", 2), ("signal", 3)}
    checkpoint = latest(out, 1)
    assert checkpoint is not None
    assert checkpoint.name == f"checkpoint-{result.step}"
    assert read_result(out) == result


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    for step in (2, 10, 12):
        (tmp_path / CHECKPOINTS / f"checkpoint-{step}").mkdir(parents=True)
    for step in (2, 10):
        mark_whole(tmp_path / CHECKPOINTS / f"checkpoint-{step}", 2)
    found = latest(tmp_path, 2)
    assert found is not None
    assert found.name == "checkpoint-10"
    assert not (tmp_path / CHECKPOINTS / "checkpoint-12").exists()
    with pytest.raises(TrainingError, match="written by 2 processes, and there are 1"):
        latest(tmp_path, 1)
    assert json.loads((found / WHOLE).read_bytes()) == {"processes": 2}


def test_processes_that_resume_together_may_all_remove_what_a_kill_left(tmp_path: Path) -> None:
    for step in (2, 3, 4):
        folder = tmp_path / CHECKPOINTS / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        for number in range(500):
            (folder / f"shard-{number}").touch()
    mark_whole(tmp_path / CHECKPOINTS / "checkpoint-2", 2)
    command = [sys.executable, "-c", LOOKS_FOR_IT, str(tmp_path)]
    both = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["checkpoint-2"] * 2
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["checkpoint-2"]


def test_a_folder_has_one_training_at_a_time(place: Path, whole: Path) -> None:
    with pytest.raises(TrainingError, match=r"holds a training already.*train resume"):
        write_started(whole, read_started(whole))
    with held(place / "lock"), pytest.raises(TrainingError, match="another process trains"), held(place / "lock"):
        pass


def test_time_for_the_longest_cycle_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stops = Stops(60.0, 1)
    now[0] += 10
    stops.begin()
    for step, reason in ((15, ""), (5, ""), (20, "seconds")):
        now[0] += step
        assert stops.due() == reason


def test_a_result_is_merged_into_one_model_that_computes_the_same(place: Path, whole: Path, tmp_path: Path) -> None:
    import torch

    write_merged(str(whole), tmp_path / "served", "fp32")
    config = tiny.settings()
    asked = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        trained = load_model(origin_of(str(whole)), config)(asked).logits
        served = load_model(origin_of(str(tmp_path / "served")), config)(asked).logits
        base = load_model(origin_of(str(place / "model")), config)(asked).logits
    assert torch.allclose(trained, served)
    assert not torch.allclose(base, served)
    with pytest.raises(TrainingError, match="exists"):
        write_merged(str(whole), tmp_path / "served")


def test_a_training_that_has_not_ended_is_no_model(place: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "adapter")
    with pytest.raises(TrainingError, match=r"has not ended.*train resume"):
        origin_of(str(tmp_path / "half"))
    with pytest.raises(TrainingError, match="holds no model"):
        origin_of(str(place / "data"))
    with pytest.raises(TrainingError, match="there is no /nowhere"):
        origin_of("/nowhere")
