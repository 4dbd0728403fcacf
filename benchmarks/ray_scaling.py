"""The mixed evaluation set of ``evaluation_throughput.py`` over Ray on 1, 2, 4 and 8 GPUs: evaluations a minute, the
share of time that GPUs idle, and whether every verdict is one GPU's.

    python benchmarks/ray_scaling.py --kernelbench CHECKOUT [--workers 1,2] [--count 100] [--slice-seconds 480]
    python benchmarks/ray_scaling.py --kernelbench CHECKOUT --target cpu --workers 1,2 --count 10

On GPUs each gets its share of the machine's cores, whether the others work or not, as if it came with a node of its
own. ``--target cpu`` simulates nodes on this machine, each with one CPU and a cache of its own: it shows that all runs
and that verdicts agree; its rates say nothing, since the nodes share the cores. Facts and stock options are measured
once, before any clock counts; programs are built anew each time. A slice goes on where an earlier one stopped, begins
nothing that may not end within ``--slice-seconds``, and exits 0 when nothing is left, 3 otherwise; 1 says that verdicts
differ, or that twice the GPUs gave less than 1.8 times the evaluations. Needs ``pip install 'stitchcuda[ray]'``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent / "throughput_programs"))
sys.path.insert(0, str(Path(__file__).parent))

from evaluation_throughput import Results, fresh_builds, tasks_of
from programs import large
from provenance import write_text

from stitchcuda.compute.devices import find_devices, visible_gpus
from stitchcuda.compute.model import Job, Outcome, Wanted
from stitchcuda.compute.ray_cluster import RayCompute
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Task, TaskFacts

HERE = Path(__file__).parent
UNFINISHED = 3
LEAST_GAIN = 1.8
"""From one GPU to two."""
STORE_BYTES = 100 << 20
START_SECONDS = 180.0
EVALUATION_SECONDS = 10.0
"""Of one evaluation on one GPU, about: what a slice must have left for a set."""

Known = Mapping[str, tuple[Task, TaskFacts]]


# ---- Clusters ----


@contextlib.contextmanager
def cluster(target: Literal["cuda", "cpu"], workers: int) -> Iterator[None]:
    """A Ray cluster on this machine in which ``workers`` devices work, and this process connected to it."""
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if target == "cuda":
        with share_of_cores(workers, len(visible_gpus())) as cores:
            ray.init(
                num_cpus=cores, num_gpus=workers, include_dashboard=False, object_store_memory=STORE_BYTES, **quiet
            )
            try:
                yield
            finally:
                ray.shutdown()
        return
    from ray.cluster_utils import Cluster

    before = os.environ.get("STITCHCUDA_CACHE")
    folder = tempfile.TemporaryDirectory(prefix="stitchcuda-nodes-")
    nodes: Any = Cluster()
    try:
        for number in range(workers):
            # A cache of its own, for within one cache one piece of work at a time has the CPU.
            os.environ["STITCHCUDA_CACHE"] = f"{folder.name}/node{number}"
            nodes.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
        ray.init(address=nodes.address, **quiet)
        yield
    finally:
        ray.shutdown()
        nodes.shutdown()
        folder.cleanup()
        os.environ.pop("STITCHCUDA_CACHE", None)
        if before is not None:
            os.environ["STITCHCUDA_CACHE"] = before


@contextlib.contextmanager
def share_of_cores(workers: int, gpus: int) -> Iterator[int]:
    """Keep this process and what it starts to the cores that so many of the machine's GPUs are due; their number."""
    every = sorted(os.sched_getaffinity(0))
    mine = every[: max(1, len(every) * workers // max(gpus, workers))]
    os.sched_setaffinity(0, mine)
    try:
        yield len(mine)
    finally:
        os.sched_setaffinity(0, every)


class Utilisation:
    """Share of time in which any kernel ran, for each of the first GPUs, as NVML samples it."""

    def __init__(self, gpus: int) -> None:
        self.samples: list[list[int]] = [[] for _ in range(gpus)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if library.nvmlInit_v2():
            return
        handles = [ctypes.c_void_p() for _ in self.samples]
        for number, handle in enumerate(handles):
            if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
                return
        rates = (ctypes.c_uint * 2)()
        while not self._stop.wait(0.1):
            for handle, samples in zip(handles, self.samples, strict=True):
                if library.nvmlDeviceGetUtilizationRates(handle, rates) == 0:
                    samples.append(rates[0])

    def end(self) -> list[float] | None:
        """The mean of each, 0 to 1; None where NVML tells nothing."""
        self._stop.set()
        self._thread.join()
        return [sum(each) / len(each) / 100 for each in self.samples] if all(self.samples) else None


# ---- Measuring ----


def jobs_of(device: Device, tasks: Known, count: int, settings: EvaluationSettings) -> dict[str, Job]:
    """The set as jobs, by the programs' names."""
    kind = device.target.kind
    wanted = Wanted(kind=kind, name=device.name)
    jobs = {}
    for member in list(large(kind))[:count]:
        task, facts = tasks[member.spec.name]
        program = member.program
        fields: dict[str, Any] = {"wanted": wanted, "task": task, "facts": facts, "device": device}
        jobs[member.name] = Job(kind="evaluate", program=program, settings=settings, **fields)
    return jobs


def ready(place: RayCompute, wanted: Wanted, workers: int) -> None:
    """Wait until every device has a worker process that answers. Raises SystemExit when they do not come."""
    until = time.monotonic() + START_SECONDS
    while len(place.capacity().devices) < workers:
        if time.monotonic() > until:
            raise SystemExit(f"{workers} workers did not come within {START_SECONDS:.0f} s; {place.problem}")
        said(place.submit(Job(kind="probe", wanted=wanted)).result(START_SECONDS))
        time.sleep(0.5)
    for future in [place.submit(Job(kind="probe", wanted=wanted, pause_s=1.0)) for _ in range(workers)]:
        said(future.result(START_SECONDS))


def prepare(device: Device, tasks: Known, workers: int, cache: Path, settings: EvaluationSettings) -> Device:
    """Ceilings, and every task's stock options, kept in the cache; the device with its ceilings."""
    kind = device.target.kind
    wanted = Wanted(kind=kind, name=device.name)
    with cluster(kind, workers), RayCompute(cache=cache) as place:
        found = said(place.submit(Job(kind="ceilings", wanted=wanted)).result()).device
        assert found is not None
        if settings.baselines:
            fields: dict[str, Any] = {"wanted": wanted, "device": found, "settings": settings}
            futures = [
                place.submit(Job(kind="baselines", task=task, facts=facts, **fields)) for task, facts in tasks.values()
            ]
            for future in futures:
                said(future.result())
    return found


def said(outcome: Outcome) -> Outcome:
    """A measurement that failed is none."""
    if outcome.failure is not None:
        raise SystemExit(f"{outcome.kind}: {outcome.failure.reason}: {outcome.failure.message}")
    return outcome


def measure(target: Literal["cuda", "cpu"], workers: int, jobs: Mapping[str, Job], cache: Path) -> dict[str, Any]:
    """The whole set on so many workers, from the first submission to the last result."""
    wanted = next(iter(jobs.values())).wanted
    # Simulated nodes are told apart by their caches, so that they do not take turns at one CPU.
    shared = None if target == "cpu" else cache
    with fresh_builds(cache), cluster(target, workers), RayCompute(cache=shared) as place:
        ready(place, wanted, workers)
        watch = Utilisation(workers if target == "cuda" else 0)
        began = time.monotonic()
        futures = {name: place.submit(job) for name, job in jobs.items()}
        outcomes = {}
        for name, future in futures.items():
            outcomes[name] = future.result()
        seconds = time.monotonic() - began
        utilisation = watch.end()
    return tell(outcomes, workers, seconds) | {"kernel_utilisation": utilisation}


def tell(outcomes: Mapping[str, Outcome], workers: int, seconds: float) -> dict[str, Any]:
    """What is kept of one set: rates, how busy each worker was, and every verdict."""
    busy: dict[str, float] = {}
    for outcome in outcomes.values():
        if outcome.worker is not None:
            busy[outcome.worker.name] = busy.get(outcome.worker.name, 0.0) + outcome.run_seconds
    return {
        "workers": workers,
        "programs": len(outcomes),
        "seconds": seconds,
        "per_minute": 60 * len(outcomes) / seconds,
        "idle_share": 1 - sum(busy.values()) / (workers * seconds),
        "busy_seconds": sorted(busy.values()),
        "begun_again": sum(outcome.attempts - 1 for outcome in outcomes.values()),
        "verdicts": {name: verdict(outcome) for name, outcome in outcomes.items()},
    }


def verdict(outcome: Outcome) -> str:
    """In one word; what the place failed at is no program's."""
    if outcome.evaluation is not None:
        return outcome.evaluation.status
    return f"failed: {outcome.failure.reason}" if outcome.failure is not None else "failed"


# ---- What it says ----


def differing(sets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Programs whose verdicts are not those of the smallest set of workers, and what was said of each."""
    numbers = sorted(sets, key=int)
    first = sets[numbers[0]]["verdicts"] if numbers else {}
    lines = []
    for number in numbers[1:]:
        for name, status in sets[number]["verdicts"].items():
            if name in first and status != first[name]:
                lines.append(f"{name}: {first[name]} on {numbers[0]}, {status} on {number}")
    return lines


def gain(sets: Mapping[str, Mapping[str, Any]], number: str) -> float | None:
    """Evaluations a minute against one worker's; None without that."""
    return sets[number]["per_minute"] / sets["1"]["per_minute"] if "1" in sets else None


def page(results: Mapping[str, Any], target: str) -> str:
    """For people."""
    sets: Mapping[str, Mapping[str, Any]] = results.get(target, {})
    about = results.get("provenance", {}).get(target, {})
    what = "GPUs" if target == "cuda" else "simulated nodes"
    machine = about.get("gpu") or about.get("cpu", "")
    lines = [
        f"# Evaluations over Ray on several {what}",
        "",
        f"`benchmarks/ray_scaling.py --target {target}`, {about.get('date', '')}, {machine}, {about.get('cores', '')} "
        f"cores, torch {about.get('torch', '')}, commit {about.get('commit', '')}.",
        "",
    ]
    if target == "cpu":
        lines += ["The nodes share this machine's cores: rates say nothing here, verdicts do.", ""]
    lines += [
        f"| {what} | programs | evaluations a minute | against one | idle, of the workers' time | kernels run |",
        "|---|---|---|---|---|---|",
    ]
    for number in sorted(sets, key=int):
        row, more = sets[number], gain(sets, number)
        kernels = row.get("kernel_utilisation")
        lines.append(
            f"| {number} | {row['programs']} | {row['per_minute']:.1f} | {f'{more:.2f}x' if more else ''} | "
            f"{row['idle_share']:.1%} | {', '.join(f'{share:.0%}' for share in kernels) if kernels else ''} |"
        )
    problems = differing(sets)
    agreed = "Every verdict is the same on all." if not problems else "Verdicts that differ:"
    return "\n".join([*lines, "", agreed if len(sets) > 1 else "", *(f"- {line}" for line in problems)]) + "\n"


def ending(results: Mapping[str, Any], target: str, left: Sequence[int]) -> int:
    """The exit status."""
    sets = results.get(target, {})
    if differing(sets):
        return 1
    twice = gain(sets, "2") if "2" in sets else None
    if target == "cuda" and twice is not None and twice < LEAST_GAIN:
        return 1
    return UNFINISHED if left else 0


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.environ.get("KERNELBENCH_ROOT")
    parser.add_argument("--kernelbench", type=Path, default=Path(root) if root else None, help="a checkout of it")
    parser.add_argument("--target", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--workers", default="1,2", help="numbers of GPUs, or of simulated nodes")
    parser.add_argument("--count", type=int, default=100, help="programs of the set")
    parser.add_argument("--slice-seconds", type=float, default=480.0)
    parser.add_argument("--again", action="store_true", help="measure what was measured already")
    parser.add_argument("--no-baselines", action="store_true", help="without the stock options (always so on cpu)")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "stitchcuda-ray-scaling")
    parser.add_argument("--results", type=Path, default=None)
    options = parser.parse_args()
    target: Literal["cuda", "cpu"] = options.target
    until = time.monotonic() + options.slice_seconds
    path: Path = options.results or HERE / "results" / f"ray_scaling_{target}.json"
    results, cache = Results(path), options.cache.absolute()
    cache.mkdir(parents=True, exist_ok=True)
    device = find_devices(target)[0][0]
    wanted = [int(word) for word in options.workers.split(",")]
    there = len(visible_gpus()) if target == "cuda" else max(wanted)
    left = [n for n in wanted if n <= there and (options.again or not results.has(target, str(n)))]
    if left:
        settings = EvaluationSettings(baselines=target == "cuda" and not options.no_baselines)
        tasks = tasks_of(SimpleNamespace(options=options, cache=cache), device)  # type: ignore[arg-type]
        device = prepare(device, tasks, there if target == "cuda" else 1, cache, settings)
        jobs = jobs_of(device, tasks, options.count, settings)
        for number in sorted(left, reverse=True):  # the one that all rests on, one worker's, takes longest
            if time.monotonic() + EVALUATION_SECONDS * len(jobs) / number > until:
                continue
            results.put(target, str(number), measure(target, number, jobs, cache))
            left.remove(number)
        write_text(path.with_suffix(".md"), page(results.all, target))
    print(page(results.all, target))
    return ending(results.all, target, left)


if __name__ == "__main__":
    raise SystemExit(main())
