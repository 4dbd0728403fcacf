"""Settings: checked at the door, written without secrets, read back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.errors import RunError, StitchError
from stitchcuda.workflow.budget import Limits, Spent
from stitchcuda.workflow.config import RunConfig


def test_settings_survive_the_file(tmp_path: Path) -> None:
    config = RunConfig(
        task='a "quoted" \\ path\x7f\n', precision="bf16", seconds=1.5, drafts=2, approve_plan=True, model="openai:x"
    )
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert RunConfig.read(path) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"compute": "slurm"}, "use local, spool:DIR"),
        ({"base_url": "http://user:secret@host/v1"}, "environment variable"),
        ({"base_url": "localhost:80"}, "not an http"),
        ({"target": "tpu"}, "target"),
        ({"iterations": 0}, "iterations"),
        ({"target_speedup": -1}, "target-speedup"),
        ({"budget": "huge"}, "quick"),
        ({"coder_model": "openai:x"}, "--coder-model has no effect on recipes"),
        ({"usd": 0}, "^budget-usd: "),
        ({"max_output_tokens": 0, "model": "openai:x"}, "^max-output-tokens: "),
        ({"max_output_tokens": 8_000}, "--max-output-tokens has no effect on recipes"),
        ({"confirm": "maybe"}, "^confirm: Input .*'publish', 'screen' or 'none'"),
    ],
)
def test_unusable_settings_are_refused_in_a_sentence(values: dict[str, object], words: str) -> None:
    with pytest.raises(StitchError, match=words) as caught:
        RunConfig.checked(task="t.py", **values)
    assert "secret" not in str(caught.value)


def test_overrides_replace_the_presets_limits() -> None:
    config = RunConfig(task="t.py", model="openai:x", budget="quick", usd=0.1)
    assert config.limits() == Limits(iterations=10, seconds=600, tokens=300_000, usd=0.1)


def test_a_model_free_mind_has_small_defaults() -> None:
    config = RunConfig(task="t.py")
    assert config.limits().iterations <= 20
    assert config.limits().usd == 0
    assert config.drafts_per_idea() == 1


@pytest.mark.parametrize("text", ["task = ", "task = 1", "task = 't.py'\nunknown = 2"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(RunError, match=r"config\.toml"):
        RunConfig.read(path)


def test_each_limit_ends_a_run_in_words() -> None:
    limits = Limits(iterations=2, seconds=10, tokens=100, usd=1)
    assert Spent().exhausted(limits) is None
    assert "candidates" in str(Spent(iterations=2).exhausted(limits))
    assert "wall time" in str(Spent(seconds=10).exhausted(limits))
    assert "tokens" in str(Spent(input_tokens=60, output_tokens=40).exhausted(limits))
    assert "$1.00" in str(Spent(usd=1.0).exhausted(limits))
    assert Spent(iterations=99).exhausted(Limits(iterations=0, seconds=0, tokens=0, usd=0)) is None


def test_only_a_language_model_on_a_gpu_is_given_counters_unasked() -> None:
    free, paid = RunConfig(task="t.py"), RunConfig(task="t.py", model="openai:x")
    assert [free.counted("cuda"), free.counted("cpu"), paid.counted("cuda"), paid.counted("cpu")] == [0, 0, 3, 0]
    assert RunConfig(task="t.py", model="openai:x", ablate=["profile"]).counted("cuda") == 0
    assert RunConfig(task="t.py", counters=2).counted("cpu") == 2
    assert RunConfig(task="t.py", model="openai:x", counters=0).counted("cuda") == 0
