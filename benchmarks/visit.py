"""One visit to a GPU machine: the measurements of this repository in order, as far as the time goes.

    python benchmarks/visit.py --kernelbench CHECKOUT --minutes 9 --state STATE --out OUT    # until exit status 0
    python benchmarks/visit.py --only exploits,audit --minutes 9 --state STATE ...
    python benchmarks/visit.py --side-by-side --minutes 9 --state STATE ...    # one step on each GPU
    python benchmarks/visit.py --list --state STATE

What is run stands in ``visit.toml``. Every step is a script of its own that keeps each finished item at once. A step
that is done is not run again unless the sources changed since, or ``--again`` asks for it. STATE holds what a later
visit goes on from, on this machine or on another one that it is copied to. With ``--out``, STATE, the steps' output and
all result files that changed are packed there as one archive, ``visit.tar.gz``, whatever happened. It measures nothing
itself. Side by side, a step that wants one GPU has one and an equal share of the cores, bound to both; steps that use
every GPU they see have the machine to themselves.

Exit status: 0 all is done, 3 the time is over and steps are left, 1 a step failed, 2 wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from lanes import Lane, gpu_count, lanes_of
from provenance import ROOT, commit, now, write_json

HERE = Path(__file__).parent
UNFINISHED = 3
GRACE_SECONDS = 15.0
"""Between asking a step to stop (SIGINT) and killing its process group."""
REMADE = tuple(f"state/throughput/{name}" for name in ("kernelbench", "programs", "libraries", "kernels", "scratch"))
"""Builds: large, and made anew where they are missing."""
LOOK_SECONDS = 0.5
"""Between looks at how much time is left, of which an interrupt leaves none."""


@dataclass(frozen=True)
class Step:
    """One measurement; the fields are explained at the top of ``visit.toml``."""

    name: str
    about: str
    command: str
    again: str = ""
    least_seconds: float = 60.0
    fails_with: Sequence[int] = ()
    gpus: int = 1
    spreads: bool = False
    series: str = ""


@dataclass
class Visit:
    """Where things are, and until when."""

    steps: list[Step]
    state: Path
    kernelbench: str
    results: Path
    ends: float
    """In ``time.monotonic`` seconds."""
    gpus: int
    guard: threading.Lock = field(default_factory=threading.Lock)
    """Over the journal's file, which steps side by side write."""

    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()

    def journal(self) -> dict[str, dict[str, Any]]:
        """The steps' last ends by name."""
        path = self.state / "visit.json"
        held: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}
        return held

    def is_done(self, step: Step) -> bool:
        """It ended by itself, and the sources are what they were."""
        held = self.journal().get(step.name, {})
        return held.get("status") == "done" and held.get("sources") == sources()

    def arguments(self, step: Step, scratch: str, gpus: int) -> list[str]:
        """The command of this visit, filled in, for a step that sees so many GPUs."""
        held = self.journal().get(step.name, {})
        work = self.state / f"{step.name}-{sources()}"
        begun = held.get("sources") == sources() and held.get("status") != "done"
        begun = begun and (work.exists() or "{work}" not in step.again)
        values: dict[str, object] = {
            "python": sys.executable,
            "kernelbench": self.kernelbench,
            "state": self.state,
            "work": work,
            "scratch": scratch,
            "seconds": int(self.left() - GRACE_SECONDS),
            "results": self.results,
            "gpus": max(gpus, 1),
        }
        return [word.format(**values) for word in shlex.split(step.again if begun and step.again else step.command)]

    def run(self, step: Step, lane: Lane) -> str:
        """Run it and keep how it ended: 'done', 'left' or 'failed'."""
        with tempfile.TemporaryDirectory(prefix="stitchcuda-visit-") as scratch:
            command = lane.pinned(self.arguments(step, scratch, self.gpus if lane.gpu is None else 1))
            began = time.monotonic()
            logs = self.state / "logs"
            logs.mkdir(parents=True, exist_ok=True)
            with open(logs / f"{step.name}.txt", "a") as log:
                print(f"\n$ {shlex.join(command)}    # {now()}, {commit()}", file=log, flush=True)
                code = call(command, lane.environment(), log.fileno(), lambda: self.left() - GRACE_SECONDS)
        status = "done" if code == 0 or code in step.fails_with else "left" if code in (None, UNFINISHED) else "failed"
        entry = {
            "status": status,
            "exit_status": code,
            "seconds": round(time.monotonic() - began, 1),
            "date": now(),
            "commit": commit(),
            "sources": sources(),
        }
        if lane.gpu is not None:
            entry["gpu"] = lane.gpu
        with self.guard:
            write_json(self.state / "visit.json", self.journal() | {step.name: entry})
        print(f"{step.name:<10} {status:<7} {time.monotonic() - began:7.1f} s  {last_line(logs / f'{step.name}.txt')}")
        return status


def sources() -> str:
    """A digest of what is measured and of what measures: src, benchmarks without results, tests/exploits, tests/gpu."""
    total = hashlib.sha256()
    for folder in ("src", "benchmarks", "tests/exploits", "tests/gpu"):
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT)
            if path.is_file() and "__pycache__" not in inside.parts and "results" not in inside.parts:
                total.update(f"{inside}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def call(command: list[str], environment: Mapping[str, str], log: int, left: Callable[[], float]) -> int | None:
    """The exit status, or None when it was stopped with its whole process group because no seconds were left."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    try:
        while (seconds := left()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(seconds, LOOK_SECONDS))
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS - 5.0)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(log: Path) -> str:
    """Of a step's output, at most 100 characters."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:100] if lines else ""


def pack(visit: Visit, out: Path, before: dict[Path, float]) -> None:
    """STATE and the result files that are new or changed, as OUT/visit.tar.gz."""
    out.mkdir(parents=True, exist_ok=True)
    part = out / "visit.tar.gz.part"
    with tarfile.open(part, "w:gz") as archive:
        if visit.state.is_dir():
            archive.add(visit.state, "state", filter=lambda entry: None if entry.name.startswith(REMADE) else entry)
        for path, changed in stamps(visit.results).items():
            if before.get(path) != changed:
                archive.add(path, f"results/{path.relative_to(visit.results)}")
    part.replace(out / "visit.tar.gz")


def stamps(folder: Path) -> dict[Path, float]:
    """When each file was written last."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def read_steps(path: Path, only: str) -> list[Step]:
    """The steps of a file, or those named. Raises SystemExit with what is wrong."""
    try:
        found = [Step(**given) for given in tomllib.loads(path.read_text())["step"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"{path} is no list of steps ({error}); see benchmarks/visit.toml") from None
    names = [name for name in only.split(",") if name]
    if unknown := set(names) - {step.name for step in found}:
        known = ", ".join(step.name for step in found)
        raise SystemExit(f"no step is named {', '.join(sorted(unknown))}; there are {known}")
    return [step for step in found if not names or step.name in names]


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=Path, default=HERE / "visit.toml", help="the list of steps")
    parser.add_argument("--only", default="", help="names of steps, with commas between them")
    parser.add_argument("--minutes", type=float, default=9.0, help="the visit ends by then")
    parser.add_argument("--state", type=Path, required=True, help="what a later visit goes on from")
    parser.add_argument("--out", type=Path, help="where visit.tar.gz goes")
    parser.add_argument("--kernelbench", default=os.environ.get("KERNELBENCH_ROOT", ""), help="a checkout")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="the result files")
    parser.add_argument("--again", action="store_true", help="run what is done already")
    parser.add_argument("--side-by-side", action="store_true", help="a step on each GPU at the same time")
    parser.add_argument("--list", action="store_true", help="say what is done and what is left")
    options = parser.parse_args()
    visit = Visit(
        steps=read_steps(options.steps, options.only),
        state=options.state.resolve(),
        kernelbench=str(Path(options.kernelbench).resolve()) if options.kernelbench else "",
        results=options.results.resolve(),
        ends=time.monotonic() + 60 * options.minutes,
        gpus=gpu_count(),
    )
    if options.list:
        for step in visit.steps:
            held = visit.journal().get(step.name, {}).get("status", "-")
            print(f"{step.name:<10} {held if held != 'done' or visit.is_done(step) else 'stale':<7} {step.about}")
        return 0
    if not visit.kernelbench and any("{kernelbench}" in step.command for step in visit.steps):
        raise SystemExit("name KernelBench's checkout: --kernelbench DIR, or KERNELBENCH_ROOT")
    visit.state.mkdir(parents=True, exist_ok=True)
    before = stamps(visit.results)
    try:
        statuses = run_all(visit, options.again, lanes_of(visit.gpus if options.side_by_side else 1, exclusive=True))
    finally:
        if options.out is not None:
            pack(visit, options.out.resolve(), before)
    return 1 if "failed" in statuses else UNFINISHED if "left" in statuses else 0


def run_all(visit: Visit, again: bool, lanes: Sequence[Lane]) -> list[str]:
    """How the steps ended. Those between two that use every GPU are shared out over the lanes, in order; of a series
    one at a time."""
    statuses: list[str] = []
    steps = list(visit.steps)
    while steps:
        if len(lanes) == 1 or steps[0].spreads or steps[0].gpus > 1:
            statuses.append(attempt(visit, steps.pop(0), again, Lane(None, ())))
            continue
        shared = list(itertools.takewhile(lambda step: not step.spreads and step.gpus == 1, steps))
        steps = steps[len(shared) :]
        statuses += run_shared(visit, again, lanes, shared)
    return statuses


def run_shared(visit: Visit, again: bool, lanes: Sequence[Lane], steps: list[Step]) -> list[str]:
    """How these steps ended, one at a time on each lane."""
    statuses: list[str] = []
    waiting = list(steps)
    under_way: set[str] = set()
    changed = threading.Condition()

    def work(lane: Lane) -> None:
        while True:
            with changed:
                free = [step for step in waiting if step.series not in under_way]
                while waiting and not free:
                    changed.wait()
                    free = [step for step in waiting if step.series not in under_way]
                if not waiting:
                    return
                step = free[0]
                waiting.remove(step)
                if step.series:
                    under_way.add(step.series)
            status = "failed"
            try:
                status = attempt(visit, step, again, lane)
            finally:
                with changed:
                    statuses.append(status)
                    under_way.discard(step.series)
                    changed.notify_all()

    with ThreadPoolExecutor(len(lanes)) as pool:
        working = [pool.submit(work, lane) for lane in lanes]
        try:
            for future in working:
                future.result()
        except BaseException:
            visit.ends = 0.0
            raise
    return statuses


def attempt(visit: Visit, step: Step, again: bool, lane: Lane) -> str:
    """Run a step if it is to be run now; how it stands."""
    if visit.is_done(step) and not again:
        return "done"
    if step.gpus > visit.gpus and step.gpus > 1:
        print(f"{step.name:<10} left            wants {step.gpus} GPUs, this machine has {visit.gpus}")
        return "left"
    if visit.left() < step.least_seconds + GRACE_SECONDS:
        print(f"{step.name:<10} left            wants {step.least_seconds:.0f} s, {max(visit.left(), 0):.0f} are left")
        return "left"
    return visit.run(step, lane)


if __name__ == "__main__":
    sys.exit(main())
