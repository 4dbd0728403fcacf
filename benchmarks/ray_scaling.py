"""The mixed evaluation set of ``evaluation_throughput.py`` over Ray on 1, 2, 4 and 8 GPUs: evaluations a minute, the
share of time that GPUs idle, where the seconds go, and whether every verdict is one GPU's.

    python benchmarks/ray_scaling.py --kernelbench CHECKOUT [--workers 1,2] [--count 30] [--slice-seconds 480]
    python benchmarks/ray_scaling.py --kernelbench CHECKOUT --target cpu --workers 1,2 --count 10

On GPUs each gets its share of the machine's cores, whether the others work or not, as if it came with a node of its
own. ``--target cpu`` simulates nodes on this machine, each with one CPU and a cache of its own: it shows that all runs
and that verdicts agree; its rates say nothing, since the nodes share the cores. Facts and stock options are measured
once, before any clock counts, and ``--no-baselines`` leaves the options out, which take longest.

Programs are submitted task by task, as a search and a training step do, the largest tasks first. The clock counts from
the first submission to the last result. By then every worker has imported torch; no task is open anywhere and no
program is built, so that any number of workers pays for both alike.

The most workers go first. A set is begun where there is time for it, going by how long another took; past
``--slice-seconds``, or interrupted, it ends in order, and what it has done by then is kept apart. A slice goes on where
an earlier one stopped, and exits 0 when nothing is left, 3 otherwise; 1 says that verdicts differ, or that twice the
GPUs gave less than 1.8 times the evaluations. Needs ``pip install 'stitchcuda[ray]'``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

sys.path.insert(0, str(Path(__file__).parent / "throughput_programs"))
sys.path.insert(0, str(Path(__file__).parent))

from evaluation_throughput import Results, fresh_builds, tasks_of
from programs import large
from provenance import write_text

from stitchcuda.compute.devices import find_devices, visible_gpus
from stitchcuda.compute.model import Job, Outcome, Wanted
from stitchcuda.compute.ray_cluster import RayCompute
from stitchcuda.evaluation.pipeline import memory_need
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Target, Task, TaskFacts

HERE = Path(__file__).parent
UNFINISHED = 3
LEAST_GAIN = 1.8
"""From one GPU to two."""
STORE_BYTES = 100 << 20
START_SECONDS = 180.0
EVALUATION_SECONDS = 4.0
"""Of one evaluation on one GPU, its builds and its share of an opening included, where no set was measured: 7.8 on an
H200 at commit d09e99b, before screens took half as long."""
SPARE = 1.1
"""Times what a set should take, going by another."""
END_SECONDS = 15.0
"""Of a slice, for a set that is cut off to end in order."""

WARM_TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(8, 8)]

def get_init_inputs():
    return []
"""

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
    """The set as jobs, by the programs' names, task by task, the largest tasks first: what takes longest is not what
    one device is left with at the end."""
    kind = device.target.kind
    wanted = Wanted(kind=kind, name=device.name)
    members = list(large(kind))[:count]
    order = sorted(tasks, key=lambda name: memory_need(*tasks[name]), reverse=True)
    jobs = {}
    for member in sorted(members, key=lambda member: order.index(member.spec.name)):
        task, facts = tasks[member.spec.name]
        program = member.program
        fields: dict[str, Any] = {"wanted": wanted, "task": task, "facts": facts, "device": device}
        jobs[member.name] = Job(kind="evaluate", program=program, settings=settings, **fields)
    return jobs


def ready(place: RayCompute, wanted: Wanted, target: Target, workers: int) -> None:
    """Wait until every device has a worker process that has imported torch, and has none of the set's tasks open.
    Raises SystemExit when they do not come."""
    until = time.monotonic() + START_SECONDS
    task = Task(name="warm", origin="ray_scaling", source=WARM_TASK, target=target)
    warm: set[str] = set()
    while len(warm) < workers:
        if time.monotonic() > until:
            raise SystemExit(f"{workers} workers did not come within {START_SECONDS:.0f} s; {place.problem}")
        # As many as workers: each takes one, once all are there.
        for future in [place.submit(Job(kind="inspect", wanted=wanted, task=task)) for _ in range(workers)]:
            outcome = said(future.result(START_SECONDS))
            assert outcome.worker is not None
            warm.add(outcome.worker.name)
        time.sleep(0.1)


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


def measure(
    target: Literal["cuda", "cpu"],
    workers: int,
    jobs: Mapping[str, Job],
    cache: Path,
    until: float,
    keep: Callable[[dict[str, Any]], None],
) -> bool:
    """The set on so many workers, from the first submission to the last result, or to ``until`` or an interrupt; kept
    while the cluster still stands, which may take long to end. Whether all of it was done."""
    first = next(iter(jobs.values()))
    assert first.task is not None
    # Simulated nodes are told apart by their caches, so that they do not take turns at one CPU.
    shared = None if target == "cpu" else cache
    with fresh_builds(cache), cluster(target, workers), RayCompute(cache=shared) as place:
        ready(place, first.wanted, first.task.target, workers)
        watch = Utilisation(workers if target == "cuda" else 0)
        began = time.monotonic()
        futures = {name: place.submit(job) for name, job in jobs.items()}
        try:
            wait(futures.values(), timeout=max(0.0, until - began))
        finally:
            seconds = time.monotonic() - began
            outcomes = {name: future.result() for name, future in futures.items() if future.done()}
            keep(tell(outcomes, workers, seconds) | {"kernel_utilisation": watch.end()})
    return len(outcomes) == len(jobs)


def tell(outcomes: Mapping[str, Outcome], workers: int, seconds: float) -> dict[str, Any]:
    """What is kept of one set: rates, how busy each worker was, where the seconds of its jobs went, every verdict."""
    names = sorted({outcome.worker.name for outcome in outcomes.values() if outcome.worker is not None})
    busy, opened = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    stages: Counter[str] = Counter()
    each = {}
    for name, outcome in outcomes.items():
        spent = outcome.evaluation.seconds if outcome.evaluation is not None else {}
        stages.update(spent)
        worker = outcome.worker.name if outcome.worker is not None else None
        if worker is not None:
            busy[worker] += outcome.run_seconds
            opened[worker] += "open" in spent
        each[name] = {
            "worker": names.index(worker) if worker is not None else None,
            "run_seconds": outcome.run_seconds,
            "queue_seconds": outcome.queue_seconds,
            "stages": spent,
        }
    return {
        "workers": workers,
        "programs": len(outcomes),
        "seconds": seconds,
        "per_minute": 60 * len(outcomes) / seconds,
        "idle_share": 1 - sum(busy.values()) / (workers * seconds),
        "busy_seconds": sorted(busy.values()),
        "opened": sorted(opened.values()),
        "stages": dict(stages),
        "begun_again": sum(outcome.attempts - 1 for outcome in outcomes.values()),
        "verdicts": {name: verdict(outcome) for name, outcome in outcomes.items()},
        "jobs": each,
    }


def needed(sets: Mapping[str, Mapping[str, Any]], programs: int, workers: int) -> float:
    """Seconds that a set should take on so many workers: going by those that were measured, or else by what one
    evaluation takes."""
    known = [row["seconds"] * row["workers"] / row["programs"] for row in sets.values()]
    return (SPARE * max(known) if known else EVALUATION_SECONDS) * programs / workers


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
    """Evaluations a minute against one worker's; None without that, or where its set was another."""
    if "1" not in sets or sets["1"]["verdicts"].keys() != sets[number]["verdicts"].keys():
        return None
    return float(sets[number]["per_minute"] / sets["1"]["per_minute"])


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
        f"| {what} | programs | evaluations a minute | against one | idle, of the workers' time | kernels run | "
        "tasks opened, by worker |",
        "|---|---|---|---|---|---|---|",
    ]
    for number in sorted(sets, key=int):
        row, more = sets[number], gain(sets, number)
        kernels = row.get("kernel_utilisation")
        lines.append(
            f"| {number} | {row['programs']} | {row['per_minute']:.1f} | {f'{more:.2f}x' if more else ''} | "
            f"{row['idle_share']:.1%} | {', '.join(f'{share:.0%}' for share in kernels) if kernels else ''} | "
            f"{', '.join(str(count) for count in row['opened'])} |"
        )
    if sets:
        lines += [
            "",
            f"Seconds of all evaluations by stage, some beside each other, and of all jobs, on so many {what}:",
            "",
        ]
    for number in sorted(sets, key=int):
        stages = sorted(sets[number]["stages"].items(), key=lambda stage: -stage[1])
        jobs = sum(job["run_seconds"] for job in sets[number]["jobs"].values())
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages)
        lines.append(f"- {number}: {told}; jobs {jobs:.1f}")
    for number, row in sorted(results.get(f"{target} cut off", {}).items()):
        if number not in sets:
            lines += ["", f"Cut off on {number}: {row['programs']} programs in {row['seconds']:.0f} s."]
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
    parser.add_argument("--count", type=int, default=30, help="programs of the set, which has 100")
    parser.add_argument("--slice-seconds", type=float, default=480.0)
    parser.add_argument("--again", action="store_true", help="measure what was measured already")
    parser.add_argument("--no-baselines", action="store_true", help="without the stock options (always so on cpu)")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "stitchcuda-ray-scaling")
    parser.add_argument("--results", type=Path, default=None)
    options = parser.parse_args()
    for what in (signal.SIGINT, signal.SIGTERM):
        signal.signal(what, interrupt)
    path: Path = options.results or HERE / "results" / f"ray_scaling_{options.target}.json"
    results = Results(path)
    left = [int(word) for word in options.workers.split(",")]
    try:
        work(options, results, left)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", flush=True)
    write_text(path.with_suffix(".md"), page(results.all, options.target))
    print(page(results.all, options.target))
    return ending(results.all, options.target, left)


def interrupt(*_: object) -> NoReturn:
    """End in order, and once: who asks for it may tell a process by its id and by its group."""
    for what in (signal.SIGINT, signal.SIGTERM):
        signal.signal(what, signal.SIG_IGN)
    raise KeyboardInterrupt


def work(options: argparse.Namespace, results: Results, left: list[int]) -> None:
    """Measure the sets for the numbers of workers in ``left`` as far as the time goes; those that were measured, or
    cannot be here, are taken out of it."""
    until = time.monotonic() + options.slice_seconds - END_SECONDS
    target: Literal["cuda", "cpu"] = options.target
    cache: Path = options.cache.absolute()
    cache.mkdir(parents=True, exist_ok=True)
    there = len(visible_gpus()) if target == "cuda" else max(left)
    names = {member.name for _, member in zip(range(options.count), large(target), strict=False)}
    for number in list(left):
        same = results.get(target).get(str(number), {}).get("verdicts", {}).keys() == names
        if number > there or (same and not options.again):
            left.remove(number)
    if not left:
        return
    device = find_devices(target)[0][0]
    settings = EvaluationSettings(baselines=target == "cuda" and not options.no_baselines)
    tasks = tasks_of(SimpleNamespace(options=options, cache=cache), device)  # type: ignore[arg-type]
    device = prepare(device, tasks, there if target == "cuda" else 1, cache, settings)
    jobs = jobs_of(device, tasks, options.count, settings)

    def keep(number: int, told: dict[str, Any]) -> None:
        whole = told["programs"] == len(jobs)
        results.put(target if whole else f"{target} cut off", str(number), told)

    for number in sorted(left, reverse=True):  # the one that all rests on, one worker's, takes longest
        takes = needed(results.get(target), len(jobs), number)
        if time.monotonic() + takes > until:
            print(f"{number}: left for another time, since it takes about {takes:.0f} s", flush=True)
        elif measure(target, number, jobs, cache, until, partial(keep, number)):
            left.remove(number)


if __name__ == "__main__":
    raise SystemExit(main())
