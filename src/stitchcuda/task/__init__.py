"""Tasks: what to speed up. Data here; loaders import torch only when they run.

Names are resolved on first use, so that a process with torch and the standard library alone can
import ``stitchcuda.task.reference``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stitchcuda.task.model import Mode, Precision, Residence, Target, Task, TaskFacts, TensorFacts

__all__ = ["Mode", "Precision", "Residence", "Target", "Task", "TaskFacts", "TensorFacts"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from stitchcuda.task import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
