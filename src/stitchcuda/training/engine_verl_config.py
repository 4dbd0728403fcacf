"""The settings of a training as verl's own. Nothing is started or written here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stitchcuda.errors import TrainingError
from stitchcuda.training.adapters.manager_file import ESTIMATOR
from stitchcuda.training.config import TrainConfig
from stitchcuda.training.engine_verl_settings import VerlSettings

VERL = "0.9"
"""The version whose settings these are."""

_AGGREGATION = {"dapo": "token-mean", "cispo": "token-mean", "grpo": "seq-mean-token-mean"}
_TRACKERS = ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio")


class VerlFiles(BaseModel):
    """Paths that every node sees."""

    model_config = ConfigDict(frozen=True)

    out: Path
    train: Path
    held_out: Path | None
    reward: Path
    manager: Path
    token: Path


def refuse_what_verl_lacks(config: TrainConfig) -> None:
    """Raises TrainingError for settings that would silently mean something else under verl."""
    settings = config.verl
    wrong: list[str] = []
    if config.seconds is not None:
        wrong.append("seconds: verl stops at steps only; set grpo.steps, and start again to go on")
    if config.grpo.mask_truncated:
        wrong.append(
            "grpo.mask_truncated: verl has no such mask; an answer that did not end has no program and reward 0"
        )
    if config.grpo.loss == "bnpo":
        wrong.append("grpo.loss=bnpo: verl averages over the whole batch; use dapo")
    if config.grpo.optimizer.schedule == "linear":
        wrong.append("grpo.optimizer.schedule=linear: verl has constant and cosine")
    if config.lora is not None and config.lora.dropout:
        wrong.append("lora.dropout: verl's adapters have none")
    if config.precision != "bf16":
        wrong.append("precision: the verl engine computes in bf16")
    total, each = config.grpo.prompts * config.grpo.group, settings.nodes * settings.gpus
    if total % each:
        wrong.append(
            f"{total} completions of a sampling cannot be shared by {each} GPUs; change prompts, group or GPUs"
        )
    if settings.gpus % (parallel := settings.tensor_parallel or config.grpo.vllm_parallel):
        wrong.append(f"{settings.gpus} GPUs of a node cannot be shared out to samplers of {parallel}")
    if settings.benchmark_gpus and not settings.training_gpus:
        wrong.append("benchmark_gpus without training_gpus: say which GPUs are verl's, too")
    if set(_listed(settings.benchmark_gpus)) & set(_listed(settings.training_gpus)):
        wrong.append("a GPU that trains cannot measure: benchmark_gpus and training_gpus share one")
    if wrong:
        raise TrainingError("the verl engine cannot keep these settings: " + "; ".join(wrong))


def _listed(gpus: str) -> list[str]:
    return [name.strip() for name in gpus.split(",") if name.strip()]


def samplings(config: TrainConfig) -> int:
    """How often prompts are sampled: verl counts these as steps, this package counts updates of the weights."""
    return config.grpo.steps // config.cycle


def prompts_needed(config: TrainConfig) -> int:
    """Rows that all samplings take together."""
    return samplings(config) * config.grpo.prompts


def verl_settings(config: TrainConfig, model: str, files: VerlFiles, endpoint: str) -> dict[str, Any]:
    """verl's settings by dotted name; only those that differ from its defaults, or that results depend on."""
    refuse_what_verl_lacks(config)
    settings = config.verl
    found = _data(config, files)
    found |= _model(config, settings, model)
    found |= _actor(config, settings)
    found |= _rollout(config, settings)
    found |= _reward(config, settings, files, endpoint)
    found |= _trainer(config, settings, files)
    return found | settings.more


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted names as sections."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return found


def hydra_file(flat: dict[str, Any]) -> str:
    """The settings as a file for Hydra, over verl's own defaults; values are JSON, which YAML holds."""
    lines = [f"# Over the defaults of verl {VERL}.", "defaults:", "  - ppo_trainer", "  - _self_", ""]

    def write(section: dict[str, Any], depth: int) -> None:
        for name, value in section.items():
            inner = isinstance(value, dict) and bool(value)
            lines.append("  " * depth + (f"{name}:" if inner else f"{name}: {json.dumps(value)}"))
            if inner:
                write(value, depth + 1)

    write(nested(flat), 0)
    return "\n".join(lines) + "\n"


def _data(config: TrainConfig, files: VerlFiles) -> dict[str, Any]:
    return {
        "data.train_files": [str(files.train)],
        # verl wants a file to look at; without looks it is not read again.
        "data.val_files": [str(files.held_out or files.train)],
        "data.train_batch_size": config.grpo.prompts,
        "data.max_prompt_length": config.lengths.prompt,
        "data.max_response_length": config.lengths.completion,
        "data.filter_overlong_prompts": False,  # the file holds only what fits, in the order of the steps
        "data.truncation": "error",
        "data.shuffle": False,
        "data.seed": config.seed,
        "data.apply_chat_template_kwargs": config.template_options,
    }


def _model(config: TrainConfig, settings: VerlSettings, model: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.model.enable_gradient_checkpointing": config.checkpointing,
        "actor_rollout_ref.model.use_remove_padding": True,
    }
    if config.lora is not None:
        found |= {
            "actor_rollout_ref.model.lora_rank": config.lora.rank,
            "actor_rollout_ref.model.lora_alpha": config.lora.alpha,
            "actor_rollout_ref.model.target_modules": config.lora.modules,
            "actor_rollout_ref.rollout.load_format": "safetensors",
            "actor_rollout_ref.rollout.layered_summon": settings.engine == "fsdp",
        }
    return found


def _actor(config: TrainConfig, settings: VerlSettings) -> dict[str, Any]:
    grpo, optimizer = config.grpo, config.grpo.optimizer
    actor, ref = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
    found: dict[str, Any] = {
        "algorithm.adv_estimator": ESTIMATOR,
        "algorithm.norm_adv_by_std_in_grpo": grpo.scale == "group",
        "algorithm.least_deviation": grpo.least_deviation,
        "algorithm.use_kl_in_reward": False,
        f"{actor}.strategy": settings.engine,
        f"{actor}.ppo_mini_batch_size": grpo.prompts // grpo.updates,
        f"{actor}.ppo_micro_batch_size_per_gpu": optimizer.micro_batch,
        f"{actor}.ppo_epochs": grpo.passes,
        f"{actor}.data_loader_seed": config.seed,
        f"{actor}.clip_ratio": grpo.clip_low,
        f"{actor}.clip_ratio_low": grpo.clip_low,
        f"{actor}.clip_ratio_high": grpo.clip_high,
        f"{actor}.loss_agg_mode": _AGGREGATION.get(grpo.loss, "seq-mean-token-sum-norm"),
        f"{actor}.use_kl_loss": grpo.kl > 0,
        f"{actor}.kl_loss_coef": grpo.kl,
        f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.entropy_coeff": 0,
        f"{actor}.calculate_entropy": True,
        f"{actor}.ulysses_sequence_parallel_size": settings.sequence_parallel,
        f"{actor}.optim.lr": optimizer.rate,
        f"{actor}.optim.weight_decay": optimizer.weight_decay,
        f"{actor}.optim.clip_grad": optimizer.gradient_clip,
        f"{actor}.optim.lr_warmup_steps": optimizer.warmup,
        f"{actor}.optim.lr_scheduler_type": "cosine" if optimizer.schedule == "cosine" else "constant",
        f"{actor}.fsdp_config.model_dtype": "bf16" if config.weights == "bf16" else "fp32",
        f"{actor}.fsdp_config.param_offload": settings.offload,
        f"{actor}.fsdp_config.optimizer_offload": settings.offload,
        f"{ref}.log_prob_micro_batch_size_per_gpu": optimizer.micro_batch,
        f"{ref}.fsdp_config.param_offload": settings.offload,
    }
    if grpo.loss == "dr_grpo":
        found[f"{actor}.loss_scale_factor"] = config.lengths.completion
    if grpo.loss == "cispo":
        found[f"{actor}.policy_loss.loss_mode"] = "cispo"
    return found


def _rollout(config: TrainConfig, settings: VerlSettings) -> dict[str, Any]:
    grpo, rollout = config.grpo, "actor_rollout_ref.rollout"
    longest = config.lengths.prompt + config.lengths.completion
    sampling = {"temperature": grpo.temperature, "top_p": grpo.top_p, "top_k": grpo.top_k or -1}
    return {
        f"{rollout}.name": settings.rollout,
        f"{rollout}.n": grpo.group,
        f"{rollout}.seed": config.seed,
        **{f"{rollout}.{name}": value for name, value in sampling.items()},
        **{f"{rollout}.val_kwargs.{name}": value for name, value in sampling.items()},
        f"{rollout}.val_kwargs.n": config.held_out.samples,
        f"{rollout}.val_kwargs.do_sample": True,
        f"{rollout}.tensor_model_parallel_size": settings.tensor_parallel or grpo.vllm_parallel,
        f"{rollout}.gpu_memory_utilization": settings.memory,
        f"{rollout}.max_model_len": longest,
        f"{rollout}.max_num_batched_tokens": max(8192, longest),
        f"{rollout}.log_prob_micro_batch_size_per_gpu": grpo.optimizer.micro_batch,
    }


def _reward(config: TrainConfig, settings: VerlSettings, files: VerlFiles, endpoint: str) -> dict[str, Any]:
    workers = settings.reward_workers
    told = {
        "endpoint": endpoint,
        "token_file": settings.token_file if settings.endpoint else str(files.token),
        "max_concurrent": max(1, math.ceil(4 * config.rewards.concurrency / workers)),
        "patience_s": 4 * config.rewards.patience_seconds,
    }
    return {
        "reward.num_workers": workers,
        "reward.custom_reward_function.path": str(files.reward),
        "reward.custom_reward_function.name": "compute_score",
        **{f"reward.custom_reward_function.reward_kwargs.{name}": value for name, value in told.items()},
        # rate_limited would turn every failure and time-out into a reward of 0.
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": "Manager",
        "reward.reward_manager.module.path": str(files.manager),
    }


def _trainer(config: TrainConfig, settings: VerlSettings, files: VerlFiles) -> dict[str, Any]:
    cycle = config.cycle
    looks = files.held_out is not None
    found: dict[str, Any] = {
        "trainer.nnodes": settings.nodes,
        "trainer.n_gpus_per_node": settings.gpus,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": samplings(config),
        "trainer.save_freq": max(1, config.saving.every // cycle),
        "trainer.max_actor_ckpt_to_keep": config.saving.keep,
        "trainer.test_freq": _looks_every(config) if looks else -1,
        "trainer.val_before_train": looks and config.held_out.at_start,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": str(files.out / "checkpoints"),
        "trainer.rollout_data_dir": str(files.out / "rollouts") if config.samples != "none" else None,
        "trainer.project_name": "stitchcuda",
        "trainer.experiment_name": files.out.name,
        "trainer.logger": ["console", "file", *(name for name in config.report if name in _TRACKERS)],
        "trainer.v1.trainer_mode": "sync",
    }
    if settings.refill:
        found |= {"trainer.v1.sampler.sync_refill_failed_groups": True, "data.gen_batch_size": 1}
    return found


def _looks_every(config: TrainConfig) -> int:
    """Samplings between two looks; verl also looks after the last one, unless it never looks."""
    held = config.held_out
    if held.every:
        return max(1, held.every // config.cycle)
    return samplings(config) if held.at_end else -1
