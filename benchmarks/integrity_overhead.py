"""What the defences of an evaluation cost: the same honest programs screened with and without them, and published.

    python benchmarks/integrity_overhead.py [--target cuda] [--rows 3] [--write]

Without them an evaluation does correctness and timing only: no poisoning, changing addresses, second looks, gates of
the supervisor's clock, probes, static rules, knock-out, or census. What counts is how long an evaluation holds the
device in a row of them, as a search makes them: from its start, which waits for a fresh process, to its end, while the
process for the next is being started. The build is in the cache. ``--write`` updates
benchmarks/results/integrity_overhead_TARGET.{json,md}. Exit status 1 when the screen's overhead is above the limit.
Timings need a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent))

from provenance import gpu_provenance, write_json, write_text

from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.evaluation.oracle_client import OracleClient
from stitchcuda.evaluation.runner_client import RunnerClient
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.detect import detect
from stitchcuda.program.model import Argument, Launcher, Manifest, Program
from stitchcuda.task.model import Task, TaskFacts

RESULTS = Path(__file__).parent / "results"
ROW = 3
"""Evaluations in a row that count."""

MOST_COMMANDS = 14
"""In each table of them."""

LIMIT = 0.60
"""Added to the time of a screen, as a share of it."""

HEAD = "import torch\nfrom torch import nn\n"
TASKS = {
    "elementwise": ("torch.tanh(x) * torch.sigmoid(x) * self.scale", "{rows}, {width}"),
    "linear": ("torch.relu(self.linear(x)) * self.scale", "{rows}, {width}"),
}
SIZES = {"cpu": (512, 1024), "cuda": (16384, 4096)}

BODY = """
class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear({width}, {width})
        self.scale = nn.Parameter(torch.rand({width}) + 0.5)
    def forward(self, x):
        return {expression}
"""

CUDA_KERNEL = r"""
#include <cuda_runtime.h>
__global__ void gate(const float* x, const float* s, float* y, long long n, long long width) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = tanhf(x[i]) / (1.f + expf(-x[i])) * s[i % width];
}
extern "C" int launch_gate(const float* x, const float* s, float* y, long long n, long long width, void* stream) {
    gate<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, s, y, n, width);
    return (int)cudaGetLastError();
}
"""
CPU_KERNEL = r"""
#include <cmath>
extern "C" int launch_gate(const float* x, const float* s, float* y, long long n, long long width, void*) {
    for (long long i = 0; i < n; ++i) y[i] = std::tanh(x[i]) / (1.f + std::exp(-x[i])) * s[i % width];
    return 0;
}
"""


def programs(kind: str) -> dict[str, tuple[Task, Program]]:
    """One task a name, with an honest program: native for the first, plain for the second."""
    rows, width = SIZES[kind]
    device = detect(kind)  # type: ignore[arg-type]
    table = {}
    for name, (expression, shape) in TASKS.items():
        model = BODY.format(name="Model", width=width, expression=expression)
        get = f"def get_inputs():\n    return [torch.randn({shape.format(rows=rows, width=width)})]\n"
        source = HEAD + model + get + "def get_init_inputs():\n    return []\n"
        task = Task(name=name, origin="benchmark", source=source, target=device.target)
        plain = HEAD + BODY.format(name="ModelNew", width=width, expression=expression)
        table[name] = (task, Program(files={"program.py": plain}))
    tensors = [Argument(name="x", dtype="float32"), Argument(name="s", dtype="float32")]
    tensors += [Argument(name="y", dtype="float32", role="output")]
    sizes = [Argument(name=size, kind="scalar", dtype="int64") for size in ("n", "width")]
    file = "kernels.cu" if kind == "cuda" else "kernels.cpp"
    launcher = Launcher(name="launch_gate", source=file, arguments=[*tensors, *sizes])
    entry = BODY.format(name="ModelNew", width=width, expression="self.gate(x)") + (
        "    def gate(self, x):\n        y = torch.empty_like(x)\n"
        "        launch_gate(x, self.scale, y, x.numel(), x.shape[-1])\n        return y\n"
    )
    files = {"program.py": HEAD + "from bindings import launch_gate\n" + entry}
    files[file] = CUDA_KERNEL if kind == "cuda" else CPU_KERNEL
    manifest = Manifest(target=device.target.kind, launchers=[launcher])
    table["elementwise"] = (table["elementwise"][0], Program(files=files, manifest=manifest))
    return table


def settings(defended: bool) -> EvaluationSettings:
    """Of a screen, with cached baselines left out of it."""
    return EvaluationSettings(
        baselines=False, defences=defended, static_rules=defended, trace_program=defended, sanitizer=defended
    )


class Commands:
    """Seconds and numbers of what the supervisor asks of the oracle and of runners while it is switched on, by name;
    what is asked of both at once counts twice."""

    def __init__(self) -> None:
        self.on = False
        self.spent: dict[str, list[float]] = {}
        self._guard = threading.Lock()
        self._watch(OracleClient, "oracle")
        self._watch(RunnerClient, "runner")

    def _watch(self, cls: Any, whose: str) -> None:
        real = cls.ask

        def ask(client: Any, op: Any, *arguments: Any, **fields: Any) -> Any:
            began = time.perf_counter()
            try:
                return real(client, op, *arguments, **fields)
            finally:
                if self.on:
                    name = f"{whose} {getattr(op, 'name', op).lower()}"
                    with self._guard:
                        self.spent.setdefault(name, []).append(time.perf_counter() - began)

        cls.ask = ask

    def take(self) -> dict[str, dict[str, float]]:
        """Calls and seconds of each, the longest first; what was counted is forgotten."""
        told = {name: {"calls": len(each), "seconds": sum(each)} for name, each in self.spent.items()}
        self.spent = {}
        return dict(sorted(told.items(), key=lambda item: -item[1]["seconds"]))


def timed(evaluator: Evaluator, program: Program, tier: Tier) -> tuple[float, Evaluation]:
    """Wall seconds of one evaluation."""
    began = time.perf_counter()
    evaluation = evaluator.evaluate(program, tier)
    seconds = time.perf_counter() - began
    if evaluation.status != "correct":
        raise SystemExit(f"{tier}: {evaluation.status}: {evaluation.message}")
    return seconds, evaluation


def middle(taken: list[tuple[float, dict[str, float]]]) -> tuple[float, dict[str, float]]:
    """The median of some evaluations' seconds, and the stages of the one that is nearest to it."""
    median = statistics.median(spent for spent, _ in taken)
    return median, min(taken, key=lambda each: abs(each[0] - median))[1]


def counted(commands: Commands, evaluator: Evaluator, program: Program) -> dict[str, dict[str, float]]:
    """What one more screen asks for."""
    commands.on = True
    try:
        timed(evaluator, program, "screen")
    finally:
        commands.on = False
    return commands.take()


def measure(kind: str, rows: int) -> list[dict[str, object]]:
    """One entry a task: medians over so many ``rows`` of screens, plain and defended rows in turn."""
    found: list[dict[str, object]] = []
    device = detect(kind)  # type: ignore[arg-type]
    commands = Commands()
    for name, (task, program) in programs(kind).items():
        facts = TaskFacts(
            inputs=[],
            outputs=[],
            parameters=0,
            stochastic=False,
            seedable=False,
            training=True,
            mutates_state=False,
            eager_seconds=1e-3,
        )
        with contextlib.ExitStack() as stack:
            cache = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            both = {way: Evaluator(task, facts, device, cache=cache, settings=settings(way)) for way in (False, True)}
            for evaluator in both.values():
                stack.enter_context(evaluator)
                timed(evaluator, program, "screen")
            taken: dict[bool, list[tuple[float, dict[str, float]]]] = {True: [], False: []}
            for _ in range(rows):
                for defended, evaluator in both.items():
                    timed(evaluator, program, "screen")
                    for _ in range(ROW):
                        spent, evaluation = timed(evaluator, program, "screen")
                        taken[defended].append((spent, evaluation.seconds))
            asked = {way: counted(commands, evaluator, program) for way, evaluator in both.items()}
            both[True].settings = settings(True).model_copy(update={"baselines": True})
            publish, published = timed(both[True], program, "publish")
            (plain, plain_stages), (defended_s, stages) = middle(taken[False]), middle(taken[True])
            found.append(
                {
                    "task": name,
                    "plain_seconds": plain,
                    "defended_seconds": defended_s,
                    "overhead": defended_s / plain - 1,
                    "publish_seconds": publish,
                    "publish_stages": published.seconds,
                    "sanitizer": published.provenance.get("sanitizer"),
                    "plain_stages": plain_stages,
                    "stages": stages,
                    "plain_commands": asked[False],
                    "commands": asked[True],
                    "evaluations": len(taken[True]),
                }
            )
    return found


def render(record: dict[str, object], rows: list[dict[str, object]]) -> str:
    """The table, for people."""
    lines = [
        "# What the defences cost",
        "",
        "Screens of honest programs with and without everything that is not correctness or timing: seconds of wall",
        f"time for each of a row, medians of {rows[0]['evaluations']}, and behind them how many of these seconds a",
        f"process takes to start. `python benchmarks/integrity_overhead.py --target {record['target']}`,",
        f"{record['date']}, commit {record['commit']}, {record.get('gpu') or record['cpu']}.",
        "",
        "| task | correctness and timing | with defences | added | publish |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['task']} | {row['plain_seconds']:.2f} ({_start(row, 'plain_stages')}) | "
            f"{row['defended_seconds']:.2f} ({_start(row, 'stages')}) | "
            f"{100 * float(str(row['overhead'])):.0f} % | {row['publish_seconds']:.1f} |"
        )
    for row in rows:
        lines += ["", f"What the supervisor asks for in one screen of `{row['task']}`: calls, seconds.", ""]
        lines += ["| command | correctness and timing | with defences |", "|---|---:|---:|"]
        plain, defended = (cast("dict[str, dict[str, float]]", row[key]) for key in ("plain_commands", "commands"))
        for name in [*defended, *(plain.keys() - defended.keys())][:MOST_COMMANDS]:
            lines.append(f"| {name} | {_told(plain.get(name))} | {_told(defended.get(name))} |")
    return "\n".join(lines) + "\n"


def _told(asked: dict[str, float] | None) -> str:
    return f"{asked['calls']:.0f}, {asked['seconds']:.3f}" if asked else ""


def _start(row: dict[str, Any], stages: str) -> str:
    return f"{row[stages].get('start', 0.0):.2f}"


def main() -> int:
    """Measure, print, and with --write keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", type=int, default=3, help="of evaluations, each way")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = measure(given.target, given.rows)
    record = gpu_provenance() | {"target": given.target, "limit": LIMIT, "rows": rows}
    text = render(record, rows)
    print(text)
    if given.write:
        write_json(RESULTS / f"integrity_overhead_{given.target}.json", record)
        write_text(RESULTS / f"integrity_overhead_{given.target}.md", text)
    return int(any(float(str(row["overhead"])) > LIMIT for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
