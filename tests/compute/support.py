"""What tests of compute places share: probes, worker processes, and twelve small tasks with programs whose verdicts are
known."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.compute.model import Compute, Job, Outcome, Wanted
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.detect import detect
from stitchcuda.program.model import Program
from stitchcuda.task.model import Target, Task, TaskFacts

CPU = Wanted(kind="cpu")
PATIENCE = 240.0
"""Seconds that anything may take on a machine with other work."""

STORE = 80 << 20
"""Bytes of shared memory of a Ray node."""

QUICK = EvaluationSettings(
    correctness_seeds=1,
    family_seconds=0,
    warmup_calls=1,
    held_outputs=1,
    screen_calls=3,
    screen_min_calls=3,
    baselines=False,
    trace_program=False,
    static_rules=False,
)

FACTS = TaskFacts(
    inputs=[],
    outputs=[],
    parameters=0,
    stochastic=False,
    seedable=False,
    training=True,
    mutates_state=False,
    eager_seconds=0.001,
)

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
TASK = """
class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(24, 16)

    def forward(self, x):
        return {expression}
"""
INPUTS = """
def get_inputs():
    return [torch.randn(8, 24)]

def get_init_inputs():
    return []
"""

VERDICTS = {
    "linear": ("self.layer(x)", "F.linear(x, self.layer.weight, self.layer.bias)", "correct"),
    "relu": ("torch.relu(self.layer(x))", "self.layer(x).clamp_min(0)", "correct"),
    "sigmoid": ("torch.sigmoid(self.layer(x))", "1 / (1 + torch.exp(-self.layer(x)))", "correct"),
    "gelu": ("F.gelu(self.layer(x))", "F.gelu(self.layer(x)) * 1.01", "wrong_output"),
    "square": ("self.layer(x) ** 2", "self.layer(x) * self.layer(x)", "correct"),
    "sum": ("self.layer(x).sum(1)", "torch.einsum('ij->i', self.layer(x))", "correct"),
    "softmax": ("self.layer(x).softmax(1)", "torch.exp(self.layer(x).log_softmax(1))", "correct"),
    "mean": ("self.layer(x).mean(0)", "self.layer(x).mean(1)", "wrong_output"),
    "norm": ("F.layer_norm(self.layer(x), (16,))", "F.layer_norm(self.layer(x), [16])", "correct"),
    "silu": ("F.silu(self.layer(x))", "self.layer(x) * torch.sigmoid(self.layer(x))", "correct"),
    "tanh": ("torch.tanh(self.layer(x))", "self.missing(x)", "crashed"),
    "cumsum": ("self.layer(x).cumsum(1)", "torch.cumsum(self.layer(x), dim=1)", "correct"),
}
"""Twelve KernelBench-format tasks: what the reference computes, what the program does, and what is said of it."""


def task_of(name: str) -> Task:
    """One of the twelve."""
    source = HEAD + TASK.format(name="Model", expression=VERDICTS[name][0]) + INPUTS
    return Task(name=name, origin="test", source=source, target=Target(kind="cpu", arch="native"))


def evaluation_of(name: str, **changes: Any) -> Job:
    """A job that evaluates its program."""
    program = Program(files={"program.py": HEAD + TASK.format(name="ModelNew", expression=VERDICTS[name][1])})
    fields: dict[str, Any] = {
        "kind": "evaluate",
        "wanted": CPU,
        "task": task_of(name),
        "facts": FACTS,
        "device": detect("cpu"),
        "program": program,
        "settings": QUICK,
        "attempts": 20,
    }
    return Job(**(fields | changes))


def probe(**changes: Any) -> Job:
    """A job that shows that a worker answers."""
    return Job(**({"kind": "probe", "wanted": CPU, "attempts": 20} | changes))


def start_worker(spool: Path, cache: Path, *options: str, **streams: Any) -> subprocess.Popen[str]:
    """A worker on a spool as a process of its own."""
    command = [
        sys.executable,
        "-m",
        "stitchcuda.cli.main",
        "worker",
        "--spool",
        str(spool),
        "--device",
        "cpu",
        *options,
    ]
    environment = os.environ | {"STITCHCUDA_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    given: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | streams
    return subprocess.Popen(command, env=environment, text=True, **given)


@contextlib.contextmanager
def ray_cluster(*cpus: int) -> Iterator[Any]:
    """A real cluster on this machine that this process is connected to: for each node, the head first, how many CPUs
    it has."""
    ray: Any = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
        patch.delenv("RAY_ADDRESS", raising=False)
        head = {"num_cpus": cpus[0], "object_store_memory": STORE, "include_dashboard": False}
        cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        for count in cpus[1:]:
            cluster.add_node(num_cpus=count, object_store_memory=STORE)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition, and give what it says."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE:g} s"
        time.sleep(0.02)


def verdicts(futures: dict[str, Future[Outcome]]) -> dict[str, str]:
    """What was said of each of the twelve, and by how many attempts; asserts that the place itself did not fail."""
    said: dict[str, str] = {}
    for name, future in futures.items():
        outcome = future.result(PATIENCE)
        assert outcome.failure is None, outcome.failure
        assert outcome.evaluation is not None
        said[name] = outcome.evaluation.status
    return said


def openings(place: Compute, tasks: Sequence[str], each: int) -> int:
    """How often a task was opened, where jobs come task by task, ``each`` of a task, with programs of their own."""
    futures = []
    for name in tasks:
        for number in range(each):
            job = evaluation_of(name)
            assert job.program is not None
            source = job.program.files["program.py"] + f"\n# {number}\n"
            futures.append(place.submit(evaluation_of(name, program=Program(files={"program.py": source}))))
    outcomes = [future.result(PATIENCE) for future in futures]
    assert len({outcome.job for outcome in outcomes}) == len(futures)
    evaluations = [outcome.evaluation for outcome in outcomes]
    return sum(evaluation is not None and "open" in evaluation.seconds for evaluation in evaluations)


EXPECTED = {name: status for name, (_, _, status) in VERDICTS.items()}
