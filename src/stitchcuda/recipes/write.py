"""From a task and recipe names to a Program: capture, apply, assemble."""

from __future__ import annotations

import warnings
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

    ``disabled`` are launchers that must not be generated. A recipe that raises leaves half a rewrite behind, so all
    begins anew without it; the rewriter's ``left_out`` says so, and a RuntimeWarning. Raises CaptureError when the
    reference cannot be read.
    """
    left_out: dict[str, str] = {}
    while True:
        rewriter = Rewriter(_captured(task).copy(), device, disabled=frozenset(disabled), precision=task.precision)
        rewriter.left_out = left_out
        broken = _applied(rewriter, [name for name in names if name not in left_out])
        if broken is None:
            return rewriter, rewriter.gains
        name, error = broken
        left_out[name] = f"{type(error).__name__}: {error}"
        warnings.warn(f"recipe {name} was left out: {left_out[name]}", RuntimeWarning, stacklevel=2)


def _applied(rewriter: Rewriter, names: Collection[str]) -> tuple[str, Exception] | None:
    """Apply the named recipes in their order; the first that raised, with what it raised."""
    for recipe in all_recipes():
        if recipe.name not in names or rewriter.target not in recipe.targets:
            continue
        before = set(rewriter.launchers)
        try:
            recipe.apply(rewriter)
            tidy(rewriter)
        except Exception as error:
            return recipe.name, error
        rewriter.owners |= dict.fromkeys(rewriter.launchers.keys() - before, recipe.name)
    return None


def write_program(
    task: Task, device: Device, names: Collection[str], *, disabled: Collection[str] = (), notes: str = ""
) -> Program:
    """The Program that the named recipes give, whether or not any of them applied."""
    rewriter, _ = rewrite(task, device, names, disabled=disabled)
    return assemble(rewriter, task, notes=notes)
