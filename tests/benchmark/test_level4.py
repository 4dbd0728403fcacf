"""Models of Hugging Face's transformers: from their configurations, with nothing downloaded."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from stitchcuda.errors import TaskError, ToolMissing
from stitchcuda.task.huggingface import CONFIGURATIONS, configuration, offline, rewritten
from stitchcuda.task.loader import load_task
from stitchcuda.task.model import Target

SOURCE = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM

class Model(torch.nn.Module):
    def __init__(self, model_name, config):
        super().__init__()
        self.name = model_name
        self.model = AutoModelForCausalLM.from_pretrained(model_name, config=config)

    def forward(self, tokens):
        return self.model(tokens).logits

model_name = {name!r}
config = AutoConfig.from_pretrained(model_name)

def get_inputs():
    return [torch.randint(0, config.vocab_size, (2, 8))]

def get_init_inputs():
    return [model_name, config]
"""
HAVE = importlib.util.find_spec("transformers") is not None


@pytest.fixture(autouse=True)
def no_configurations_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("STITCHCUDA_HF_CONFIGS", raising=False)


def text(name: str) -> str:
    return rewritten(ast.parse(SOURCE.format(name=name)), "kernelbench:4/1")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_known_models_ask_for_nothing_that_is_downloaded(name: str) -> None:
    source = text(name)
    assert "from_pretrained" not in source
    assert f"AutoConfig.for_model('{CONFIGURATIONS[name][0]}'" in source
    assert "AutoModelForCausalLM.from_config(config)" in source


def test_the_constructor_takes_plain_values_only_and_dropout_stays_off() -> None:
    source = text("gpt2")
    assert "def __init__(self):" in source
    assert "return []" in source
    assert "MODE = 'eval'" in source


def test_the_settings_of_a_model_are_written_into_the_source() -> None:
    assert "hidden_size=2048" in text("facebook/opt-1.3b")
    assert "attention_types=[[['global', 'local'], 16]]" in text("EleutherAI/gpt-neo-2.7B")


def test_a_model_that_is_not_known_is_said_with_what_to_do() -> None:
    with pytest.raises(TaskError, match=r"not known without the network.*config\.json.*STITCHCUDA_HF_CONFIGS"):
        text("some/model")


def test_a_users_configuration_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "configs" / "some" / "model"
    place.mkdir(parents=True)
    content = {"model_type": "gpt2", "n_layer": 3, "architectures": ["GPT2LMHeadModel"], "torch_dtype": "float32"}
    (place / "config.json").write_text(json.dumps(content))
    monkeypatch.setenv("STITCHCUDA_HF_CONFIGS", str(tmp_path / "configs"))
    assert configuration("some/model") == ("gpt2", {"n_layer": 3})
    (place / "config.json").write_text("[]")
    with pytest.raises(TaskError, match="no model's configuration"):
        configuration("some/model")


def test_what_transformers_has_downloaded_before_is_read(tmp_path: Path) -> None:
    place = tmp_path / "hf" / "hub" / "models--some--model" / "snapshots" / "abc"
    place.mkdir(parents=True)
    (place / "config.json").write_text('{"model_type": "opt", "ffn_dim": 64}')
    assert configuration("some/model") == ("opt", {"ffn_dim": 64})


def test_another_way_to_download_is_refused() -> None:
    source = SOURCE.format(name="gpt2").replace(", config=config)", ")")
    with pytest.raises(TaskError, match="calls from_pretrained in a way that is not known"):
        rewritten(ast.parse(source), "kernelbench:4/1")


def test_other_tasks_are_left_as_they_are() -> None:
    source = "class Model: pass  # not from_pretrained\n"
    assert offline(source, "a.py") is source


@pytest.mark.skipif(HAVE, reason="transformers is installed")
def test_without_transformers_that_is_said() -> None:
    with pytest.raises(ToolMissing, match="pip install transformers"):
        offline(SOURCE.format(name="gpt2"), "kernelbench:4/1")


@pytest.mark.skipif(not HAVE, reason="transformers is not installed")
def test_a_small_model_runs_as_a_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from stitchcuda.task.inspect import inspect_task

    configs = tmp_path / "configs" / "some" / "model"
    configs.mkdir(parents=True)
    small = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    (configs / "config.json").write_text(json.dumps(small))
    monkeypatch.setenv("STITCHCUDA_HF_CONFIGS", str(tmp_path / "configs"))
    folder = tmp_path / "KernelBench" / "level4"
    folder.mkdir(parents=True)
    (folder / "1_small.py").write_text(SOURCE.format(name="some/model"))
    task = load_task("kernelbench:4/1", target=Target(kind="cpu", arch="native"), root=tmp_path)
    facts = inspect_task(task)
    assert facts.outputs[0].shape == (2, 8, 64)
    assert not facts.training
    assert not facts.stochastic
