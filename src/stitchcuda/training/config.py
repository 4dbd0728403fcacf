"""The settings of a training, typed once: what is trained, on which rows, how, for how long. Presets are in
``presets``; written to the output folder as ``train.json``.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stitchcuda.errors import TrainingError
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.reward.model import RewardSettings
from stitchcuda.training.engine_verl_settings import VerlSettings

Kind = Literal["sft", "grpo"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Lora(_Section):
    """Low-rank adapters beside frozen weights."""

    rank: int = Field(default=32, ge=1, description="r")
    alpha: int = Field(default=64, ge=1, description="the update is scaled by alpha / r")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    modules: list[str] | Literal["all-linear"] = Field(
        default="all-linear",
        description="names of the layers that get one; all-linear: every linear layer but the head",
    )


class Lengths(_Section):
    """In tokens of the model's own tokenizer. Rows that are longer are left out, never cut."""

    prompt: int = Field(default=8192, ge=1, description="longest prompt, with the chat template's own tokens")
    completion: int = Field(default=4096, ge=1, description="longest answer; sampling stops there")


class Optimizer(_Section):
    """AdamW and its schedule."""

    rate: float = Field(default=1e-5, gt=0, description="learning rate")
    schedule: Literal["constant_with_warmup", "cosine", "linear"] = Field(
        default="constant_with_warmup", description="cosine and linear end at the last step: resume with equal steps"
    )
    warmup: int = Field(default=0, ge=0, description="steps in which the rate rises from 0")
    weight_decay: float = Field(default=0.0, ge=0)
    gradient_clip: float = Field(default=1.0, gt=0, description="largest norm of the gradient")
    micro_batch: int = Field(default=1, ge=1, description="sequences on a device at once; the rest is accumulated")


class Sft(_Section):
    """Fine-tuning on verified answers; the loss is on the answer only."""

    epochs: float = Field(default=1.0, gt=0, description="passes over the rows, where steps is not set")
    steps: int | None = Field(default=None, ge=1, description="steps in place of epochs")
    batch: int = Field(default=64, ge=1, description="sequences a step, over all devices")
    optimizer: Optimizer = Field(default_factory=lambda: Optimizer(rate=2e-5, schedule="cosine", warmup=5))


class Grpo(_Section):
    """Group-relative policy optimisation with measured rewards."""

    steps: int = Field(default=100, ge=1, description="optimiser steps; whole samplings")
    prompts: int = Field(default=16, ge=1, description="prompts that are sampled at once, over all devices")
    group: int = Field(default=8, ge=2, description="completions of each prompt")
    updates: int = Field(default=1, ge=1, description="optimiser steps that one sampling is split into")
    passes: int = Field(default=1, ge=1, description="how often each sampling is used")
    improve_share: float = Field(
        default=0.5, ge=0, le=1, description="of the prompts, evenly spread; 0: only scratch, 1: only improve"
    )
    clip_low: float = Field(
        default=0.2, gt=0, lt=1, description="the ratio to the sampling policy is clipped below 1 - this"
    )
    clip_high: float = Field(default=0.28, gt=0, description="and above 1 + this")
    kl: float = Field(default=0.0, ge=0, description="weight of the divergence from the model that was started with")
    loss: Literal["dapo", "dr_grpo", "grpo", "bnpo", "cispo"] = Field(
        default="dapo", description="how tokens are averaged: dapo over the batch's, dr_grpo by a constant length"
    )
    scale: Literal["group", "none"] = Field(
        default="group",
        description="group: advantages are divided by the group's standard deviation, floored; none: not",
    )
    least_deviation: float = Field(
        default=0.05,
        ge=0,
        description="the floor, in units of reward, where the measured noise of the group's rewards is smaller",
    )
    mask_truncated: bool = Field(default=False, description="leave answers that did not end out of the loss")
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, description="0: all tokens")
    vllm: Literal["auto", "off", "colocate", "server"] = Field(
        default="auto",
        description="colocate: on the training GPUs, in turn; server: one that `trl vllm-serve` started; auto: "
        "colocate where vLLM is installed and there is a GPU",
    )
    vllm_memory: float = Field(default=0.35, gt=0, lt=1, description="share of the GPU's memory that vLLM may take")
    vllm_parallel: int = Field(default=1, ge=1, description="GPUs that share one copy of the model in vLLM")
    vllm_sleep: bool = Field(default=False, description="vLLM gives its memory back while the model is updated")
    vllm_url: str = Field(default="http://127.0.0.1:8000", description="of the server")
    chunks: int = Field(
        default=1, ge=1, description="parts that a sampling is split into, one after another: less memory, more time"
    )
    early: bool = Field(
        default=True,
        description="measure each chunk while the next is sampled. Off where programs are timed on the GPU that "
        "samples: it would disturb their times",
    )
    optimizer: Optimizer = Field(default_factory=lambda: Optimizer(rate=1e-5, warmup=5))


class Rewards(_Section):
    """How completions are scored."""

    settings: RewardSettings = Field(default_factory=RewardSettings, description="the constants of the formula")
    profile: bool = Field(default=True, description="profile correct programs: without it marks know times alone")
    concurrency: int = Field(default=8, ge=1, description="completions that a process has in measurement at once")
    evaluation: EvaluationSettings = Field(
        default_factory=EvaluationSettings,
        description="how a program is checked and timed; the screen's own by default",
    )
    patience_seconds: float = Field(default=1800.0, gt=0, description="for one completion, with the pool's queue")
    unscored_limit: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="stop when the machine failed on more than this share of the last five samplings' completions",
    )


class HeldOut(_Section):
    """Looking at tasks that are not trained on."""

    every: int = Field(default=20, ge=0, description="steps between two looks; 0: never")
    rows: int = Field(default=32, ge=1, description="of the held-out part, both skills in turn")
    samples: int = Field(default=1, ge=1, description="completions of each, for GRPO")
    at_start: bool = Field(default=True, description="also before the first step")
    at_end: bool = Field(default=True, description="also after the last step")


class Saving(_Section):
    """Checkpoints hold all that an exact continuation needs."""

    every: int = Field(default=10, ge=1, description="steps")
    keep: int = Field(
        default=2, ge=2, description="the newest ones; two, so that a kill in the midst of saving loses none"
    )


class TrainConfig(_Section):
    """Everything that decides what a training does, besides model and data."""

    preset: str = Field(default="", description="what it was made from")
    seed: int = 1
    needs_gpu: bool = Field(default=True, description="refuse to start without one")
    precision: Literal["bf16", "fp32"] = Field(default="bf16", description="what forward and backward compute in")
    weights: Literal["bf16", "fp32"] = Field(
        default="bf16",
        description="what weights that are not trained are kept in; trained ones are fp32 but for full bf16",
    )
    checkpointing: bool = Field(default=True, description="compute activations twice instead of keeping them")
    lora: Lora | None = Field(default_factory=Lora, description="None: all weights are trained")
    lengths: Lengths = Field(default_factory=Lengths)
    template_options: dict[str, Any] = Field(
        default_factory=dict, description="for the chat template, such as {'enable_thinking': False}"
    )
    sft: Sft = Field(default_factory=Sft)
    grpo: Grpo = Field(default_factory=Grpo)
    rewards: Rewards = Field(default_factory=Rewards)
    held_out: HeldOut = Field(default_factory=HeldOut)
    saving: Saving = Field(default_factory=Saving)
    verl: VerlSettings = Field(default_factory=VerlSettings, description="only for the engine verl")
    seconds: float | None = Field(
        default=None,
        gt=0,
        description="of one start: no step is begun that would not end in time; a resumed one has them anew",
    )
    log_every: int = Field(default=1, ge=1, description="steps between two lines of metrics")
    samples: Literal["none", "correct", "all"] = Field(
        default="correct", description="whose text samples.jsonl keeps; it has a line for every completion unless none"
    )
    report: list[str] = Field(
        default_factory=lambda: ["tensorboard"],
        description="trackers beside metrics.jsonl: tensorboard (where it is installed), mlflow, trackio, ...",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        grpo = self.grpo
        if grpo.prompts % grpo.updates:
            raise ValueError(f"grpo.prompts ({grpo.prompts}) must be a multiple of grpo.updates ({grpo.updates})")
        if grpo.prompts % grpo.chunks:
            raise ValueError(f"grpo.prompts ({grpo.prompts}) must be a multiple of grpo.chunks ({grpo.chunks})")
        cycle = self.cycle
        if grpo.steps % cycle:
            raise ValueError(
                f"grpo.steps ({grpo.steps}) must be a multiple of grpo.updates times grpo.passes ({cycle}), such as "
                f"{-(-grpo.steps // cycle) * cycle}: a sampling is used whole"
            )
        if self.saving.every % cycle:
            raise ValueError(
                f"saving.every ({self.saving.every}) must be a multiple of grpo.updates times grpo.passes ({cycle}): "
                "a sampling that is used in part is not in a checkpoint"
            )
        return self

    @property
    def cycle(self) -> int:
        """GRPO's steps from one sampling to the next."""
        return self.grpo.updates * self.grpo.passes


def accumulation(total: int, micro_batch: int, processes: int, what: str) -> int:
    """How often each process accumulates ``micro_batch`` sequences to have ``total`` over all of them.

    Raises TrainingError where that is no whole number.
    """
    each = micro_batch * processes
    if total % each:
        raise TrainingError(
            f"{what} is {total} sequences, which {processes} processes with {micro_batch} at once cannot share evenly; "
            "change one of them (micro_batch is in the optimizer's section)"
        )
    return total // each


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML or JSON file, unchecked. Raises TrainingError when it is neither."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path} is no TOML or JSON file: {error}") from None
    if not isinstance(found, dict):
        raise TrainingError(f"{path} holds a {type(found).__name__}, expected a table of settings")
    return found


def assigned(words: list[str]) -> dict[str, Any]:
    """Settings from ``a.b=value`` words; values are JSON where they can be, else text. Raises TrainingError."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise TrainingError(f"'{word}' sets nothing; write SECTION.NAME=VALUE, such as grpo.steps=50")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise TrainingError(f"'{word}' sets a part of something that another word sets whole")
        place[last] = value
    return found


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``base`` with what ``over`` says, section by section."""
    found = dict(base)
    for name, value in over.items():
        old = found.get(name)
        found[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found


def make_config(*layers: dict[str, Any]) -> TrainConfig:
    """The settings of several layers, later ones over earlier ones. Raises TrainingError, naming the setting."""
    found: dict[str, Any] = {}
    for layer in layers:
        found = merged(found, layer)
    try:
        return TrainConfig.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise TrainingError(f"the settings cannot be used: {f'{where}: ' if where else ''}{said}") from None
