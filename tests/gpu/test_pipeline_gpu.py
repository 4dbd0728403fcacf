"""Programs of several tasks on one GPU at once: every verdict as alone, no clock beside another's work."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcuda.evaluation.pipeline import Job, Pipeline
from stitchcuda.evaluation.pipeline_chart import chart, overlap
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.detect import detect
from stitchcuda.program.model import Argument, Launcher, Manifest, Program
from stitchcuda.task.model import Task, TaskFacts

HEAD = "import torch\nfrom torch import nn\n"
TASK = HEAD + (
    "class Model(nn.Module):\n    def forward(self, x):\n        return {}\n"
    "def get_inputs():\n    return [torch.randn(4096, 4096)]\n"
    "def get_init_inputs():\n    return []\n"
)
SOURCE = """#include <cuda_runtime.h>
__global__ void apply(const float* x, float* y, long n) {{
  const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = {};
}}
extern "C" int run(const float* x, float* y, long n, void* stream) {{
  apply<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);
  return cudaGetLastError();
}}
"""
INLINE = '''
from torch.utils.cpp_extension import load_inline
CUDA = r"""
#include <torch/extension.h>
__global__ void apply(const float* x, float* y, long n) {{
  const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = {};
}}
torch::Tensor run(torch::Tensor x) {{
  auto y = torch::empty_like(x);
  apply<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}}
"""
module = load_inline("m", "torch::Tensor run(torch::Tensor x);", CUDA, functions=["run"])
class ModelNew(nn.Module):
    def forward(self, x):
        return module.run(x)
'''
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


def native(expression: str) -> Program:
    entry = HEAD + (
        "from bindings import run\n"
        "class ModelNew(nn.Module):\n    def forward(self, x):\n        y = torch.empty_like(x)\n"
        "        run(x, y, x.numel())\n        return y\n"
    )
    arguments = [
        Argument(name="x", dtype="float32"),
        Argument(name="y", dtype="float32", role="output"),
        Argument(name="n", kind="scalar", dtype="int64"),
    ]
    launcher = Launcher(name="run", source="k.cu", arguments=arguments)
    files = {"program.py": entry, "k.cu": SOURCE.format(expression)}
    return Program(files=files, manifest=Manifest(target="cuda", launchers=[launcher]))


def test_programs_of_two_tasks_are_judged_side_by_side(tmp_path: Path) -> None:
    device = detect("cuda")
    relu, double = (
        Task(name=name, origin="test", source=TASK.format(body), target=device.target)
        for name, body in (("relu", "torch.relu(x)"), ("double", "x + x"))
    )
    expected = {
        "relu native": ("correct", relu, native("x[i] > 0 ? x[i] : 0")),
        "double native": ("correct", double, native("2 * x[i]")),
        "relu wrong": ("wrong_output", relu, native("x[i]")),
        "double unbuilt": ("build_failed", double, native("nonsense")),
        "relu inline": ("correct", relu, Program(files={"program.py": HEAD + INLINE.format("fmaxf(x[i], 0.f)")})),
        "double crash": ("crashed", double, native("x[i + (1l << 45)]")),
        "double again": ("correct", double, native("x[i] + x[i]")),
    }
    settings = EvaluationSettings(baselines=False)
    with Pipeline(device, cache=tmp_path, settings=settings, lanes=4, per_task=2) as pipeline:
        jobs = [Job(name, task, FACTS, program) for name, (_, task, program) in expected.items()]
        done = {each.job.name: each for each in pipeline.evaluate_many(jobs)}
        spans = list(pipeline.gate.spans)
    print(chart(list(done.values())))
    told = {name: (each.evaluation.status, each.evaluation.message) for name, each in done.items()}
    assert {name: status for name, (status, _) in told.items()} == {n: e[0] for n, e in expected.items()}, told
    clocks = [(span.begin, span.end) for span in spans if span.hold == "clock"]
    others = [(span.begin, span.end) for span in spans if span.hold != "clock"]
    assert overlap(clocks, others) < 1e-6
    assert sum(end - begin for begin, end in clocks) == pytest.approx(overlap(clocks, clocks), abs=1e-6)
    assert done["relu native"].evaluation.memory["device"] > 100 << 20
