"""From a task and recipe names to a Program: capture, apply, assemble."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.recipes.assemble import assemble
from stitchcuda.recipes.base import Gain, Rewriter, tidy
from stitchcuda.recipes.capture import Captured, capture
from stitchcuda.recipes.registry import all_recipes
from stitchcuda.task.model import Task


@lru_cache(maxsize=4)
def _captured(task: Task) -> Captured:
    return capture(task)


def rewrite(
    task: Task, device: Device, names: Collection[str], *, disabled: Collection[str] = ()
) -> tuple[Rewriter, list[Gain]]:
    """Apply the named recipes to a fresh copy of the task's graph; returns the rewriter and its gains.

    ``disabled`` are launchers that must not be generated. Raises CaptureError when the reference cannot be read.
    """
    rewriter = Rewriter(_captured(task).copy(), device, disabled=frozenset(disabled), precision=task.precision)
    for recipe in all_recipes():
        if recipe.name in names and rewriter.target in recipe.targets:
            before = set(rewriter.launchers)
            recipe.apply(rewriter)
            tidy(rewriter)
            rewriter.owners |= dict.fromkeys(rewriter.launchers.keys() - before, recipe.name)
    return rewriter, rewriter.gains


def write_program(
    task: Task, device: Device, names: Collection[str], *, disabled: Collection[str] = (), notes: str = ""
) -> Program:
    """The Program that the named recipes give, whether or not any of them applied."""
    rewriter, _ = rewrite(task, device, names, disabled=disabled)
    return assemble(rewriter, task, notes=notes)
