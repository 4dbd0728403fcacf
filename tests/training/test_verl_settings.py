"""What verl is told, what is refused because it would mean something else there, and advantages with a floor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stitchcuda.errors import ToolMissing, TrainingError
from stitchcuda.training.adapters.manager_file import advantages
from stitchcuda.training.config import TrainConfig, make_config
from stitchcuda.training.engine_verl import _run, start
from stitchcuda.training.engine_verl_config import (
    VerlFiles,
    hydra_file,
    nested,
    prompts_needed,
    refuse_what_verl_lacks,
    verl_settings,
)
from stitchcuda.training.grpo_advantage import advantages as built_in
from stitchcuda.training.presets import preset
from tests.training import adapted
from tests.training.tokens import tiny_model

FILES = VerlFiles(
    out=Path("/shared/run"),
    train=Path("/shared/run/verl/train.parquet"),
    held_out=Path("/shared/run/verl/held_out.parquet"),
    reward=Path("/shared/run/verl/reward.py"),
    manager=Path("/shared/run/verl/manager.py"),
    token=Path("/shared/run/verl/token"),
)


def published(**changes: Any) -> TrainConfig:
    """The preset of the published settings, with changes by section."""
    return make_config(preset("qwen3-32b-lora"), changes)


def told(config: TrainConfig) -> dict[str, Any]:
    """verl's settings by dotted name."""
    return verl_settings(config, "Qwen/Qwen3-32B", FILES, "http://10.0.0.1:4000")


def test_the_published_settings_are_verls_by_its_own_names() -> None:
    found = told(published())
    expected = {
        "actor_rollout_ref.model.lora_rank": 128,
        "actor_rollout_ref.model.lora_alpha": 128,
        "actor_rollout_ref.rollout.n": 6,
        "actor_rollout_ref.rollout.temperature": 0.9,
        "actor_rollout_ref.actor.clip_ratio_low": 0.2,
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
        "actor_rollout_ref.actor.kl_loss_coef": 0.03,
        "data.train_batch_size": 16,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        "data.max_prompt_length": 8192,
        "data.max_response_length": 16384,
        "trainer.total_training_steps": 100,
        "trainer.save_freq": 10,
        "trainer.test_freq": 50,
        "reward.reward_manager.source": "importlib",
        "reward.custom_reward_function.reward_kwargs.endpoint": "http://10.0.0.1:4000",
    }
    assert {name: found[name] for name in expected} == expected
    assert prompts_needed(published()) == 1600


def test_the_engines_own_words_stand_over_all_others() -> None:
    found = told(published(verl={"more": {"trainer.save_freq": 7, "critic.enable": False}, "tensor_parallel": 4}))
    assert found["trainer.save_freq"] == 7
    assert found["critic.enable"] is False
    assert found["actor_rollout_ref.rollout.tensor_model_parallel_size"] == 4


def test_the_file_holds_every_setting_under_its_section() -> None:
    yaml = pytest.importorskip("yaml")
    found = told(published())
    read = yaml.safe_load(hydra_file(found))
    assert read.pop("defaults") == ["ppo_trainer", "_self_"]
    rate = read["actor_rollout_ref"]["actor"]["optim"].pop("lr")
    assert float(rate) == found.pop("actor_rollout_ref.actor.optim.lr")
    assert read == nested(found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seconds": 60.0}, "seconds"),
        ({"grpo": {"mask_truncated": True}}, "mask_truncated"),
        ({"grpo": {"loss": "bnpo"}}, "bnpo"),
        ({"grpo": {"optimizer": {"schedule": "linear"}}}, "linear"),
        ({"lora": {"dropout": 0.1}}, "dropout"),
        ({"precision": "fp32"}, "bf16"),
        ({"verl": {"gpus": 7}}, "cannot be shared by 7 GPUs"),
        ({"verl": {"tensor_parallel": 3}}, "samplers of 3"),
        ({"verl": {"benchmark_gpus": "7"}}, "without training_gpus"),
        ({"verl": {"benchmark_gpus": "6,7", "training_gpus": "0,1,6"}}, "share one"),
    ],
)
def test_what_verl_would_take_for_something_else_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        refuse_what_verl_lacks(published(**changes))


def test_advantages_are_those_of_the_trainer_that_is_built_in() -> None:
    rewards = torch.tensor([1.0, 1.02, 1.01, 0.0, 2.0, 0.4, 0.5, 0.5, 0.5])
    mask = torch.ones(9, 4)
    mask[2, 2:] = 0
    spread = torch.zeros(9, 4)
    spread[:, 1] = rewards
    options = {"least_deviation": 0.05, "norm_adv_by_std_in_grpo": True}
    found, returns = advantages(spread, mask, ["a"] * 3 + ["b"] * 3 + ["c"] * 3, options)
    expected = built_in(rewards, torch.zeros(9), 3, least=0.05).values
    assert torch.allclose(found[:, 0], expected, atol=1e-5)
    assert torch.equal(found, returns)
    assert found[2, 2:].tolist() == [0.0, 0.0]
    plain, _ = advantages(spread, mask, ["a"] * 3 + ["b"] * 3 + ["c"] * 3, {"norm_adv_by_std_in_grpo": False})
    assert torch.allclose(plain[:, 0], built_in(rewards, torch.zeros(9), 3, scale="none").values, atol=1e-5)


def test_a_sample_alone_and_one_without_tokens_teach_nothing() -> None:
    spread = torch.tensor([[3.0], [1.0], [2.0], [9.0]])
    mask = torch.tensor([[1.0], [1.0], [1.0], [0.0]])
    found, _ = advantages(spread, mask, ["a", "b", "b", "b"], {"least_deviation": 0.0})
    assert found[:, 0].tolist() == pytest.approx([0.0, -(0.5**0.5), 0.5**0.5, 0.0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a data set."""
    pytest.importorskip("transformers", reason="stitchcuda[train] is not installed")
    place = tmp_path_factory.mktemp("verl")
    tiny_model(place / "model")
    adapted.write(place / "data")
    return place


def test_a_dry_run_tells_all_and_writes_nothing(folder: Path) -> None:
    lines: list[str] = []
    config = published(verl={"python": sys.executable, "training_gpus": "0,1,2,3", "gpus": 4})
    out = folder / "dry"
    code = start(
        config,
        folder / "data",
        out,
        model=str(folder / "model"),
        compute="ray:bench:6380",
        dry_run=True,
        tell=lines.append,
    )
    said = "\n".join(lines)
    assert code == 0
    assert "1600 prompts in 100 samplings" in said
    assert "verl.trainer.main_ppo" in said
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3" in said
    assert "adv_estimator" in said
    assert not out.exists()


def test_without_verl_nothing_is_begun(folder: Path) -> None:
    config = published(verl={"python": str(folder / "no-python")})
    with pytest.raises(ToolMissing, match="no interpreter"):
        start(config, folder / "data", folder / "never", model=str(folder / "model"), compute="recorded:x")
    assert not (folder / "never").exists()


def test_a_model_without_a_tokenizer_is_named(folder: Path) -> None:
    with pytest.raises(TrainingError, match="no tokenizer"):
        start(published(), folder / "data", folder / "never", model=str(folder / "data"), compute="recorded:x")


def test_an_earlier_training_is_to_be_merged_first(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.json").touch()
    with pytest.raises(TrainingError, match="train merge"):
        start(published(), folder / "data", folder / "never", model=str(tmp_path), compute="recorded:x")


def test_what_was_started_is_kept_in_a_log_and_its_failure_told(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    lines: list[str] = []
    _run([sys.executable, "-c", "print('step 1')"], {}, tmp_path, lines.append)
    assert lines[-1] == "step 1"
    with pytest.raises(TrainingError, match=r"ended with 3(.|\n)*out of memory"):
        _run([sys.executable, "-c", "print('out of memory'); raise SystemExit(3)"], {}, tmp_path, lines.append)
    assert (tmp_path / "verl" / "log-001.txt").read_text(encoding="utf-8") == "step 1\n"
    assert (tmp_path / "verl" / "log-002.txt").is_file()


@pytest.mark.parametrize("interrupts", ["heeded", "ignored"])
def test_a_launcher_that_is_terminated_leaves_nothing_running(tmp_path: Path, interrupts: str) -> None:
    (tmp_path / "verl").mkdir()
    code = (
        "import sys; from pathlib import Path; from stitchcuda.training.engine_verl import _run; "
        "_run([sys.executable, '-u', '-c', 'import os, time; print(os.getpid()); time.sleep(600)'], {}, "
        f"Path({str(tmp_path)!r}), lambda text: print(text, flush=True))"
    )
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " if interrupts == "ignored" else ""
    with subprocess.Popen([sys.executable, "-c", ignore + code], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()  # the command
        started = int(launcher.stdout.readline())
        launcher.terminate()
        assert launcher.wait(30) == 128 + 15
    with pytest.raises(ProcessLookupError):
        os.kill(started, 0)


def test_a_reward_server_of_its_own_begins_and_ends(folder: Path) -> None:
    words = [sys.executable, "-m", "stitchcuda.training.adapters", "--compute", f"recorded:{folder / 'data'}"]
    with subprocess.Popen(
        [*words, "--token-file", str(folder / "token")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0, line
    assert line.startswith("http://127.0.0.1:")
    assert (folder / "token").is_file()
