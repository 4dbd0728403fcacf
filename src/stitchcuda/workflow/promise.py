"""What an idea could gain at most, from where the reference's time goes: ideas that cannot win are not worth a model's
tokens. An upper bound by Amdahl's law, never an estimate: what is not known counts as gained.
"""

from __future__ import annotations

import re

from stitchcuda.agents.plan import Idea
from stitchcuda.profiling.model import KernelTime, Profile

SHORTEST_NAME = 3
"""Letters that an operator's name must have to be looked for in other names."""

SIDE_BY_SIDE = 1.02
"""Kernels' time over wall time from which they run beside each other, so that the law does not hold."""


def ceiling(idea: Idea, profile: Profile | None) -> float | None:
    """Most that the idea can speed up the reference, if all that its steps name took no time; None: not known.

    Only kernels of operators that no step names are counted as left. Host time, gaps, copies and kernels that the
    profile does not list count as gained. None where a step names an operator that the profile does not show, or
    kernels run side by side.
    """
    if profile is None or not profile.kernels or profile.timeline.wall_seconds <= 0:
        return None
    named = {_plain(name) for step in idea.steps for name in step.operators}
    if not named or any(len(name) < SHORTEST_NAME for name in named):
        return None
    known = [kernel for kernel in profile.kernels if kernel.operator]
    if len(known) < len(profile.kernels):
        return None
    if any(not any(_same(name, kernel) for kernel in known) for name in named):
        return None
    wall = profile.timeline.wall_seconds
    if sum(kernel.seconds for kernel in known) > wall * SIDE_BY_SIDE:
        return None
    left = sum(kernel.seconds for kernel in known if not any(_same(name, kernel) for name in named))
    return wall / left if left > 0 else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("aten::"))


def _same(name: str, kernel: KernelTime) -> bool:
    """The kernel may be meant by ``name``: one name holds the other. Rather too often than too seldom."""
    operator = _plain(kernel.operator or "")
    return name in operator or operator in name or name in _plain(kernel.name)
