"""Small tasks, and an evaluator per task that the tests of a module share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.task.model import Target, Task, TaskFacts

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""

CPU = Target(kind="cpu", arch="native")
DEVICE = Device(target=CPU, name="test cpu", multiprocessors=2, memory_bytes=1 << 33, cache_bytes=1 << 20)

QUICK = EvaluationSettings(
    warmup_calls=2,
    correctness_seeds=2,
    held_outputs=2,
    screen_calls=5,
    screen_min_calls=3,
    call_timeout_s=15,
    baselines=False,
    trace_program=False,
    static_rules=False,
)


def make_task(source: str, **changes: Any) -> Task:
    """A cpu task from source text, with the usual imports put before it."""
    return Task(name="t", origin="test", source=HEAD + source, target=CPU, **changes)


def make_facts(**changes: Any) -> TaskFacts:
    """Facts of a deterministic model in training mode."""
    facts: dict[str, Any] = {
        "inputs": [],
        "outputs": [],
        "parameters": 0,
        "stochastic": False,
        "seedable": False,
        "training": True,
        "mutates_state": False,
        "eager_seconds": 0.001,
    }
    return TaskFacts(**(facts | changes))


def program(source: str) -> Program:
    """A pure Python Program, with the usual imports put before it."""
    return Program(files={"program.py": HEAD + source})


Judge = Callable[..., Evaluation]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """``judge(task, program_source)``: an Evaluation; evaluators are kept per task for the module."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cache: Path = tmp_path_factory.mktemp("cache")
    evaluators: dict[str, Evaluator] = {}

    def evaluate(
        task: Task,
        source: str,
        *,
        facts: TaskFacts | None = None,
        settings: EvaluationSettings = QUICK,
        tier: Tier = "screen",
    ) -> Evaluation:
        key = task.digest + repr(facts)
        if key not in evaluators:
            evaluators[key] = Evaluator(task, facts or make_facts(), DEVICE, cache=cache)
            evaluators[key].__enter__()
        evaluators[key].settings = settings
        return evaluators[key].evaluate(program(source), tier)

    yield evaluate
    for evaluator in evaluators.values():
        evaluator.__exit__(None, None, None)
