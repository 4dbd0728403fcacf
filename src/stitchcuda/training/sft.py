"""Supervised fine-tuning on verified answers by TRL's trainer, the cold start: the loss is on answers only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from stitchcuda.training.checkpoint import Result, Started, latest
from stitchcuda.training.checkpoint_model import Origin, load_model, load_tokenizer
from stitchcuda.training.config import TrainConfig, accumulation
from stitchcuda.training.metrics import MetricsFile, starts
from stitchcuda.training.metrics_trainer import Keeper, Measured, Stops, new_phases
from stitchcuda.training.model import Row
from stitchcuda.training.prompts_rl import answer_of, fitted, held_out_rows, prompt_of
from stitchcuda.training.start import Tell, adapter_config, common_arguments, finish, need_rows, processes, rank, silent


class AnswerTrainer(Measured, SFTTrainer):  # type: ignore[misc]
    """TRL's SFTTrainer with its time booked; ``phases`` is set before it is made."""


def run_sft(started: Started, out: Path, *, tell: Tell = silent) -> Result:
    """Train from the beginning, or from the newest whole checkpoint in ``out``; the result is written there.

    Raises TrainingError, ToolMissing and StitchError where model or data do not fit.
    """
    config = started.config
    phases, stops = new_phases(), Stops(config.seconds, 1)
    with phases.phase("load"):
        origin = Origin(started.base, tuple(started.merged))
        tokenizer = load_tokenizer(origin)
        options = config.template_options
        data = Path(started.data)
        train = fitted(data, "train", tokenizer, config.lengths, options, answers=True)
        need_rows(train.rows, data)
        look = fitted(data, "held_out", tokenizer, config.lengths, options, answers=True)
        looked = held_out_rows(look.rows, config.held_out.rows)
        file = MetricsFile(out, starts(out) + 1) if rank() == 0 else None
        keeper = Keeper(out, file, phases, stops, tell)
        checkpoint = latest(out, processes())
        AnswerTrainer.phases = phases
        trainer = AnswerTrainer(
            model=load_model(origin, config),
            args=sft_arguments(config, out, looks=bool(looked)),
            train_dataset=answered(train.rows, options),
            eval_dataset=answered(looked, options) if looked else None,
            processing_class=tokenizer,
            peft_config=adapter_config(config),
            callbacks=[keeper],
        )
    trainer.remove_callback(PrinterCallback)
    with stops.listening():
        if checkpoint is None and looked and config.held_out.at_start:
            trainer.evaluate()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return finish(started, out, trainer, keeper, phases, train, looked)


def answered(rows: Sequence[Row], options: dict[str, Any]) -> Dataset:
    """Requests with their answers, as TRL takes them."""
    more = {"chat_template_kwargs": dict(options)} if options else {}
    return Dataset.from_list([{"prompt": prompt_of(row), "completion": answer_of(row), **more} for row in rows])


def sft_arguments(config: TrainConfig, out: Path, *, looks: bool) -> SFTConfig:
    """TRL's settings. Raises TrainingError where a step's sequences cannot be shared evenly."""
    sft = config.sft
    return SFTConfig(
        **common_arguments(config, out, sft.optimizer),
        max_steps=sft.steps or -1,
        num_train_epochs=sft.epochs,
        gradient_accumulation_steps=accumulation(sft.batch, sft.optimizer.micro_batch, processes(), "a step of SFT"),
        per_device_eval_batch_size=sft.optimizer.micro_batch,
        eval_strategy="steps" if looks and config.held_out.every else "no",
        eval_steps=config.held_out.every or None,
        # Rows that do not fit were left out; none is cut.
        max_length=None,
        completion_only_loss=True,
        packing=False,
    )
