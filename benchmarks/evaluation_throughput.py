"""How fast programs are evaluated: builds, a fixed mixed set beside KernelBench's harness, workers, the CPU path.

    python benchmarks/evaluation_throughput.py --slice builds          # compile only: any machine with nvcc
    python benchmarks/evaluation_throughput.py --slice cpu             # the CPU path
    python benchmarks/evaluation_throughput.py --slice prepare         # what is done once per task
    python benchmarks/evaluation_throughput.py --slice compare         # 20 programs, ours and KernelBench's
    python benchmarks/evaluation_throughput.py --slice hundred         # 100 programs, ours
    python benchmarks/evaluation_throughput.py --slice workers         # 1 to 16 cores
    python benchmarks/evaluation_throughput.py --slice tune            # variants of a kernel by NVRTC
    python benchmarks/evaluation_throughput.py --slice page

All but builds, tune and page need ``--kernelbench CHECKOUT`` (or KERNELBENCH_ROOT). A slice goes on where an earlier
one stopped, begins nothing after ``--slice-seconds``, and exits 0 once it has nothing left to do, 3 otherwise. All is
kept in ``--results`` (JSON); the tables are written beside it. ``--cache`` is kept between slices for what is done once
per task; builds are always made anew. Run on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent / "throughput_programs"))
sys.path.insert(0, str(Path(__file__).parent))

from programs import KERNELS, SPECS, Member, Spec, compared, device_kernels, inline_build, large, native_build
from provenance import gpu_provenance, write_json, write_text
from throughput_page import page

from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.build_cache import BuildCache
from stitchcuda.evaluation.device_gate import Gate
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.nvrtc import KernelSource, Nvrtc
from stitchcuda.evaluation.pipeline import Done, Job, Pipeline
from stitchcuda.evaluation.pipeline_chart import chart, shares
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.torch_build import build_extensions
from stitchcuda.hardware.detect import detect
from stitchcuda.hardware.model import Device
from stitchcuda.task.inspect import inspect_task
from stitchcuda.task.loader import load_task
from stitchcuda.task.model import Target, Task, TaskFacts

HERE = Path(__file__).parent
ARCH = "sm_90"
CORES = (1, 2, 4, 8, 16)
LIGHT = ("1/12", "1/88", "2/12", "2/76")
"""Tasks of the set whose programs take seconds, for how throughput grows with cores"""
LIGHT_PROGRAMS = {16: 32, 8: 24, 4: 16, 2: 8, 1: 4}
"""By cores"""
ONCE_S = 150.0
"""For what is done once per task."""
JUDGE_S = 130.0
"""For KernelBench's harness to judge the largest."""
UNFINISHED = 3

HEAD = "import torch\nimport torch.nn as nn\n"


class Results:
    """The results file: one value for each named item, written after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def has(self, slice_: str, item: str) -> bool:
        """Whether an item was measured."""
        return item in self.all.get(slice_, {})

    def get(self, slice_: str) -> dict[str, Any]:
        """All items of a slice."""
        return dict(self.all.get(slice_, {}))

    def put(self, slice_: str, item: str, value: Any) -> None:
        """Keep one, and how busy the machine was."""
        self.all.setdefault(slice_, {})[item] = value | {"load": round(os.getloadavg()[1], 1)}
        self.all.setdefault("provenance", {})[slice_] = gpu_provenance()
        write_json(self.path, self.all)
        print(f"{slice_} {item}: {json.dumps(value)[:200]}", flush=True)


class Visit:
    """One run of this script: its clock, its folders."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.until = time.monotonic() + options.slice_seconds
        self.results = Results(options.results)
        self.cache: Path = options.cache
        self.cache.mkdir(parents=True, exist_ok=True)
        self.left = 0

    def items(self, slice_: str, names: Iterable[str], needs: float = 0.0) -> Iterator[str]:
        """Those that were not measured, as long as ``needs`` seconds are left before each; the others are counted."""
        for name in names:
            if self.results.has(slice_, name) and not self.options.again:
                continue
            if time.monotonic() + needs > self.until:
                self.left += 1
                continue
            yield name


# ---- Builds ----


def timed(action: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began = time.monotonic()
    action()
    return time.monotonic() - began


def must(condition: bool, text: str) -> None:
    """A measurement of something that does not work is none."""
    if not condition:
        raise SystemExit(text)


def build_once(way: str, count: int) -> float:
    """Seconds to build the program of ``count`` kernels one way, from nothing (``cached``: the second time)."""
    target = Target(kind="cuda", arch=ARCH)
    with tempfile.TemporaryDirectory(prefix="throughput-") as name:
        folder = Path(name)
        if way in ("native", "cached"):
            program = native_build(count)

            def run() -> None:
                result = build(program, target, cache=folder)
                must(result.ok, result.log)

            first = timed(run)
            return timed(run) if way == "cached" else first
        if way in ("own", "own cached", "torch"):
            program = inline_build(count)
            headers: tuple[Literal["own", "torch"], ...] = ("torch",) if way == "torch" else ("own",)

            def extend() -> None:
                made = build_extensions(
                    program, target, cache=BuildCache(folder), deadline=time.monotonic() + 900, headers=headers
                )
                must(not made.error and all(each.library for each in made.each), f"{way}: {made.error or made.note}")

            first = timed(extend)
            return timed(extend) if way == "own cached" else first
        if way == "load_inline":
            (folder / "program.py").write_text(inline_build(count).files["program.py"])
            environment = os.environ | {"TORCH_EXTENSIONS_DIR": name, "TORCH_CUDA_ARCH_LIST": "9.0", "PYTHONPATH": name}
            command = [
                sys.executable,
                "-c",
                "import torch, time; t = time.monotonic(); import program; print(time.monotonic() - t)",
            ]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            must(done.returncode == 0, done.stderr[-2000:])
            return float(done.stdout.split()[-1])
        must(way == "nvrtc", way)
        source = "".join(device_kernels(count))
        with Nvrtc(ARCH, workers=1) as compilers:
            names = tuple(f"kernel{k}" for k in range(count))
            compilers.compile(KernelSource(source="__global__ void warm() {}", kernels=("warm",)))

            def compile_() -> None:
                compiled = compilers.compile(KernelSource(source=source, kernels=names))
                must(compiled.ok, compiled.log)

            return timed(compile_)


def builds(visit: Visit) -> None:
    """Slice (a)."""
    ways = ["native", "cached", "nvrtc", "own", "own cached", "torch"]
    if visit.options.load_inline:
        ways.append("load_inline")
    names = [f"{way} x{count}" for way in ways for count in KERNELS]
    for name in visit.items("builds", names, needs=1.0):
        way, count = name.rsplit(" x", 1)
        slow = way in ("torch", "load_inline")
        if slow and time.monotonic() + 200 > visit.until:
            visit.left += 1
            continue
        runs = [build_once(way, int(count)) for _ in range(1 if slow else 3)]
        visit.results.put("builds", name, {"seconds": sorted(runs)[len(runs) // 2], "runs": runs})


# ---- Evaluations ----


def cpu_task(spec: Spec, root: Path | None) -> Task:
    """The task at a size for two cores."""
    task = load_task(f"kernelbench:{spec.level}/{spec.number}", target=detect("cpu").target, root=root)
    source = task.source
    for old, new in spec.small:
        must(old in source, f"{spec.name}: {old!r} is not in the task's source")
        source = source.replace(old, new)
    return task.model_copy(update={"source": source, "origin": f"{task.origin}, smaller"})


def tasks_of(visit: Visit, device: Device) -> dict[str, tuple[Task, TaskFacts]]:
    """Tasks and facts of the set; facts are kept in the cache folder."""
    root, kind = visit.options.kernelbench, device.target.kind
    store = visit.cache / f"facts-{kind}.json"
    known = json.loads(store.read_text()) if store.is_file() else {}
    found = {}
    for spec in SPECS:
        if kind == "cpu":
            task = cpu_task(spec, root)
        else:
            task = load_task(f"kernelbench:{spec.level}/{spec.number}", target=device.target, root=root)
        if task.digest not in known:
            known[task.digest] = inspect_task(task).model_dump()
            write_json(store, known)
        found[spec.name] = (task, TaskFacts.model_validate(known[task.digest]))
    return found


def jobs_of(members: Iterable[Member], tasks: dict[str, tuple[Task, TaskFacts]]) -> list[Job]:
    """As the pipeline takes them."""
    return [Job(each.name, *tasks[each.spec.name], each.program) for each in members]


class Utilisation:
    """Share of time in which any kernel ran, as NVML samples it; None without NVML."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        device, rates = ctypes.c_void_p(), (ctypes.c_uint * 2)()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
            return
        while not self.stop.wait(0.1):
            if library.nvmlDeviceGetUtilizationRates(device, rates) == 0:
                self.samples.append(rates[0])

    def end(self) -> float | None:
        """The mean, 0 to 1."""
        self.stop.set()
        self.thread.join()
        return sum(self.samples) / len(self.samples) / 100 if self.samples else None


def run_set(
    device: Device, jobs: Sequence[Job], cache: Path, settings: EvaluationSettings, **options: Any
) -> tuple[dict[str, Any], list[Done]]:
    """Evaluate all in a pipeline with a build cache that is empty; the numbers, and each Done."""
    with fresh_builds(cache) as folder:
        gate = Gate(folder / "device.lock") if device.target.kind == "cpu" else None
        watch = Utilisation()
        began = time.monotonic()
        with Pipeline(device, cache=folder, settings=settings, gate=gate, **options) as pipeline:
            done = []
            for each in pipeline.evaluate_many(jobs):
                done.append(each)
                print(f"  {time.monotonic() - began:6.1f} s {each.job.name}: {each.evaluation.status}", flush=True)
            seconds = time.monotonic() - began
            parts = shares(list(pipeline.gate.spans), began, began + seconds)
            told = {
                "programs": len(done),
                "stock_options": settings.baselines,
                "seconds": seconds,
                "per_minute": 60 * len(done) / seconds,
                "device": parts,
                "kernel_utilisation": watch.end(),
                "lanes": pipeline.lanes,
                "builders": pipeline.builders,
                "chart": chart(done),
                "verdicts": {each.job.name: verdict_of(each) for each in done},
            }
    return told, done


def verdict_of(each: Done) -> dict[str, Any]:
    """What is kept of one Evaluation."""
    evaluation = each.evaluation
    program = evaluation.timings.get("program")
    return {
        "status": evaluation.status,
        "message": evaluation.message[:300],
        "ms": program.median * 1e3 if program else None,
        "seconds": evaluation.seconds,
        "built_with": evaluation.provenance.get("extensions", ""),
        "memory": evaluation.memory,
    }


@contextlib.contextmanager
def fresh_builds(cache: Path) -> Iterator[Path]:
    """The cache with what is known of tasks, and without any build."""
    for kind in ("programs", "libraries", "kernels", "scratch", "locks"):
        shutil.rmtree(cache / kind, ignore_errors=True)
    yield cache


def settings_of(visit: Visit) -> EvaluationSettings:
    """The screen tier's defaults; ``--no-baselines`` leaves the stock options out."""
    return EvaluationSettings(baselines=not visit.options.no_baselines)


def cpu(visit: Visit) -> None:
    """Slice (d): the CPU path, one by one and in the pipeline, once the stock options are compiled and timed."""
    device = detect("cpu")
    tasks = tasks_of(visit, device)
    if not visit.options.no_baselines:
        measure_stock(visit, device, tasks, "cpu prepare")
    if visit.left:
        return
    members = list(large("cpu"))[: visit.options.count or 30]
    jobs = jobs_of(members, tasks)
    for way in visit.items("cpu", ["one by one", "pipeline"], needs=60.0):
        if way == "pipeline":
            told, _ = run_set(device, jobs, visit.cache, settings_of(visit))
            visit.results.put("cpu", way, told)
            continue
        verdicts: dict[str, Any] = {}
        with fresh_builds(visit.cache) as folder, contextlib.ExitStack() as stack:
            began = time.monotonic()
            open_: dict[str, Evaluator] = {}
            for job in jobs:
                if job.task.digest not in open_:
                    evaluator = Evaluator(job.task, job.facts, device, cache=folder, settings=settings_of(visit))
                    open_[job.task.digest] = stack.enter_context(evaluator)
                verdicts[job.name] = open_[job.task.digest].evaluate(job.program).status
                print(f"  {time.monotonic() - began:6.1f} s {job.name}: {verdicts[job.name]}", flush=True)
            seconds = time.monotonic() - began
        told = {"programs": len(jobs), "seconds": seconds, "per_minute": 60 * len(jobs) / seconds, "verdicts": verdicts}
        visit.results.put("cpu", way, told | {"stock_options": not visit.options.no_baselines})


def prepare(visit: Visit) -> None:
    """What is done once per task and kept."""
    device = detect("cuda")
    ready(visit, device, tasks_of(visit, device))


def ready(visit: Visit, device: Device, tasks: dict[str, tuple[Task, TaskFacts]]) -> bool:
    """Whether what is done once per task is done on this machine, in this cache: the stock options' times, and one
    evaluation, in which trivial answers are tried. Does what there is time for."""
    if not visit.options.no_baselines:
        measure_stock(visit, device, tasks, "prepare")
    once = visit.cache / "once"
    once.mkdir(exist_ok=True)
    fresh = [name for name, (task, _) in tasks.items() if not (once / task.digest).exists()]
    if fresh and time.monotonic() + ONCE_S > visit.until:
        visit.left += 1
    elif fresh:
        first = {each.spec.name: each for each in reversed(list(large("cuda")))}
        run_set(device, jobs_of([first[name] for name in fresh], tasks), visit.cache, settings_of(visit))
        for name in fresh:
            (once / tasks[name][0].digest).touch()
    return not visit.left


def measure_stock(visit: Visit, device: Device, tasks: dict[str, tuple[Task, TaskFacts]], slice_: str) -> None:
    """Every task's stock options, kept in the cache; what another cache was told does not count."""
    stock = visit.cache / "stock"
    stock.mkdir(exist_ok=True)
    for name, (task, facts) in tasks.items():
        if (stock / task.digest).exists() and not visit.options.again:
            continue
        if time.monotonic() + 60.0 > visit.until:
            visit.left += 1
            continue
        began = time.monotonic()
        with Evaluator(task, facts, device, cache=visit.cache, settings=settings_of(visit)) as evaluator:
            timings = evaluator.baselines("screen")
        told = {option: timing.median * 1e3 for option, timing in timings.items()}
        visit.results.put(slice_, name, {"seconds": time.monotonic() - began, "ms": told})
        (stock / task.digest).touch()


def compare(visit: Visit) -> None:
    """Slice (b), first half: twenty programs, ours and KernelBench's harness with its pre-compilation."""
    device = detect("cuda")
    tasks = tasks_of(visit, device)
    members = compared()
    if not ready(visit, device, tasks):
        return
    for _ in visit.items("compare", ["ours"], needs=150.0):
        told, _ = run_set(device, jobs_of(members, tasks), visit.cache, settings_of(visit))
        visit.results.put("compare", "ours", told)
    theirs(visit, members, tasks)


def theirs(visit: Visit, members: Sequence[Member], tasks: dict[str, tuple[Task, TaskFacts]]) -> None:
    """KernelBench's harness over the same programs: all compiled side by side, then judged one after the other."""
    folder = visit.cache / "kernelbench"
    root = visit.options.kernelbench
    must(root is not None, "name a checkout of KernelBench: --kernelbench")
    files = {}
    for number, member in enumerate(members):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        (place / "program.py").write_text(member.program.files["program.py"])
        (place / "task.py").write_text(tasks[member.spec.name][0].source)
        files[member.name] = place

    def step(what: str, place: Path, limit: float) -> dict[str, Any]:
        answer = place / f"{what}.json"
        answer.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / "kernelbench_batch.py"), what, "--root", str(root)]
        for name in ("program", "task"):
            command += [f"--{name}", str(place / f"{name}.py")]
        command += ["--build", str(place / "build"), "--answer", str(answer)]
        began = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
            text = done.stderr[-300:]
        except subprocess.TimeoutExpired:
            text = f"longer than {limit:.0f} s"
        told = json.loads(answer.read_text()) if answer.is_file() else {"verdict": "no verdict", "message": text}
        return told | {"seconds": time.monotonic() - began}

    built = all((place / "compile.json").is_file() for place in files.values())
    if not built and visit.results.has("compare", "kernelbench compile"):
        # Another machine's, or another cache's: whoever judges would compile alone.
        del visit.results.all["compare"]["kernelbench compile"]
        visit.results.all.pop("kernelbench", None)
    for _ in visit.items("compare", ["kernelbench compile"], needs=200.0):
        for place in files.values():
            shutil.rmtree(place / "build", ignore_errors=True)
        began = time.monotonic()
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            answers = list(pool.map(lambda place: step("compile", place, 900), files.values()))
        told = dict(zip(files, answers, strict=True))
        visit.results.put("compare", "kernelbench compile", {"seconds": time.monotonic() - began, "each": told})
    for name in visit.items("kernelbench", files, needs=JUDGE_S):
        for lock in (files[name] / "build").rglob("lock"):
            lock.unlink()  # of one that was killed while it built: the next would wait for it
        visit.results.put("kernelbench", name, step("judge", files[name], 300))


def hundred(visit: Visit) -> None:
    """Slice (b), second half."""
    device = detect("cuda")
    tasks = tasks_of(visit, device)
    if not ready(visit, device, tasks):
        return
    for _ in visit.items("hundred", ["ours"], needs=min(420.0, 30.0 + 4 * (visit.options.count or 1000))):
        jobs = jobs_of(list(large("cuda"))[: visit.options.count or None], tasks)
        told, _ = run_set(device, jobs, visit.cache, settings_of(visit))
        visit.results.put("hundred", "ours", told)


def workers(visit: Visit) -> None:
    """Slice (c): programs of a few light tasks with 1 to 16 cores, all processes bound to them; fewer where few cores
    take long."""
    device = detect("cuda")
    tasks = {name: each for name, each in tasks_of(visit, device).items() if name in LIGHT}
    if not ready(visit, device, tasks):
        return
    members = [member for member in large("cuda") if member.spec.name in LIGHT]
    every = sorted(os.sched_getaffinity(0))
    names = [str(count) for count in CORES if count <= len(every)]
    for name in visit.items("workers", reversed(names), needs=150.0):
        os.sched_setaffinity(0, every[: int(name)])
        try:
            jobs = jobs_of(members[: visit.options.count or LIGHT_PROGRAMS[int(name)]], tasks)
            lanes = {"lanes": max(1, min(8, int(name) // 2)), "builders": max(1, int(name) // 2)}
            told, _ = run_set(device, jobs, visit.cache, settings_of(visit), **lanes)
            visit.results.put("workers", name, told)
        finally:
            os.sched_setaffinity(0, every)


def tune(visit: Visit) -> None:
    """Variants of one kernel compiled, checked and timed."""
    import numpy as np

    from stitchcuda.evaluation.nvrtc_plan import KernelProgram
    from stitchcuda.evaluation.nvrtc_tune import Tuner

    source = """extern "C" __global__ void scale(const float* x, float* y, long long n) {
      const long long first = (blockIdx.x * (long long)BLOCK + threadIdx.x) * EACH;
      for (int k = 0; k < EACH; ++k) if (first + k < n) y[first + k] = 3.f * x[first + k];
    }"""
    launch = {
        "kernel": "scale",
        "grid": ["ceil_div(n, BLOCK * EACH)", 1, 1],
        "block": ["BLOCK", 1, 1],
        "arguments": [{"buffer": "x"}, {"buffer": "y"}, {"value": "n", "dtype": "int64"}],
    }
    buffers = {"x": {"elements": "n", "role": "input"}, "y": {"elements": "n", "role": "output"}}
    plan = {"buffers": buffers, "launches": [launch]}
    variants = []
    for block in range(32, 1025, 32):
        for each in (1, 2, 4, 8):
            code = KernelSource(source=source, kernels=("scale",), defines={"BLOCK": block, "EACH": each})
            variants.append(KernelProgram.model_validate({"code": code, "plan": plan, "name": f"{block} {each}"}))
    # Small enough that comparing answers on a processor is not what is measured.
    x = np.random.default_rng(1).standard_normal(1 << 22, dtype=np.float32)
    for name in visit.items("tune", ["variants"], needs=90.0):
        options: dict[str, Any] = {"sizes": {"n": x.size}, "inputs": {"x": x}, "expected": {"y": 3 * x}}
        with Tuner(detect("cuda").target.arch, **options) as tuner:
            list(tuner.run(variants[:1]))  # starts its processes
            began = time.monotonic()
            told = list(tuner.run(variants))
            seconds = time.monotonic() - began
        outcomes = {outcome: sum(each.outcome == outcome for each in told) for outcome in {e.outcome for e in told}}
        best = min(told, key=lambda each: each.seconds)
        visit.results.put(
            "tune",
            name,
            {
                "variants": len(told),
                "seconds": seconds,
                "per_minute": 60 * len(told) / seconds,
                "outcomes": outcomes,
                "best": f"{best.program.name}: {best.message}",
            },
        )


SLICES: dict[str, Callable[[Visit], None]] = {
    "builds": builds,
    "cpu": cpu,
    "prepare": prepare,
    "compare": compare,
    "hundred": hundred,
    "workers": workers,
    "tune": tune,
}


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", choices=[*SLICES, "page"], required=True)
    root = os.environ.get("KERNELBENCH_ROOT")
    parser.add_argument("--kernelbench", type=Path, default=Path(root) if root else None, help="a checkout of it")
    parser.add_argument("--slice-seconds", type=float, default=480.0)
    cores = len(os.sched_getaffinity(0))
    name = f"evaluation_throughput_{cores}_cores"
    parser.add_argument("--results", type=Path, default=HERE / "results" / f"{name}.json")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "stitchcuda-throughput")
    parser.add_argument("--count", type=int, default=0, help="programs of a set, fewer than its own number")
    parser.add_argument("--again", action="store_true", help="measure what was measured already")
    parser.add_argument("--no-baselines", action="store_true", help="without the stock options")
    parser.add_argument("--load-inline", action="store_true", help="builds: also torch's own load_inline (needs a GPU)")
    options = parser.parse_args()
    visit = Visit(options)
    if options.slice == "page":
        write_text(options.results.with_suffix(".md"), page(visit.results.all))
        return 0
    print(f"{options.slice} on {platform.node()}", flush=True)
    SLICES[options.slice](visit)
    write_text(options.results.with_suffix(".md"), page(visit.results.all))
    return UNFINISHED if visit.left else 0


if __name__ == "__main__":
    raise SystemExit(main())
