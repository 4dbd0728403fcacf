"""From how a run ended to its Result: the status, its sentence and the figures beside it. Pure; nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stitchcuda.agents.plan import Plan
from stitchcuda.agents.roles import Attempt
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Task
from stitchcuda.workflow.budget import Spent
from stitchcuda.workflow.config import RunConfig
from stitchcuda.workflow.result import NOISE, Best, Outcome, Result, score

TWICE = 0.5
"""Speedup over eager below which no spread of the measurements excuses a program."""


@dataclass(frozen=True)
class Ending:
    """What is known at the end of a run."""

    config: RunConfig
    task: Task
    device: Device
    mind: str
    author: str
    """Who wrote the best program."""
    run: Path
    best: Best | None
    """The best program that held in the final check."""
    stock: dict[str, float]
    """Median seconds of the stock options."""
    attempts: list[Attempt]
    plan: Plan | None
    passed_once: bool
    """A program was correct at first, whatever the final check said."""
    stopped: str
    spent: Spent


def sum_up(ending: Ending) -> Result:
    """The Result of a run."""
    evaluation = ending.best.evaluation if ending.best else None
    status, message = _found(ending.best.number, evaluation) if ending.best and evaluation else _not_found(ending)
    target = ending.config.target_speedup
    met = None
    if target is not None and status != "no_rewrite":
        met = evaluation is not None and score(evaluation) >= target
    result = Result(
        status=status,
        message=message,
        task=ending.task.name,
        origin=ending.task.origin,
        target=ending.device.target.arch if ending.device.target.kind == "cuda" else "cpu",
        device=ending.device.name,
        precision=ending.task.precision,
        mind=ending.mind,
        run=str(ending.run),
        seconds=dict(ending.stock),
        target_speedup=target,
        target_met=met,
        attempts=len(ending.attempts),
        stopped=ending.stopped,
        spent=ending.spent,
    )
    if ending.best is None or evaluation is None:
        return result
    return result.model_copy(
        update={
            "best": str(ending.run / "best"),
            "number": ending.best.number,
            "author": ending.author,
            "tier": evaluation.tier,
            "over_best": evaluation.speedup.get("over_best"),
            "speedup": dict(evaluation.speedup),
            "seconds": {name: timing.median for name, timing in evaluation.timings.items() if timing.n},
            "census": evaluation.census,
            "sol": evaluation.sol,
            "labels": list(evaluation.labels),
            "findings": list(evaluation.findings),
        }
    )


def _found(number: int, evaluation: Evaluation) -> tuple[Outcome, str]:
    """A correct program: is it a gain, and by how much."""
    eager, over_best = evaluation.speedup.get("eager"), evaluation.speedup.get("over_best")
    figures = [f"{over_best:.2f}x the best stock option"] if over_best is not None else []
    figures += [f"{eager:.2f}x eager"] if eager is not None else []
    message = f"Program {number:03d} is correct" + (f" and runs at {', '.join(figures)}." if figures else ".")
    if eager is not None and _loses(evaluation, eager):
        return "no_gain", message
    if eager is not None and eager < 1 - NOISE:
        message += " It is not told from eager: the calls of this measurement differ by more."
    return "correct", message


def _loses(evaluation: Evaluation, eager: float) -> bool:
    """Slower than eager beyond noise: past the usual margin, and past the spread of these very measurements (on a busy
    machine medians differ by more): nine of ten of the program's calls took longer than eager's median. A program that
    takes twice as long loses whatever the spread."""
    program, stock = evaluation.timings.get("program"), evaluation.timings.get("eager")
    within_spread = program is not None and stock is not None and program.n > 0 and program.p10 <= stock.median
    return eager < TWICE or (eager < 1 - NOISE and not within_spread)


def _not_found(ending: Ending) -> tuple[Outcome, str]:
    if ending.passed_once:
        return "nothing_correct", "Programs passed at first, but none held when checked again in fresh processes."
    if ending.attempts:
        last = ending.attempts[-1]
        why = last.diagnosis or last.status
        return "nothing_correct", f"None of {len(ending.attempts)} attempts is correct; the last: {why}"
    if ending.plan is not None and not ending.plan.ideas:
        return "no_rewrite", f"No rewrite found: {ending.plan.summary.removeprefix('No rewrite found: ')}"
    return "nothing_correct", f"Nothing was tried: {ending.stopped}."
