"""GRPO: the policy samples, the reward service measures, TRL's trainer updates; on one device or, by ``accelerate
launch``, on several. Data sets, folders and stopping are the same for all."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig

from stitchcuda.errors import TrainingError
from stitchcuda.reward.service import Backend
from stitchcuda.training.checkpoint import Result, Started, latest
from stitchcuda.training.checkpoint_model import Origin, load_model, load_tokenizer
from stitchcuda.training.config import TrainConfig, accumulation
from stitchcuda.training.grpo_reward import Rewarder, Samples, columns_of, open_rewards
from stitchcuda.training.grpo_trainer import GroupTrainer
from stitchcuda.training.metrics import MetricsFile, starts
from stitchcuda.training.metrics_trainer import Keeper, Stops, new_phases
from stitchcuda.training.model import Row
from stitchcuda.training.prompts_rl import Fitted, fitted, held_out_rows, interleaved, opens_thought
from stitchcuda.training.start import (
    Tell,
    adapter_config,
    common_arguments,
    finish,
    looked_at,
    need_rows,
    processes,
    rank,
    silent,
)


def run_grpo(started: Started, out: Path, *, backend: Backend | None = None, tell: Tell = silent) -> Result:
    """Train from the beginning, or from the newest whole checkpoint in ``out``; the result is written there.

    ``backend`` measures completions, in place of the compute place that ``started`` names. ``tell`` gets a line for
    every line of metrics.

    Raises TrainingError, ToolMissing, and what the reward service raises where the caller is at fault.
    """
    config = started.config
    phases, stops = new_phases(), Stops(config.seconds, config.cycle)
    if started.only_look:
        config = config.model_copy(update={"grpo": config.grpo.model_copy(update={"kl": 0.0})})
    with phases.phase("load"):
        origin = Origin(started.base, tuple(started.merged))
        tokenizer = load_tokenizer(origin)
        options = config.template_options
        data = Path(started.data)
        train = fitted(data, "train", tokenizer, config.lengths, options, answers=False)
        need_rows(train.rows, data)
        looking = started.only_look or config.held_out.every or config.held_out.at_start or config.held_out.at_end
        look = (
            fitted(data, "held_out", tokenizer, config.lengths, options, answers=False) if looking else Fitted([], {})
        )
        looked = held_out_rows(look.rows, config.held_out.rows)
        if started.only_look:
            need_rows(looked, data, "held_out")
        refuse_wrong_reference(config, origin)
        arguments = grpo_arguments(config, out, looks=bool(looked))
        checkpoint = latest(out, processes())
    rows = [*train.rows, *looked]
    with open_rewards(config, started.compute, _target(started), rows, out, backend) as (service, prepare):
        start = starts(out) + 1
        rewarder = Rewarder(
            service,
            Samples(out / _own("samples.jsonl"), config.samples, start),
            unscored_limit=config.rewards.unscored_limit,
            in_thought=opens_thought(tokenizer, options),
        )
        stops.failing = lambda: rewarder.failing
        file = MetricsFile(out, start) if rank() == 0 else None
        keeper = Keeper(out, file, phases, stops, tell)
        with phases.phase("load"):
            GroupTrainer.phases, GroupTrainer.grpo, GroupTrainer.rewarder = phases, config.grpo, rewarder
            trainer = GroupTrainer(
                model=load_model(origin, config),
                reward_funcs=[rewarder.function()],
                args=arguments,
                train_dataset=training_set([prepare(row) for row in train.rows], config),
                eval_dataset=Dataset.from_list([columns_of(prepare(row)) for row in looked]) if looked else None,
                processing_class=tokenizer,
                peft_config=None if started.only_look else adapter_config(config),
                callbacks=[keeper],
            )
        trainer.remove_callback(PrinterCallback)
        try:
            if started.only_look:
                trainer.evaluate()
                return looked_at(started, out, keeper, phases, looked)
            with stops.listening():
                if checkpoint is None and looked and config.held_out.at_start:
                    trainer.evaluate()
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            return finish(started, out, trainer, keeper, phases, train, looked)
        finally:
            rewarder.close()


def refuse_wrong_reference(config: TrainConfig, origin: Origin) -> None:
    """Raises TrainingError where TRL would measure the divergence from another model than the one begun with."""
    if config.grpo.kl and config.lora is None and origin.merged:
        raise TrainingError(
            "with all weights trained and grpo.kl above 0, the model to stay near is read from its folder, without the "
            "adapters that are added to it; write it whole by `stitchcuda train merge`, and begin with that"
        )


def training_set(rows: Sequence[Row], config: TrainConfig) -> Dataset:
    """All prompts of the training in their order, both skills interleaved; the trainer takes them one after another."""
    grpo = config.grpo
    samplings = -(-grpo.steps // config.cycle)
    order = itertools.islice(interleaved(rows, grpo.improve_share, config.seed), samplings * grpo.prompts)
    return Dataset.from_list([columns_of(row) for row in rows]).select(list(order))


def grpo_arguments(config: TrainConfig, out: Path, *, looks: bool) -> GRPOConfig:
    """TRL's settings. Raises TrainingError where batches cannot be shared evenly."""
    grpo = config.grpo
    world = processes()
    sampled = grpo.prompts * grpo.group
    if sampled % grpo.updates:
        raise TrainingError(
            f"grpo.prompts * grpo.group ({sampled}) must be a multiple of grpo.updates ({grpo.updates})"
        )
    each = accumulation(sampled // grpo.updates, grpo.optimizer.micro_batch, world, "a step of GRPO")
    if grpo.chunks > 1 and sampled // world % (grpo.chunks * grpo.group):
        raise TrainingError(
            f"a process samples {sampled // world} completions, which cannot be split into grpo.chunks={grpo.chunks} "
            f"parts of whole groups of {grpo.group}; expected a multiple of {grpo.chunks * grpo.group}: raise "
            "grpo.prompts, or set grpo.chunks=1"
        )
    samples = config.held_out.samples
    return GRPOConfig(
        **common_arguments(config, out, grpo.optimizer),
        max_steps=grpo.steps,
        gradient_accumulation_steps=each,
        steps_per_generation=each * grpo.updates,
        num_generations=grpo.group,
        num_generations_eval=samples,
        per_device_eval_batch_size=samples * max(1, -(-grpo.optimizer.micro_batch // samples)),
        eval_strategy="steps" if looks and config.held_out.every else "no",
        eval_steps=config.held_out.every or None,
        num_iterations=grpo.passes,
        max_completion_length=config.lengths.completion,
        temperature=grpo.temperature,
        top_p=grpo.top_p,
        top_k=grpo.top_k,
        beta=grpo.kl,
        epsilon=grpo.clip_low,
        epsilon_high=grpo.clip_high,
        loss_type=grpo.loss,
        scale_rewards="none",
        mask_truncated_completions=grpo.mask_truncated,
        shuffle_dataset=False,
        remove_unused_columns=False,
        chat_template_kwargs=dict(config.template_options) or None,
        log_completions=False,
        **vllm_arguments(config),
    )


def vllm_arguments(config: TrainConfig) -> dict[str, Any]:
    """How vLLM samples, where it does. Raises TrainingError where it is asked for and not installed."""
    grpo = config.grpo
    there = importlib.util.find_spec("vllm") is not None
    mode = grpo.vllm
    if mode == "auto":
        mode = "colocate" if there and torch.cuda.is_available() else "off"
    if mode == "off":
        return {"use_vllm": False}
    if not there:
        raise TrainingError(
            f"grpo.vllm is '{mode}', and vLLM is not installed; install trl[vllm], or set grpo.vllm=off"
        )
    found: dict[str, Any] = {"use_vllm": True, "vllm_mode": mode}
    if mode == "server":
        return {**found, "vllm_server_base_url": grpo.vllm_url}
    return {
        **found,
        "vllm_gpu_memory_utilization": grpo.vllm_memory,
        "vllm_enable_sleep_mode": grpo.vllm_sleep,
        "vllm_tensor_parallel_size": grpo.vllm_parallel,
        "vllm_max_model_length": config.lengths.prompt + config.lengths.completion,
    }


def _target(started: Started) -> Literal["auto", "cuda", "cpu"]:
    return started.target  # type: ignore[return-value]


def _own(name: str) -> str:
    """A file of this process."""
    stem, _, ending = name.partition(".")
    return name if rank() == 0 else f"{stem}-{rank()}.{ending}"
