"""What SFT and GRPO begin and end with alike: processes, TRL's common settings, adapters, and the written result."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stitchcuda.errors import DeviceError, ToolMissing, TrainingError
from stitchcuda.training.checkpoint import ADAPTER, CHECKPOINTS, MODEL, Result, Started, write_result
from stitchcuda.training.checkpoint_model import NEEDED
from stitchcuda.training.config import Optimizer, TrainConfig
from stitchcuda.training.model import Part, Row
from stitchcuda.training.phases import Phases
from stitchcuda.training.prompts_rl import Fitted

Tell = Callable[[str], None]


def silent(text: str) -> None:
    """Tell nobody."""


def rank() -> int:
    """Which of the processes that a launcher started this is; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def processes() -> int:
    """How many a launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def versions() -> dict[str, str]:
    """Of what decides the numbers."""
    return {name: version(name) for name in (*NEEDED, "torch")} | {"python": platform.python_version()}


def check_device(config: TrainConfig) -> None:
    """Raises DeviceError where the settings need a GPU and there is none, or several and no launcher."""
    import torch

    if config.needs_gpu and not torch.cuda.is_available():
        raise DeviceError(
            f"the settings ({config.preset or 'no preset'}) need a GPU, and there is none; train elsewhere, or take "
            "--preset tiny-cpu (or --set needs_gpu=false) to try it here"
        )
    if torch.cuda.is_available() and torch.cuda.device_count() > 1 and "WORLD_SIZE" not in os.environ:
        raise DeviceError(
            f"there are {torch.cuda.device_count()} GPUs and one process; start `accelerate launch --num_processes "
            f"{torch.cuda.device_count()} -m stitchcuda.cli.main train ...`, or show it one by CUDA_VISIBLE_DEVICES=0"
        )


def common_arguments(config: TrainConfig, out: Path, optimizer: Optimizer) -> dict[str, Any]:
    """TRL's settings that do not depend on the kind of training."""
    import torch

    trackers = [name for name in config.report if name != "tensorboard" or _tensorboard()]
    if absent := [name for name in trackers if name != "tensorboard" and importlib.util.find_spec(name) is None]:
        raise ToolMissing(f"report names {', '.join(absent)}, which is not installed; install it, or set report=[]")
    return {
        "output_dir": str(out / CHECKPOINTS),
        "seed": config.seed,
        "bf16": config.precision == "bf16",
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": config.checkpointing,
        "per_device_train_batch_size": optimizer.micro_batch,
        "learning_rate": optimizer.rate,
        "lr_scheduler_type": optimizer.schedule,
        "warmup_steps": optimizer.warmup,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.gradient_clip,
        "logging_steps": config.log_every,
        "logging_first_step": True,
        "save_strategy": "steps",
        "save_steps": config.saving.every,
        "save_total_limit": config.saving.keep,
        "report_to": trackers or "none",
        "run_name": out.name,
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
    }


def quiet() -> None:
    """Leave talking to this package: no progress bars, and of the libraries errors only."""
    import logging
    import warnings

    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("trl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


def adapter_config(config: TrainConfig) -> Any:
    """peft's settings; None where all weights are trained."""
    if config.lora is None:
        return None
    from peft import LoraConfig

    lora = config.lora
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.modules,
        bias="none",
        task_type="CAUSAL_LM",
    )


def finish(
    started: Started, out: Path, trainer: Any, keeper: Any, phases: Phases, train: Fitted, looked: Sequence[Row]
) -> Result:
    """Write the weights and how it ended; then, where nothing ended it early, look once more."""
    config = started.config
    reason = keeper.stops.reason
    state = trainer.state
    name = ADAPTER if config.lora is not None else MODEL
    with phases.phase("save"):
        trainer.save_model(str(out / name))
    counts = {"train": len(train.rows), "held_out": len(looked), **train.left_out}

    def written() -> Result:
        phases.take()
        result = Result(
            kind=started.kind,
            stopped=reason or "done",
            step=state.global_step,
            steps=state.max_steps,
            model=str((out / name).absolute()),
            seconds={key: round(value, 3) for key, value in phases.total.items()},
            peak_bytes={key: value for key, value in phases.peaks.items() if value},
            rows=counts,
            last=_plain(keeper.last.get("train", {})),
            held_out=_plain(keeper.last.get("eval", {})),
        )
        if rank() == 0:
            write_result(out, result)
        return result

    result = written()
    seen = keeper.last.get("eval", {}).get("step")
    if looked and config.held_out.at_end and not reason and seen != state.global_step:
        trainer.evaluate()
        result = written()
    return result


def looked_at(started: Started, out: Path, keeper: Any, phases: Phases, looked: Sequence[Row]) -> Result:
    """Write what a look at held-out rows showed."""
    phases.take()
    result = Result(
        kind=started.kind,
        stopped="looked",
        step=0,
        steps=0,
        model=started.merged[-1] if started.merged else started.base,
        seconds={key: round(value, 3) for key, value in phases.total.items()},
        peak_bytes={key: value for key, value in phases.peaks.items() if value},
        rows={"held_out": len(looked)},
        held_out=_plain(keeper.last.get("eval", {})),
    )
    if rank() == 0:
        write_result(out, result)
    return result


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, (int, float, str))}


def _tensorboard() -> bool:
    return any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))


def need_rows(rows: Sequence[Row], folder: Path, part: Part = "train") -> None:
    """Raises TrainingError where a part that is needed has no row."""
    if not rows:
        raise TrainingError(f"{folder / part}.parquet has no row; build the data set with more tasks")
