"""What verbs share that work on one task: from the command line's words to an open Evaluator. Not a verb."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from stitchcuda.errors import StitchError

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator
    from stitchcuda.evaluation.settings import EvaluationSettings
    from stitchcuda.hardware.model import Device
    from stitchcuda.task.model import Task, TaskFacts


@dataclass(frozen=True)
class Session:
    """A task on a device, ready to be measured."""

    task: Task
    facts: TaskFacts
    device: Device
    evaluator: Evaluator


@contextmanager
def open_session(
    reference: str,
    *,
    target: str = "auto",
    root: Path | None = None,
    precision: str | None = None,
    settings: EvaluationSettings | None = None,
) -> Iterator[Session]:
    """Detect the device, measure its ceilings (cached), load and validate the task, start its Evaluator.

    Raises StitchError (wrong words), TaskError or DeviceError.
    """
    from stitchcuda import nursery
    from stitchcuda.compute.folders import data_folder
    from stitchcuda.evaluation.evaluator import Evaluator
    from stitchcuda.evaluation.settings import EvaluationSettings
    from stitchcuda.hardware.ceilings import measure
    from stitchcuda.hardware.detect import detect
    from stitchcuda.task.inspect import inspect_task
    from stitchcuda.task.loader import load_task
    from stitchcuda.task.model import Precision

    if target not in ("auto", "cuda", "cpu"):
        raise StitchError(f"unknown target '{target}'; use auto, cuda or cpu")
    if precision is not None and precision not in get_args(Precision):
        raise StitchError(f"unknown precision class '{precision}'; use {', '.join(get_args(Precision))}")
    cache = data_folder()
    device = detect(cast('Literal["auto", "cuda", "cpu"]', target))
    task = load_task(reference, target=device.target, root=root, precision=cast("Precision | None", precision))
    if nursery.forks(task.target.kind):
        nursery.expect()
    facts = inspect_task(task)
    device = device.model_copy(update={"ceilings": measure(device, cache)})
    with Evaluator(task, facts, device, cache=cache, settings=settings or EvaluationSettings()) as evaluator:
        yield Session(task, facts, device, evaluator)
