"""Runs a subject a few times for a profiler around it, or for torch.profiler inside it, and marks each call.

Started by path as ``driver.py JOB.json`` in the confinement; torch and the standard library only. Its inputs are
ordinary ones, not those of an evaluation; what it reports can never change a verdict.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import select
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

CALL, OPERATORS = "stitchcuda:call", "stitchcuda:operators"
"""The same words as ``profiling.recording``."""
WARM_SECONDS, MEASURE_SECONDS = 1.0, 0.5
ANSWER_SECONDS = 10.0
MOST_COUNTED = 5000
"""Calls that perf counts at most."""
PATHS = ("reference", "program", "result", "trace", "control", "answer")
"""What of a job is a path beside it."""
LONG_CALL = 0.1
"""Seconds; of longer calls one is recorded, of others three."""


def load_file(name: str, path: Path) -> ModuleType:
    """Import one file by its path."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Subject:
    """The reference or a Program, on the device, with inputs."""

    def __init__(self, job: dict[str, Any]) -> None:
        import torch

        self.torch, self.job, self.kind = torch, job, job["kind"]
        self.cuda = self.kind == "cuda"
        self.states: Any = load_file("stitchcuda_state", Path(job["state"]))
        allowed = job["precision"] == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed
        if job["search_path"]:
            sys.path.insert(0, job["search_path"])
        self.reference: Any = load_file("stitchcuda_reference", Path(job["reference"]))
        self.factory = self.reference.Model
        if job["program"]:
            folder = Path(job["program"])
            sys.path.insert(0, str(folder))
            program: Any = load_file("program", folder / "program.py")
            self.factory = program.ModelNew
        self.model = self.build()
        self.inputs = self.draw()
        prepare = getattr(self.model, "prepare", None) if job["program"] else None
        if callable(prepare):
            with torch.no_grad():
                prepare()
        bindings = sys.modules.get("bindings")
        if bindings is not None and job["ranges"]:
            bindings.PROFILE = True  # type: ignore[attr-defined]

    def build(self) -> Any:
        """The module, its weights drawn on the device where the source allows that."""
        for on_device in (True, False) if self.cuda else (False,):
            try:
                self.states.seed_all(1)
                arguments = copy.deepcopy(self.reference.get_init_inputs())
                with self.torch.device(self.kind) if on_device else nullcontext():
                    keywords = isinstance(arguments, dict)
                    model = self.factory(**arguments) if keywords else self.construct(list(arguments))
                break
            except Exception:
                if not on_device:
                    raise
        model = self.states.settle(model, self.kind, self.job["precision"])
        if self.job["training"] is not None:
            model.train(self.job["training"])
        return model

    def construct(self, arguments: list[Any]) -> Any:
        """``factory(*arguments)``; a single mapping is keywords."""
        if len(arguments) == 1 and isinstance(arguments[0], dict):
            return self.factory(**arguments[0])
        return self.factory(*arguments)

    def draw(self) -> list[Any]:
        """Inputs of the task, on the device unless they start on the host."""
        place = "cpu" if self.job["host_inputs"] else self.kind
        for here in (place, "cpu") if place != "cpu" else ("cpu",):
            try:
                self.states.seed_all(2)
                with self.torch.device(here) if here != "cpu" else nullcontext():
                    values = self.values()
                break
            except Exception:
                if here == "cpu":
                    raise
        dtype = {"fp16": self.torch.float16, "bf16": self.torch.bfloat16}.get(self.job["precision"])

        def settle(value: Any) -> Any:
            if not isinstance(value, self.torch.Tensor):
                return value
            wide = dtype is not None and value.dtype in (self.torch.float32, self.torch.float64)
            return value.detach().to(device=place, dtype=dtype if wide else value.dtype)

        from torch.utils import _pytree as pytree

        return list(pytree.tree_map(settle, list(values)))

    def values(self) -> Any:
        """What the source gives as inputs: ``get_inputs()``, or its first case."""
        if hasattr(self.reference, "get_inputs"):
            return self.reference.get_inputs()
        values = self.reference.get_input_cases()[0][2]
        return values() if callable(values) else values

    def facts(self) -> dict[str, Any]:
        """Shapes and dtypes of inputs and outputs, the number of parameters, and the mode."""
        from torch.utils import _pytree as pytree

        def tensors(value: Any) -> list[dict[str, Any]]:
            leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, self.torch.Tensor)]
            return [{"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")} for t in leaves]

        with self.torch.no_grad():
            outputs = self.model(*self.inputs)
        self.sync()
        return {
            "inputs": tensors(self.inputs),
            "outputs": tensors(outputs),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "training": bool(self.model.training),
        }

    def sync(self) -> None:
        """Wait for the device."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def call(self) -> None:
        """One call, waited for."""
        with self.torch.no_grad():
            self.model(*self.inputs)
        self.sync()

    def timed(self) -> tuple[float, float]:
        """Seconds of one call: by the host's clock with a wait for the device, and by CUDA events (0.0 on cpu)."""
        if not self.cuda:
            began = time.perf_counter()
            self.call()
            return time.perf_counter() - began, 0.0
        events: Any = self.torch.cuda.Event
        start, end = events(enable_timing=True), events(enable_timing=True)
        began = time.perf_counter()
        start.record()
        with self.torch.no_grad():
            self.model(*self.inputs)
        end.record()
        self.sync()
        return time.perf_counter() - began, start.elapsed_time(end) * 1e-3


def repeat(call: Callable[[], Any], seconds: float, *, least: int, most: int) -> list[Any]:
    """Results of calls until the time is up."""
    results: list[Any] = []
    until = time.perf_counter() + seconds
    while len(results) < least or (len(results) < most and time.perf_counter() < until):
        results.append(call())
    return results


def nsys(subject: Subject, calls: int) -> list[float]:
    """Calls between cudaProfilerStart and cudaProfilerStop, in NVTX ranges; then one with its operators as ranges.

    Returns each call's span by CUDA events, seconds.
    """
    torch, spans = subject.torch, []
    nvtx = torch.cuda.nvtx
    torch.cuda.profiler.start()
    subject.call()  # tracing is slow at first
    for _ in range(calls):
        nvtx.range_push(CALL)
        spans.append(subject.timed()[1])
        nvtx.range_pop()
    with torch.autograd.profiler.emit_nvtx():
        nvtx.range_push(OPERATORS)
        subject.call()
        nvtx.range_pop()
    torch.cuda.profiler.stop()
    return spans


def kineto(subject: Subject, calls: int, out: str) -> list[float]:
    """The same by torch.profiler, whose Chrome trace goes to ``out``."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if subject.cuda else [])
    spans = []
    with profile(activities=activities) as trace:
        subject.call()
        for _ in range(calls):
            with record_function(CALL):
                spans.append(subject.timed()[1])
    trace.export_chrome_trace(out)
    return spans


def flops(subject: Subject) -> float:
    """FLOP of matrix products and convolutions of one call, 0.0 where torch cannot count them."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            subject.call()
        return float(counter.get_total_flops())
    except Exception:
        return 0.0


def counters(subject: Subject) -> None:
    """One call between cudaProfilerStart and cudaProfilerStop."""
    subject.torch.cuda.profiler.start()
    subject.call()
    subject.torch.cuda.profiler.stop()


def events(subject: Subject, control: str, answer: str) -> dict[str, float]:
    """Calls while perf counts, which listens on ``control`` and says on ``answer`` that it obeyed; their number, and
    the seconds of each."""
    to_perf, from_perf = os.open(control, os.O_WRONLY), os.open(answer, os.O_RDONLY)

    def tell(word: str) -> None:
        os.write(to_perf, f"{word}\n".encode())
        if not select.select([from_perf], [], [], ANSWER_SECONDS)[0]:
            raise TimeoutError(f"perf did not answer to '{word}'")
        os.read(from_perf, 64)

    tell("enable")
    began = time.perf_counter()
    calls = len(repeat(subject.call, MEASURE_SECONDS, least=3, most=MOST_COUNTED))
    seconds = time.perf_counter() - began
    tell("disable")
    return {"calls": calls, "wall": seconds / calls}


def main() -> None:
    """Obey the job that the argument names, and write the result where it says."""
    here = Path(sys.argv[1]).resolve().parent
    job = json.loads(Path(sys.argv[1]).read_text())
    job |= {name: str(here / job[name]) for name in PATHS if job[name]}
    if job["torch_folder"] not in sys.path:
        sys.path.append(job["torch_folder"])
    subject = Subject(job)
    subject.call()
    result: dict[str, Any] = {"mode": job["mode"]}
    if job["mode"] == "counters":
        counters(subject)
    elif job["mode"] == "events":
        repeat(subject.call, WARM_SECONDS, least=2, most=20)
        result |= events(subject, job["control"], job["answer"])
    else:
        repeat(subject.call, WARM_SECONDS, least=2, most=20)
        if subject.cuda:
            subject.torch.cuda.reset_peak_memory_stats()
        times = repeat(subject.timed, MEASURE_SECONDS, least=3, most=50)
        wall = statistics.median(wall for wall, _ in times)
        peak = subject.torch.cuda.max_memory_allocated() if subject.cuda else 0
        result |= {"wall": wall, "events": statistics.median(events for _, events in times), "peak_bytes": peak}
        calls = 1 if wall > LONG_CALL else 3
        spans = nsys(subject, calls) if job["mode"] == "nsys" else kineto(subject, calls, job["trace"])
        result["facts"] = subject.facts()
        result |= {"traced_events": statistics.fmean(spans), "calls": calls}
        result["flops"] = 0.0 if job["program"] else flops(subject)
    Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
