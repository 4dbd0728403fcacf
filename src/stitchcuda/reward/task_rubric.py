"""What a good program for one task would do: from its reference's Profile and the device's bound, by rules.

A model's draft of it is in ``reward.rubric_draft``. It stands beside the general rubric for whoever marks or writes a
program, and is kept by the hash of its task.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stitchcuda.errors import RewardError
from stitchcuda.evaluation.model import SpeedOfLight
from stitchcuda.hardware.model import Device
from stitchcuda.profiling.families import Family
from stitchcuda.profiling.model import Bottleneck, Profile
from stitchcuda.profiling.roofline import amdahl
from stitchcuda.reward.coverage import Operator, dominant, operators
from stitchcuda.task.model import Precision, Task

IDLE = 0.15
"""Share of the wall time without work on the device from which host orchestration is asked for."""
COPIES = 0.05
"""Share of the wall time in copies from which they are asked to go."""
FUSED_GAIN = 4.0
"""What fusing memory-bound operators is taken to gain at most for them, for the order of what is asked."""
NEAR = 2.0
"""A good program needs at most so many times the bound."""


class Dominant(BaseModel):
    """One of the operators that take most of the reference's device time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: str
    family: Family
    share: float = Field(ge=0, le=1, description="of the reference's device time")
    seconds: float = Field(ge=0, description="per call")


class Ask(BaseModel):
    """One thing that a good program would do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    gain: float = Field(ge=1, description="speedup of the whole call if it is done as well as it can be (Amdahl)")
    weight: int | None = Field(default=None, ge=1, le=5, description="5: without it no program is good; None: by gain")
    operators: list[str] = Field(default_factory=list, description="of the reference's profile, where it names some")


class TaskRubric(BaseModel):
    """What is asked of a program for one task on one device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    digest: str = Field(description="of the Task: another source, target, precision, mode or residence is another task")
    device: str
    precision: Precision
    author: str = Field(default="rules", description="who wrote it: 'rules', or PROVIDER:NAME")
    note: str = Field(default="", description="why the rules wrote it where a model was asked to")
    bottleneck: Bottleneck
    evidence: str
    wall_seconds: float = Field(gt=0, description="of one call of the reference")
    bound_seconds: float | None = Field(default=None, gt=0, description="speed of light of the task's work")
    copy_bytes_per_second: float | None = Field(default=None, gt=0, description="measured ceiling, read plus written")
    flops_per_second: float | None = Field(default=None, gt=0, description="measured ceiling of the precision class")
    dominant: list[Dominant] = Field(description="by falling time; together 80 % of the device time")
    asks: list[Ask] = Field(min_length=1, description="by falling gain")


def make(task: Task, reference: Profile, device: Device, bound: SpeedOfLight | None = None) -> TaskRubric:
    """The rule-based rubric of a task. Raises RewardError when the Profile holds no work."""
    wall = reference.timeline.wall_seconds
    found = operators(reference)
    if wall <= 0 or not found:
        raise RewardError(f"the profile of {task.name} shows no work, so nothing can be asked; profile it again")
    chosen = dominant(found)
    shown = [Dominant(operator=o.name, family=o.family, share=min(o.share, 1.0), seconds=o.seconds) for o in chosen]
    asks = [*_fusion(chosen, wall), *_heavy(chosen, wall, task.precision), *_host(reference, device)]
    if bound is not None and 0 < NEAR * bound.bound_seconds < wall:
        text = (
            f"come within {NEAR:g} times the bound of {bound.bound_seconds * 1e3:.4g} ms a call ({bound.binds}); "
            f"the reference takes {wall * 1e3:.4g} ms"
        )
        asks.append(Ask(text=text, gain=wall / (NEAR * bound.bound_seconds)))
    if not asks:
        first = chosen[0]
        asks.append(Ask(text=f"take over {first.name}, the longest operator", gain=1.0))
    return TaskRubric(
        task=task.name,
        digest=task.digest,
        device=device.name,
        precision=task.precision,
        bottleneck=reference.bottleneck,
        evidence=reference.evidence,
        wall_seconds=wall,
        bound_seconds=bound.bound_seconds if bound is not None and bound.bound_seconds > 0 else None,
        copy_bytes_per_second=_known(device.ceilings.copy_bytes_per_second if device.ceilings else 0.0),
        flops_per_second=_known(device.ceilings.rate(task.precision) if device.ceilings else 0.0),
        dominant=shown,
        asks=sorted(asks, key=lambda ask: -ask.gain),
    )


def place(folder: Path, task: Task, device: Device) -> Path:
    """Where the rubric of a task on a device is kept."""
    name = hashlib.sha256(f"{task.digest}\0{device.name}".encode()).hexdigest()[:24]
    return folder / "rubrics" / f"{name}.json"


def store(rubric: TaskRubric, path: Path) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(rubric.model_dump_json(indent=2) + "\n")
    os.replace(aside, path)


def stored(path: Path, task: Task) -> TaskRubric | None:
    """The rubric kept for this task; None without one. Raises RewardError for a file that is none or another task's."""
    try:
        rubric = TaskRubric.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = str(error).splitlines()[0]
        raise RewardError(f"{path} is no rubric of a task ({first}); make it again with 'rubric make'") from None
    if rubric.digest != task.digest:
        raise RewardError(f"{path} is the rubric of another task, {rubric.task}; make it again with 'rubric make'")
    return rubric


def _known(ceiling: float) -> float | None:
    return ceiling if ceiling > 0 else None


def _fusion(chosen: list[Operator], wall: float) -> list[Ask]:
    light = [operator for operator in chosen if operator.family in ("pointwise", "reduction", "copy")]
    seconds = sum(operator.seconds for operator in light)
    if not light:
        return []
    names = ", ".join(operator.name for operator in light[:4])
    verb = "fuse" if len(light) > 1 else "fuse into its neighbours"
    text = f"{verb} {names} ({seconds / wall:.0%} of the call), so that each tensor is read and written once"
    return [Ask(text=text, gain=amdahl(seconds / wall, FUSED_GAIN))]


def _heavy(chosen: list[Operator], wall: float, precision: Precision) -> list[Ask]:
    asks = []
    exact = ", as accurate as fp32" if precision == "fp32" else ""
    for operator in chosen:
        part = f"{operator.name} ({operator.seconds / wall:.0%} of the call)"
        if operator.family == "matrix":
            text = f"keep {part} at a library's speed or better{exact}, with what follows it in its epilogue"
            asks.append(Ask(text=text, gain=amdahl(operator.seconds / wall, 2.0)))
        elif operator.family == "recurrent":
            text = f"run all steps of {part} in one kernel that keeps the weights on the chip{exact}"
            asks.append(Ask(text=text, gain=amdahl(operator.seconds / wall, FUSED_GAIN)))
        elif operator.family == "other":
            asks.append(Ask(text=f"take over {part}", gain=amdahl(operator.seconds / wall, 2.0)))
    return asks


def _host(reference: Profile, device: Device) -> list[Ask]:
    line = reference.timeline
    asks = []
    if line.gap_seconds >= IDLE * line.wall_seconds:
        share = line.gap_seconds / line.wall_seconds
        if device.target.kind == "cuda":
            text = f"launch less or replay a graph: for {share:.0%} of the call nothing runs ({line.launches} launches)"
        else:
            text = f"call fewer operators: {share:.0%} of the call is spent between {line.launches} of them"
        asks.append(Ask(text=text, gain=amdahl(share, 10.0)))
    if line.copy_seconds >= COPIES * line.wall_seconds:
        share = line.copy_seconds / line.wall_seconds
        text = f"avoid copies or hide them behind work: they take {share:.0%} of the call"
        asks.append(Ask(text=text, gain=amdahl(share, 10.0)))
    return asks
