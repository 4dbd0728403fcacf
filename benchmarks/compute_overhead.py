"""What a place costs a job besides its work, and what ten thousand queued jobs cost the orchestrator's memory.

    python benchmarks/compute_overhead.py [--jobs 200] [--queued 10000] [--only local,spool,ray]

Each place gets probes, which go through everything that an evaluation goes through but the evaluation: submission,
queue, worker process, result. ``alone`` submits one and waits for it; ``stream`` submits all and divides the time by
their number. Queued jobs are real evaluations with a task and a program, each of its own, that nobody works on. Results
go to ``benchmarks/results/compute_overhead.{json,md}``, and exit status 1 says that a limit was missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "compute_overhead"
LIMITS = {"local": 0.020, "spool": 0.100, "ray": 0.030}
"""Seconds a job, alone: median."""
MEMORY_LIMIT = 500 << 20
PROGRAM_BYTES = 8_000


@contextmanager
def opened(where: str, folder: Path) -> Iterator[Any]:
    """A place, and for a spool a worker on it."""
    from stitchcuda.compute import open_compute

    cache = folder / "cache"
    worker = None
    if where == "spool":
        where = f"spool:{folder / 'spool'}"
    try:
        with open_compute(where, cache=cache) as place:
            if where.startswith("spool"):
                command = [sys.executable, "-m", "stitchcuda.cli.main", "worker", "--spool", str(folder / "spool")]
                environment = os.environ | {"STITCHCUDA_CACHE": str(cache)}
                worker = subprocess.Popen([*command, "--device", "cpu", "--quiet"], env=environment)
            yield place
    finally:
        if worker is not None:
            worker.terminate()
            worker.wait()


def overhead(where: str, jobs: int) -> dict[str, float]:
    """Seconds a job at one place."""
    from stitchcuda.compute.model import Job, Wanted

    def probe() -> Job:
        return Job(kind="probe", wanted=Wanted(kind="cpu"))

    with tempfile.TemporaryDirectory() as folder, opened(where, Path(folder)) as place:
        began = time.perf_counter()
        place.submit(probe()).result()
        start = time.perf_counter() - began
        alone = []
        for _ in range(jobs):
            began = time.perf_counter()
            place.submit(probe()).result()
            alone.append(time.perf_counter() - began)
        began = time.perf_counter()
        futures = [place.submit(probe()) for _ in range(jobs)]
        for future in futures:
            future.result()
        stream = (time.perf_counter() - began) / jobs
    cuts = statistics.quantiles(alone, n=10)
    return {"first": start, "median": statistics.median(alone), "p10": cuts[0], "p90": cuts[-1], "stream": stream}


def memory(where: str, queued: int) -> dict[str, float]:
    """Resident bytes that an orchestrator with so many queued jobs grew by, measured in a process of its own."""
    code = f"from benchmarks.compute_overhead import queue; queue({where!r}, {queued})"
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def queue(where: str, queued: int) -> None:
    """Submit evaluations that nobody works on, and print what this process holds."""
    from stitchcuda.compute.local import LocalCompute
    from stitchcuda.compute.model import Job, Wanted
    from stitchcuda.compute.queueing import Waiting
    from stitchcuda.compute.spool import SpoolCompute
    from stitchcuda.program.model import Program
    from stitchcuda.task.model import Target, Task

    task = Task(name="t", origin="t", source="# reference\n" * 400, target=Target(kind="cpu", arch="native"))

    def job(number: int) -> Job:
        text = f"# program {number}\n" + "x = 1  # a line of a program\n" * (PROGRAM_BYTES // 29)
        return Job(kind="evaluate", wanted=Wanted(kind="cpu"), task=task, program=Program(files={"program.py": text}))

    with tempfile.TemporaryDirectory() as folder:
        if where == "spool":
            place: Any = SpoolCompute(Path(folder) / "spool")
        else:
            # Ray's orchestrator holds jobs in the same queue. A probe that sleeps keeps the only worker from them.
            place = LocalCompute(cache=Path(folder))
            place.submit(Job(kind="probe", wanted=Wanted(kind="cpu"), pause_s=3600, priority=0))
            time.sleep(1)
            assert isinstance(place._waiting, Waiting)
        before = _resident()
        began = time.perf_counter()
        futures = [place.submit(job(number)) for number in range(queued)]
        seconds = (time.perf_counter() - began) / queued
        time.sleep(3)
        grown, total = _resident() - before, _resident()
        print(json.dumps({"grown_bytes": grown, "resident_bytes": total, "submit_seconds": seconds}))
        assert not any(future.done() for future in futures)
        place.close()


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def provenance() -> dict[str, Any]:
    """When and where."""
    from stitchcuda.compute.model import Versions
    from stitchcuda.hardware.detect import detect

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    device = detect("cpu")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{device.name}, {device.multiprocessors} cores, {platform.platform()}",
        "load_before": os.getloadavg()[0],
        "versions": Versions().model_dump() | {"ray": _ray_version()},
        "commit": commit,
        "command": "python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _ray_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ray")
    except PackageNotFoundError:
        return ""


def table(results: dict[str, Any]) -> str:
    """For people."""
    about = results["provenance"]
    lines = [
        "# What a place costs a job besides its work",
        "",
        f"`{about['command']}`, {about['date']}, {about['machine']}, load before: {about['load_before']:.1f}, "
        f"stitchcuda {about['versions']['stitchcuda']}, torch {about['versions']['torch']}, "
        f"Python {about['versions']['python']}, Ray {about['versions']['ray']}, commit {about['commit'][:12]}.",
        "",
        "| place | one alone: median (p10 to p90) | in a stream, each | first job | limit |",
        "|---|---|---|---|---|",
    ]
    for where, row in results["overhead"].items():
        lines.append(
            f"| {where} | {row['median'] * 1e3:.1f} ms ({row['p10'] * 1e3:.1f} to {row['p90'] * 1e3:.1f}) | "
            f"{row['stream'] * 1e3:.1f} ms | {row['first']:.2f} s | {LIMITS[where] * 1e3:.0f} ms |"
        )
    lines += ["", "| orchestrator of | queued jobs | grew by | resident | submission, each |", "|---|---|---|---|---|"]
    for where, row in results["memory"].items():
        lines.append(
            f"| {where} | {results['queued']:,} | {row['grown_bytes'] / 2**20:.0f} MiB | "
            f"{row['resident_bytes'] / 2**20:.0f} MiB | {row['submit_seconds'] * 1e3:.2f} ms |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, write, and say whether the limits were kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--only", default="local,spool,ray")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted = options.only.split(",")
    if "ray" in wanted and not _ray_version():
        print("Ray is not installed; left out", file=sys.stderr)
        wanted.remove("ray")
    about = provenance()
    results: dict[str, Any] = {"provenance": about, "jobs": options.jobs, "queued": options.queued}
    results["overhead"] = {where: overhead(where, options.jobs) for where in wanted}
    results["memory"] = {where: memory(where, options.queued) for where in wanted if where != "ray"}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
    options.out.with_suffix(".md").write_text(table(results))
    print(table(results))
    missed = [where for where, row in results["overhead"].items() if row["median"] > LIMITS[where]]
    missed += [where for where, row in results["memory"].items() if row["resident_bytes"] > MEMORY_LIMIT]
    print(f"over the limit: {', '.join(missed)}" if missed else "all within the limits")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
