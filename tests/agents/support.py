"""Requests and a journal for the agents' tests: small, complete, no device needed."""

from __future__ import annotations

from typing import Any

from stitchcuda.agents import Attempt, CodeRequest, Idea, PlanRequest, ReplyRecord, RequestKey, Step, VerifyRequest
from stitchcuda.agents.plan import TensorContract
from stitchcuda.agents.settings import MindSettings, Patience
from stitchcuda.evaluation.model import Correctness, Evaluation, OutputError, Timing
from stitchcuda.hardware.model import Ceilings, Device
from stitchcuda.profiling.model import KernelTime, Profile, Timeline
from stitchcuda.program.model import Argument, Launcher, Manifest, Program
from stitchcuda.task.model import Target, Task, TaskFacts, TensorFacts

SOURCE = '''"""Softmax of a scaled input."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1)


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return [0.5]
'''

PROGRAM_SOURCE = """import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1)
"""

CODER_REPLY = f"One pass.\n\n### program.py\n```python\n{PROGRAM_SOURCE}```\n"

PLAN: dict[str, Any] = {
    "summary": "Two passes over memory can be one.",
    "bottleneck": "memory: two kernels read and write 16 MiB each",
    "ideas": [
        {
            "name": "one pass",
            "rationale": "mul and softmax move 64 MiB, one kernel moves 32",
            "steps": [
                {
                    "title": "scale and softmax in one row kernel",
                    "operators": ["mul", "softmax"],
                    "fusion": "one row reduction kernel; it ends at the output",
                    "predicted_gain": 1.8,
                    "acceptance": "one kernel in the trace, at least 1.5x",
                }
            ],
        }
    ],
}

FEEDBACK: dict[str, Any] = {
    "route": "optimise",
    "diagnosis": "The row is read twice.",
    "evidence": "64 MiB moved in 20 us",
    "suggestion": "Keep the row in registers.",
}


class MemoryLog:
    """A ReplyLog in memory; ``node`` is set by the test."""

    def __init__(self, records: dict[RequestKey, ReplyRecord] | None = None) -> None:
        self.node = "node#0"
        self.records = records if records is not None else {}

    def find(self, key: RequestKey) -> ReplyRecord | None:
        return self.records.get(key)

    def append(self, record: ReplyRecord) -> None:
        self.records[record.key] = record


def hasty(**changes: Any) -> MindSettings:
    """Settings that retry without waiting long."""
    patience = Patience(
        request_seconds=10, attempts=4, busy_seconds=5, first_wait_seconds=0.01, longest_wait_seconds=0.05
    )
    return MindSettings(**{"patience": patience, **changes})


def device(kind: str = "cpu") -> Device:
    if kind == "cuda":
        return Device(
            target=Target(kind="cuda", arch="sm_90"),
            name="NVIDIA H200",
            multiprocessors=132,
            memory_bytes=139 << 30,
            cache_bytes=60 << 20,
            shared_memory_per_block=227 << 10,
            runtime="13.0",
            ceilings=Ceilings(
                copy_bytes_per_second=4.3e12,
                flops_per_second={"fp32": 5.2e13, "tf32": 4.1e14},
                measured_on="2026-01-01",
            ),
        )
    return Device(
        target=Target(kind="cpu", arch="native"),
        name="a processor",
        multiprocessors=2,
        memory_bytes=24 << 30,
        cache_bytes=32 << 20,
        features=["sse2", "avx2", "fma", "avx512f"],
        ceilings=Ceilings(copy_bytes_per_second=2e10, flops_per_second={"fp32": 2e11}, measured_on="2026-01-01"),
    )


def task(kind: str = "cpu", **changes: Any) -> Task:
    values = {"name": "scaled_softmax", "origin": "test", "source": SOURCE, "target": device(kind).target, **changes}
    return Task(**values)


def facts(**changes: Any) -> TaskFacts:
    values: dict[str, Any] = {
        "inputs": [TensorFacts(shape=(4096, 1024), dtype="float32")],
        "outputs": [TensorFacts(shape=(4096, 1024), dtype="float32")],
        "parameters": 0,
        "stochastic": False,
        "seedable": False,
        "training": True,
        "mutates_state": False,
        "eager_seconds": 0.004,
    }
    return TaskFacts(**{**values, **changes})


def profile(subject: str = "reference", *, kernels: int = 2) -> Profile:
    rows = [
        KernelTime(
            name=f"void at::native::softmax_warp_forward<float, float, float, {i}>",
            seconds=1e-5,
            share=1 / kernels,
            calls=1,
            origin="framework",
            operator="aten::softmax",
        )
        for i in range(kernels)
    ]
    return Profile(
        subject="reference" if subject == "reference" else "program",
        source="kineto",
        timeline=Timeline(wall_seconds=4e-3, busy_seconds=3.5e-3, gap_seconds=5e-4, copy_seconds=0, launches=kernels),
        kernels=rows,
        bottleneck="memory_bound",
        evidence="64 MiB in 3.5 ms is 95 % of copy bandwidth",
    )


def step() -> Step:
    return Step(
        title="scale and softmax in one row kernel",
        operators=["mul", "softmax"],
        fusion="one row reduction kernel; it ends at the output",
        inputs=[TensorContract(name="x", shape=[4096, 1024])],
        outputs=[TensorContract(name="y", shape=[4096, 1024])],
        host="whole forward in a CUDA graph",
        predicted_gain=1.8,
        acceptance="one kernel in the trace",
    )


def idea() -> Idea:
    return Idea(name="one pass", rationale="half the bytes", steps=[step()])


def attempts(count: int) -> list[Attempt]:
    return [
        Attempt(number=n, idea="one pass", step="softmax", status="correct", speedup=1.1, over_best=1.0 + n / 100)
        for n in range(count)
    ]


def program(**files: str) -> Program:
    return Program(files={"program.py": PROGRAM_SOURCE, **files})


def native_program(kind: str = "cpu", *, lines: int = 20) -> Program:
    path = "kernels.cu" if kind == "cuda" else "kernels.cpp"
    arguments = [Argument(name="x", dtype="float32"), Argument(name="y", dtype="float32", role="output")]
    manifest = Manifest(
        target="cuda" if kind == "cuda" else "cpu",
        launchers=[Launcher(name="softmax_rows", source=path, arguments=arguments)],
    )
    body = "\n".join(f"// line {n} of the kernel source, as long as such lines are" for n in range(lines))
    return Program(
        files={
            "program.py": PROGRAM_SOURCE,
            path: f'{body}\nextern "C" int softmax_rows(const float* x, float* y, void* stream) {{ return 0; }}\n',
        },
        manifest=manifest,
    )


def evaluation(status: str = "correct", **changes: Any) -> Evaluation:
    values: dict[str, Any] = {"status": status, "message": status, "tier": "screen", "precision": "fp32"}
    if status == "correct":
        timing = Timing(median=2e-3, p10=1.9e-3, p90=2.1e-3, n=20)
        values["timings"] = {"program": timing, "eager": timing.model_copy(update={"median": 4e-3})}
        values["speedup"] = {"eager": 2.0, "over_best": 1.6}
    if status == "wrong_output":
        bad = OutputError(
            output="0",
            case="normal",
            relative_norm=0.3,
            eager_relative_norm=1e-7,
            max_abs=1.0,
            eager_max_abs=1e-6,
            budget=2e-6,
            ok=False,
            detail="first at [0, 1020]: got 0, expected 0.0012; tail of every row",
        )
        values["correctness"] = Correctness(ok=False, calls_checked=3, outputs=[bad], message="output 0 is wrong")
    return Evaluation(**{**values, **changes})


def plan_request(kind: str = "cpu", **changes: Any) -> PlanRequest:
    values: dict[str, Any] = {
        "task": task(kind),
        "facts": facts(),
        "device": device(kind),
        "profile": profile(),
        "baselines": {"eager": 4e-3, "compile": 3e-3},
    }
    return PlanRequest(**{**values, **changes})


def code_request(kind: str = "cpu", **changes: Any) -> CodeRequest:
    values: dict[str, Any] = {
        "task": task(kind),
        "facts": facts(),
        "device": device(kind),
        "idea": idea(),
        "step": step(),
    }
    return CodeRequest(**{**values, **changes})


def verify_request(kind: str = "cpu", **changes: Any) -> VerifyRequest:
    values: dict[str, Any] = {
        "task": task(kind),
        "device": device(kind),
        "idea": idea(),
        "step": step(),
        "program": native_program(kind),
        "evaluation": evaluation(),
    }
    return VerifyRequest(**{**values, **changes})
