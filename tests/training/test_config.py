"""Settings of a training: presets hold what they are named after, layers go over each other, mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stitchcuda.errors import TrainingError
from stitchcuda.training.config import accumulation, assigned, make_config, read_config
from stitchcuda.training.phases import Phases
from stitchcuda.training.presets import PRESETS, preset


def test_every_preset_is_valid() -> None:
    for name in PRESETS:
        assert make_config(preset(name)).preset == name
    with pytest.raises(TrainingError, match="unknown preset 'qwen'; there are qwen3-32b-lora, "):
        preset("qwen")


def test_the_preset_for_32b_has_the_published_settings() -> None:
    config = make_config(preset("qwen3-32b-lora"))
    assert config.lora is not None
    assert (config.lora.rank, config.lora.alpha) == (128, 128)
    assert (config.lengths.prompt, config.lengths.completion) == (8192, 16384)
    grpo = config.grpo
    assert (grpo.group, grpo.clip_low, grpo.clip_high, grpo.kl, grpo.temperature) == (6, 0.2, 0.28, 0.03, 0.9)
    assert (grpo.prompts, grpo.updates, config.cycle) == (16, 2, 2)


def test_later_layers_change_single_settings_of_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 7\n[grpo]\ngroup = 4\n[grpo.optimizer]\nrate = 3e-6\n")
    words = assigned(["grpo.kl=0.01", "lora=null", "report=[]", "grpo.loss=dr_grpo"])
    config = make_config(preset("one-gpu"), read_config(file), words, {"grpo": {"steps": 9}})
    assert (config.seed, config.grpo.group, config.grpo.optimizer.rate) == (7, 4, 3e-6)
    assert config.grpo.optimizer.warmup == 5
    assert (config.grpo.kl, config.lora, config.report, config.grpo.steps) == (0.01, None, [], 9)
    assert config.grpo.loss == "dr_grpo"
    assert make_config(config.model_dump()) == config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grpo": {"groups": 4}}, "grpo.groups: Extra inputs are not permitted"),
        ({"grpo": {"group": 1}}, "grpo.group: Input should be greater than or equal to 2"),
        ({"grpo": {"prompts": 5, "updates": 2}}, r"grpo.prompts \(5\) must be a multiple of grpo.updates \(2\)"),
        ({"grpo": {"prompts": 4, "chunks": 3}}, "multiple of grpo.chunks"),
        ({"grpo": {"steps": 7, "updates": 2}}, r"grpo.steps \(7\) must be a multiple of .* \(2\), such as 8"),
        ({"grpo": {"updates": 2}, "saving": {"every": 5}}, r"saving.every \(5\) must be a multiple"),
        ({"saving": {"keep": 1}}, "saving.keep"),
    ],
)
def test_settings_that_cannot_be_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        make_config(changes)


def test_words_and_files_that_set_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"'grpo\.steps' sets nothing"):
        assigned(["grpo.steps"])
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(TrainingError, match="holds a list"):
        read_config(tmp_path / "list.json")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(TrainingError, match="no TOML or JSON"):
        read_config(tmp_path / "bad.toml")


def test_a_step_is_shared_evenly_or_refused() -> None:
    assert accumulation(96, 2, 8, "a step") == 6
    with pytest.raises(TrainingError, match="a step is 10 sequences, which 4 processes with 1 at once"):
        accumulation(10, 1, 4, "a step")


class Peaks:
    """A meter that says what it is told."""

    def __init__(self) -> None:
        self.peak = 0

    def take(self) -> int:
        peak, self.peak = self.peak, 0
        return peak


def test_phases_have_their_own_seconds_and_peaks() -> None:
    now, meter = [0.0], Peaks()

    def passing(seconds: float, peak: int) -> None:
        now[0] += seconds
        meter.peak = max(meter.peak, peak)

    phases = Phases(meter, lambda: now[0])
    passing(1, 5)
    with phases.phase("update"):
        passing(2, 10)
        with phases.phase("generate"):
            passing(3, 99)
        passing(4, 7)
    found = phases.take()
    assert found == {
        "seconds/other": 1,
        "seconds/update": 6,
        "seconds/generate": 3,
        "peak_bytes/other": 5,
        "peak_bytes/update": 10,
        "peak_bytes/generate": 99,
    }
    with phases.phase("evaluate"), phases.phase("reward"):
        passing(8, 1)
    assert phases.take()["seconds/evaluate/reward"] == 8
    assert phases.total == {"other": 1, "update": 6, "generate": 3, "evaluate": 0, "evaluate/reward": 8}
