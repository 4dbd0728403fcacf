"""The three-part protocol on a real GPU: shared device memory, confinement, clocks, baselines, census, faults.

``pytest tests/gpu/test_evaluation_gpu.py -s`` prints what the machine allows and what a small task costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.evaluation.planes import Planes
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.detect import detect
from stitchcuda.nursery import FORKS_CUDA, Forked
from stitchcuda.program.model import Argument, Launcher, Manifest, Program
from stitchcuda.task.model import Task, TaskFacts

PLAIN = EvaluationSettings(static_rules=False)
"""What runs is looked at here, not what is written."""

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        return torch.relu(self.linear(x)) * 2 + 1

def get_inputs():
    return [torch.randn(512, 1024)]

def get_init_inputs():
    return [1024]
"""

KERNEL = r"""
#include <cuda_runtime.h>
__global__ void finish(const float* __restrict__ x, float* __restrict__ y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.f) * 2.f + 1.f;
}
extern "C" int launch_finish(const float* x, float* y, long long n, void* stream) {
    finish<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);
    return (int)cudaGetLastError();
}
"""

ENTRY = """
import torch
from torch import nn
from bindings import launch_finish

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        y = self.linear(x)
        out = torch.empty_like(y)
        launch_finish(y, out, y.numel())
        return out
"""

MANIFEST = Manifest(
    target="cuda",
    launchers=[
        Launcher(
            name="launch_finish",
            source="kernels.cu",
            arguments=[
                Argument(name="x", dtype="float32"),
                Argument(name="y", dtype="float32", role="output"),
                Argument(name="n", kind="scalar", dtype="int64"),
            ],
        )
    ],
)


def facts(task: Task, **changes: bool) -> TaskFacts:
    """Facts of the task, as inspecting it would find them."""
    plain = {"stochastic": False, "seedable": False, "training": True, "mutates_state": False} | changes
    return TaskFacts(inputs=[], outputs=[], parameters=0, eager_seconds=1e-4, **plain)


def fused() -> Program:
    """A Program with one kernel of its own behind a library's matrix product."""
    return Program(files={"program.py": ENTRY, "kernels.cu": KERNEL}, manifest=MANIFEST)


def python(body: str, before: str = "") -> Program:
    """A pure Python Program whose forward runs ``body``."""
    head = "import torch\nfrom torch import nn\n" + before
    source = (
        head
        + "class ModelNew(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
        + "        self.linear = nn.Linear(width, width)\n    def forward(self, x):\n"
        + "".join(f"        {line}\n" for line in body.splitlines())
    )
    return Program(files={"program.py": source})


HONEST = "return torch.relu(self.linear(x)) * 2 + 1"


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    device = detect("cuda")
    task = Task(name="small", origin="test", source=SOURCE, target=device.target)
    with Evaluator(task, facts(task), device, cache=tmp_path_factory.mktemp("cache"), settings=PLAIN) as opened:
        yield opened


def show(evaluation: Evaluation) -> None:
    """One line for a person watching."""
    times = {name: f"{t.median * 1e6:.1f} us" for name, t in evaluation.timings.items()}
    print(f"\n{evaluation.status}: {evaluation.message}\n  {times}\n  {evaluation.seconds}\n  {evaluation.provenance}")


def test_own_kernel_is_correct_timed_and_counted(evaluator: Evaluator) -> None:
    evaluation = evaluator.evaluate(fused())
    show(evaluation)
    assert evaluation.status == "correct", evaluation.message + evaluation.log
    assert {"program", "eager", "cuda_graph", "compile", "compile_reduce_overhead"} <= set(evaluation.timings)
    assert evaluation.timings["program"].device_median is not None
    assert evaluation.census is not None
    assert evaluation.census.own > 0
    assert evaluation.census.library > 0
    assert evaluation.memory["device"] > 0
    print(f"  confinement level {Planes.level}, device memory shared: {Planes.ipc}; {evaluation.census}")


def test_second_screen_takes_baselines_from_the_cache(evaluator: Evaluator) -> None:
    evaluation = evaluator.evaluate(python(HONEST))
    show(evaluation)
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.seconds["baselines"] < 1
    assert evaluation.census is not None
    assert evaluation.census.label == "host_only"


def test_publish_measures_everything_anew(evaluator: Evaluator) -> None:
    evaluator.settings = EvaluationSettings(publish_processes=2, publish_calls=20)
    evaluation = evaluator.evaluate(fused(), "publish")
    evaluator.settings = PLAIN
    show(evaluation)
    assert evaluation.status == "correct", evaluation.message
    assert evaluation.timings["program"].n >= 20


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("torch.backends.cuda.matmul.allow_tf32 = True\n" + HONEST, "wrong_output"),
        ("return torch.relu(self.linear(x.half().float())) * 2 + 1", "wrong_output"),
        ("return (torch.relu(self.linear(x)) * 2 + 1).cpu()", "wrong_output"),
        ("raise ValueError('x')", "crashed"),
        ("torch.empty(1 << 45, device='cuda')", "out_of_memory"),
        ("import os; os._exit(0)", "crashed"),
        ("bad = torch.zeros(4, device='cuda'); i = torch.tensor([1 << 40], device='cuda'); return bad[i]", "crashed"),
    ],
    ids=["tf32", "half", "on-host", "raises", "too-large", "exits", "device-fault"],
)
def test_faults_end_in_a_status(evaluator: Evaluator, body: str, status: str) -> None:
    evaluation = evaluator.evaluate(python(body))
    show(evaluation)
    assert evaluation.status == status


BEHIND = "side.wait_stream(torch.cuda.current_stream())\n"
AHEAD = "torch.cuda.current_stream().wait_stream(side)\n"
ON_A_SIDE_STREAM = (
    "side = torch.cuda.Stream()\n{}"
    "with torch.cuda.stream(side):\n    y = torch.relu(self.linear(x)) * 2 + 1\n"
    "{}return y"
)


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [(BEHIND, AHEAD, "correct"), (BEHIND, "", "wrong_output"), ("", "side.synchronize()\n", "wrong_output")],
    ids=["joined", "not waited for", "does not wait"],
)
def test_work_on_another_stream_is_joined_with_the_callers(
    evaluator: Evaluator, before: str, after: str, status: str
) -> None:
    evaluation = evaluator.evaluate(python(ON_A_SIDE_STREAM.format(before, after)))
    show(evaluation)
    assert evaluation.status == status
    assert status == "correct" or evaluation.message.startswith("on the caller's stream")


def test_answers_kept_by_address_are_not_blamed_on_streams(evaluator: Evaluator) -> None:
    body = (
        "kept = self.__dict__.setdefault('kept', {})\n"
        "return kept.setdefault(x.data_ptr(), torch.relu(self.linear(x)) * 2 + 1)"
    )
    evaluation = evaluator.evaluate(python(body))
    show(evaluation)
    assert evaluation.status == "wrong_output"
    assert not evaluation.message.startswith("on the caller's stream")


def test_the_oracle_is_forked_too(evaluator: Evaluator) -> None:
    assert evaluator.plan
    assert isinstance(evaluator.oracle.process, Forked)


def test_processes_that_import_torch_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORKS_CUDA, "0")
    device = detect("cuda")
    task = Task(name="imported", origin="test", source=SOURCE, target=device.target)
    settings = EvaluationSettings(static_rules=False, baselines=False)
    with Evaluator(task, facts(task), device, cache=tmp_path, settings=settings) as opened:
        for body, status in ((HONEST, "correct"), ("return torch.zeros_like(self.linear(x))", "wrong_output")):
            evaluation = opened.evaluate(python(body))
            show(evaluation)
            assert evaluation.status == status


def test_host_resident_inputs_reach_the_program_on_the_host(tmp_path: Path) -> None:
    source = SOURCE.replace("self.linear(x)", "self.linear(x.to(self.linear.weight.device))")
    device = detect("cuda")
    task = Task(name="host", origin="test", source=source, target=device.target, residence="host")
    settings = EvaluationSettings(baselines=False)
    with Evaluator(task, facts(task), device, cache=tmp_path, settings=settings) as opened:
        body = "assert x.device.type == 'cpu'\nreturn torch.relu(self.linear(x.cuda())) * 2 + 1"
        evaluation = opened.evaluate(python(body))
        show(evaluation)
        assert evaluation.status == "correct", evaluation.message


def test_bf16_class(tmp_path: Path) -> None:
    device = detect("cuda")
    task = Task(name="half", origin="test", source=SOURCE, target=device.target, precision="bf16")
    with Evaluator(task, facts(task), device, cache=tmp_path, settings=EvaluationSettings(baselines=False)) as opened:
        evaluation = opened.evaluate(python(HONEST))
        show(evaluation)
        assert evaluation.status == "correct", evaluation.message


LARGEST = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return (a @ b).argmax(dim=-1)

def get_inputs():
    return [torch.randint(0, 9, (4096, 96)).float(), torch.randint(0, 9, (96, 48)).float()]

def get_init_inputs():
    return []
"""
"""Products of small whole numbers, which are exact: a few per cent of the rows have two that are the largest."""


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("(a @ b).argmax(dim=-1)", "correct"),
        ("47 - (a @ b).flip(1).argmax(dim=-1)", "correct"),
        ("torch.where(torch.rand(4096, device=a.device) < 0.01, 7, (a @ b).argmax(dim=-1))", "wrong_output"),
    ],
    ids=["first of equals", "last of equals", "guesses some"],
)
def test_only_ties_may_fall_otherwise(tmp_path: Path, answer: str, status: str) -> None:
    device = detect("cuda")
    task = Task(name="largest", origin="test", source=LARGEST, target=device.target)
    settings = PLAIN.model_copy(update={"baselines": False})
    source = f"import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b):\n        return {answer}\n"
    with Evaluator(task, facts(task), device, cache=tmp_path, settings=settings) as opened:
        evaluation = opened.evaluate(Program(files={"program.py": source}))
        show(evaluation)
        assert evaluation.status == status, evaluation.message


def test_trace_of_the_reference(evaluator: Evaluator) -> None:
    trace = evaluator.trace(None)
    print(trace.rows[:4], trace.launches, trace.busy_seconds)
    assert trace.launches >= 2
    assert any(row.origin == "library" for row in trace.rows)
    assert 0 < trace.busy_seconds < trace.wall_seconds * 2


def test_free_device_memory_is_poisoned(evaluator: Evaluator) -> None:
    body = (
        "y = torch.empty_like(x)\nself.kept = getattr(self, 'kept', 0) + 1\nreturn torch.relu(self.linear(x)) * 2 + y"
    )
    evaluation = evaluator.evaluate(python(body))
    show(evaluation)
    assert evaluation.status == "wrong_output"


def test_reading_behind_an_input_gives_nan(evaluator: Evaluator) -> None:
    body = "more = torch.empty(0, device='cuda').set_(x.untyped_storage(), x.numel(), (1,), (1,))\n"
    evaluation = evaluator.evaluate(python(body + "return torch.relu(self.linear(x)) * 2 + 1 + 0 * more"))
    show(evaluation)
    assert evaluation.status == "wrong_output"


def test_a_cache_by_address_is_wrong(evaluator: Evaluator) -> None:
    body = (
        "self.c = getattr(self, 'c', {})\n"
        "if x.data_ptr() not in self.c: self.c[x.data_ptr()] = torch.relu(self.linear(x)) * 2 + 1\n"
        "return self.c[x.data_ptr()].clone()"
    )
    assert evaluator.evaluate(python(body)).status == "wrong_output"


def test_a_failed_launch_is_not_left_behind(evaluator: Evaluator) -> None:
    body = (
        "import ctypes, re\n"
        "path = re.findall(r'(/\\S*libcudart[^/\\s]*\\.so[^/\\s]*)', open('/proc/self/maps').read())[0]\n"
        "ctypes.CDLL(path).cudaSetDevice(4096)\n" + HONEST
    )
    evaluation = evaluator.evaluate(python(body))
    show(evaluation)
    assert evaluation.status in ("crashed", "dishonest")


def test_kernels_for_show_are_found(evaluator: Evaluator) -> None:
    entry = ENTRY.replace("return out", "return torch.relu(y) * 2 + 1")
    evaluator.settings = EvaluationSettings(baselines=False, static_rules=False, exhaustive=True)
    evaluation = evaluator.evaluate(Program(files={"program.py": entry, "kernels.cu": KERNEL}, manifest=MANIFEST))
    evaluator.settings = PLAIN
    show(evaluation)
    assert evaluation.status == "dishonest"
    assert "decoy" in [finding.rule for finding in evaluation.findings]


def test_clocks_are_recorded(evaluator: Evaluator) -> None:
    evaluation = evaluator.evaluate(fused())
    show(evaluation)
    assert "sm_clock_mhz" in evaluation.provenance
    assert evaluation.timings["program"].low is not None


def test_compute_sanitizer_says_what_came_of_it(evaluator: Evaluator) -> None:
    evaluator.settings = EvaluationSettings(publish_processes=1, publish_calls=8, baselines=False)
    evaluation = evaluator.evaluate(fused(), "publish")
    evaluator.settings = PLAIN
    show(evaluation)
    assert evaluation.status == "correct", evaluation.message
    print(evaluation.provenance["sanitizer"], evaluation.seconds.get("sanitizer"))
    assert evaluation.provenance["sanitizer"]
