"""Tasks: what to speed up. Data here; loaders import torch only when they run."""

from stitchcuda.task.model import Mode, Precision, Residence, Target, Task, TaskFacts, TensorFacts

__all__ = ["Mode", "Precision", "Residence", "Target", "Task", "TaskFacts", "TensorFacts"]
