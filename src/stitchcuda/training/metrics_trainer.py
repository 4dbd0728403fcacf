"""What every trainer here has in common: phases that are timed, metrics on disk, whole checkpoints, reasons to stop.

The classes are mixed into TRL's trainers; what is trained, and how, is theirs.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from stitchcuda.training.checkpoint import CHECKPOINTS, mark_whole
from stitchcuda.training.metrics import MetricsFile
from stitchcuda.training.phases import CudaMeter, Phases, ProcessMeter

_Trainer: Any = object


def new_phases() -> Phases:
    """Phases with the meter for what this process computes on."""
    import torch

    if not torch.cuda.is_available():
        return Phases(ProcessMeter())
    # Before a trainer does it: a meter on the first GPU would put every process's context there.
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return Phases(CudaMeter())


class Measured(_Trainer):  # type: ignore[misc]
    """Mixed in before a Trainer: books the time of its parts. ``phases`` is set before the Trainer is made."""

    phases: Phases

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Forward and backward; what a trainer does to get its inputs has phases of its own."""
        with self.phases.phase("update"):
            return super().training_step(*arguments, **named)

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        """A look at held-out rows; it draws no random numbers of the training's, which goes on as without it."""
        import torch

        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with self.phases.phase("evaluate"), torch.random.fork_rng(devices):
            return super().evaluate(*arguments, **named)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The trainer's numbers, and seconds and memory by phase."""
        if "train_runtime" not in logs:
            logs.update(self.phases.take())
        super().log(logs, start_time)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        with self.phases.phase("save"):
            return super()._save_checkpoint(*arguments, **named)


class Stops:
    """Reasons to stop before the last step; a step that has begun is always ended."""

    def __init__(self, seconds: float | None, cycle: int) -> None:
        self.seconds, self.cycle = seconds, cycle
        self.failing: Callable[[], bool] = lambda: False
        """Whether the machine fails too often."""
        self.reason = ""
        self._began = self._last = time.monotonic()
        self._longest = 0.0
        self._signalled = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT end the training after the step, with a checkpoint; the second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def ask(number: int, frame: FrameType | None) -> None:
            self._signalled = True
            for each, handler in before.items():
                signal.signal(each, handler)

        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def begin(self) -> None:
        """The first step begins: the time for loading is spent from the budget, but says nothing of a step's length."""
        self._last = time.monotonic()

    def due(self) -> str:
        """Why the training should stop now, where a cycle of steps has ended; '' where it should not."""
        now = time.monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        if self._signalled:
            return "signal"
        if self.failing():
            return "unscored"
        if self.seconds is not None and now - self._began + self._longest > self.seconds:
            return "seconds"
        return ""


class Keeper(TrainerCallback):  # type: ignore[misc]
    """Writes metrics, marks checkpoints as whole, and asks to stop."""

    REASONS = ("", "signal", "unscored", "seconds")

    def __init__(
        self,
        folder: Path,
        file: MetricsFile | None,
        phases: Phases,
        stops: Stops,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder, self.file, self.phases, self.stops, self.tell = folder, file, phases, stops, tell
        self.last: dict[str, dict[str, Any]] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """The clock of steps."""
        self.stops.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Its phase begins."""
        self.phases.begin("optimizer")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Its phase ends."""
        self.phases.end()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **named: Any) -> None:
        """A line of metrics."""
        values = dict(logs or {})
        kind = (
            "end"
            if "train_runtime" in values
            else "eval"
            if any(name.startswith("eval_") for name in values)
            else "train"
        )
        self.last[kind] = {"step": state.global_step, **values}
        if self.file is not None:
            self.file.write(kind, state.global_step, values)
            if kind != "end":
                self.tell(_line(kind, state.global_step, state.max_steps, values))

    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Every process has written its part: the checkpoint is whole."""
        _wait_for_all()
        if self.file is not None:
            mark_whole(self.folder / CHECKPOINTS / f"checkpoint-{state.global_step}", args.world_size)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Stop where one process has a reason to, all after the same step, and without a look that would fall on it."""
        if state.global_step % self.stops.cycle or state.global_step >= state.max_steps:
            return
        reason = self.REASONS[_largest(self.REASONS.index(self.stops.due()), args.device)]
        if reason:
            self.stops.reason = reason
            control.should_training_stop = control.should_save = True
            control.should_evaluate = False


TOLD = ("loss", "reward", "correct", "hack", "partial_hack", "entropy")


def _line(kind: str, step: int, steps: int, values: dict[str, Any]) -> str:
    """A step in one line for a terminal."""
    prefix = "eval_" if kind == "eval" else ""
    parts = []
    for name in TOLD:
        for key in (f"{prefix}{name}", f"{prefix}reward/{name}"):
            if isinstance(values.get(key), float):
                parts.append(f"{name} {values[key]:.4g}")
    spent = sum(value for name, value in values.items() if name.startswith("seconds/"))
    return f"step {step} of {steps}{', held out' if prefix else ''}: {', '.join([*parts, f'{spent:.1f} s'])}"


def _wait_for_all() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def _largest(value: int, device: Any) -> int:
    """The largest of all processes' values."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return value
    told = torch.tensor([value], device=device)
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return int(told.item())
