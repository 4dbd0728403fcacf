"""How fast the reward service scores what is known, and how much memory it takes, with 64 requests at once.

    python benchmarks/reward_service.py [--seconds 5] [--distinct 20000]

Completions are the honest programs of tests/exploits as a Coder would send them; each has one of the Evaluations (with
both Profiles) of tests/reward/data, measured on an H200. Nothing is built or run: measured are reading, marking, the
formula and the caches. Writes ``benchmarks/results/reward_service.json`` and ``.md``.

- memory: completions that were scored before by this service
- disk: the first time in a process that finds the measurements on disk: read, marked and computed
- distinct: completions that nobody has seen, each another program; memory is what is looked at
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from provenance import ROOT, host_provenance, write_json, write_text

from stitchcuda.agents.reading import read_program
from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.profiling.model import Profile
from stitchcuda.program.files import load_program
from stitchcuda.program.model import MANIFEST, Program
from stitchcuda.reward.model import Reward
from stitchcuda.reward.score import Item
from stitchcuda.reward.service import RewardService, ServiceSettings
from stitchcuda.task.model import Target, Task

CLIENTS = 64
RESULTS = ROOT / "benchmarks" / "results" / "reward_service"
WANTED = 1000.0
"""Cached scores a second."""


@dataclass(frozen=True)
class Stored:
    """What was measured of one program."""

    evaluation: Evaluation
    reference: Profile
    profile: Profile


class StoredBackend:
    """Answers every program with one of a few stored measurements."""

    stamp = "stored"

    def __init__(self, stored: list[Stored]) -> None:
        self.stored = stored

    def of(self, digest: str) -> Stored:
        """Always the same for a digest."""
        return self.stored[int(digest[:8], 16) % len(self.stored)]

    async def evaluate(self, task: Task, program: Program) -> Evaluation:
        return self.of(program.digest).evaluation

    async def profile(self, task: Task, program: Program | None) -> Profile | None:
        if program is None:
            return self.of(task.digest).reference
        return self.of(program.digest).profile


def stored() -> list[Stored]:
    """The measurements of tests/reward/data."""
    found = []
    for path in sorted((ROOT / "tests" / "reward" / "data").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        found.append(
            Stored(
                Evaluation.model_validate(document["evaluation"]),
                Profile.model_validate(document["reference"]),
                Profile.model_validate(document["program"]),
            )
        )
    return found


def completions() -> Iterator[tuple[Task, str]]:
    """The honest programs as replies, each with its own task, where they can be read as such."""
    for path in sorted((ROOT / "tests" / "exploits" / "honest").iterdir()):
        if path.name.startswith("_") or not (path.is_dir() or path.suffix == ".py"):
            continue
        try:
            program = load_program(path)
            text = as_reply(program)
            kind = program.manifest.target if program.manifest is not None else "cpu"
            read_program(text, None, kind)
        except ProgramError:
            continue
        source = f"# the task of {path.name}\n"
        yield Task(name=path.stem, origin=str(path.name), source=source, target=Target(kind=kind, arch="native")), text


def as_reply(program: Program) -> str:
    """A Program as a Coder sends it."""
    files = dict(program.files)
    if program.manifest is not None:
        files[MANIFEST] = program.manifest.model_dump_json(indent=2) + "\n"
    return "\n".join(f"```text {name}\n{text}```\n" for name, text in files.items())


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def driven(service: RewardService, items: Iterator[Item], until: Callable[[int], bool]) -> dict[str, float]:
    """64 clients, each sending its next item when its last is scored."""
    waits: list[float] = []
    before, peak, largest = resident(), resident(), 0
    began, worked = time.perf_counter(), time.process_time()

    async def client() -> None:
        nonlocal peak, largest
        while not until(len(waits)):
            item = next(items, None)
            if item is None:
                return
            sent = time.perf_counter()
            outcome = await service.score_item(item)
            waits.append(time.perf_counter() - sent)
            assert isinstance(outcome, Reward), outcome
            assert outcome.value > 0, outcome
            if len(waits) % 50 == 0:
                peak, largest = max(peak, resident()), max(largest, service.memory)
            await asyncio.sleep(0)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    seconds, processor = time.perf_counter() - began, time.process_time() - worked
    ranked = sorted(waits)
    return {
        "scores": len(waits),
        "seconds": round(seconds, 3),
        "scores_per_second": round(len(waits) / seconds, 1),
        "processor_ms": round(1e3 * processor / len(waits), 4),
        "median_ms": round(1e3 * ranked[len(ranked) // 2], 3),
        "p99_ms": round(1e3 * ranked[int(0.99 * len(ranked))], 3),
        "results_bytes": largest,
        "grown_bytes": max(0, peak - before),
        "peak_resident_bytes": peak,
    }


async def measured(seconds: float, distinct: int) -> dict[str, object]:
    """All three, one after the other."""
    known = list(completions())
    items = [Item(task, text) for task, text in known]
    backend = StoredBackend(stored())
    found: dict[str, object] = {
        "completions": len(items),
        "mean_characters": round(sum(len(item.completion) for item in items) / len(items)),
        "clients": CLIENTS,
    }
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache.db"
        async with RewardService(backend, cache=cache) as service:
            await service.score_all(items)
            stop = time.perf_counter() + seconds
            found["memory"] = await driven(service, itertools.cycle(items), lambda done: time.perf_counter() > stop)
        runs = []
        for _ in range(3):
            async with RewardService(backend, cache=cache) as service:
                runs.append(await driven(service, iter(items), lambda done: False))
        found["disk"] = sorted(runs, key=lambda run: run["scores_per_second"])[1]
        bound = 32 << 20
        many = (
            Item(task, text.replace("class ModelNew", f"# {number}\nclass ModelNew", 1))
            for number, (task, text) in enumerate(itertools.islice(itertools.cycle(known), distinct))
        )
        settings = ServiceSettings(memory_bytes=bound, concurrency=CLIENTS)
        async with RewardService(backend, settings) as service:
            found["distinct"] = {"bound_bytes": bound} | await driven(service, many, lambda done: False)
    return found


def page(result: dict[str, object]) -> str:
    """The result as a page."""
    rows = []
    for name in ("memory", "disk", "distinct"):
        run = result[name]
        assert isinstance(run, dict)
        rows.append(
            f"| {name} | {run['scores']:,} | {run['scores_per_second']:,.0f} | {run['processor_ms']:.3f} | "
            f"{run['median_ms']:.2f} | {run['p99_ms']:.2f} | "
            f"{run['results_bytes'] / 2**20:.1f} | {run['grown_bytes'] / 2**20:.0f} |"
        )
    about = result["provenance"]
    assert isinstance(about, dict)
    return "\n".join(
        [
            "# Reward service: scores of what is known",
            "",
            f"{result['completions']} completions of {result['mean_characters']:,} characters on average, "
            f"{CLIENTS} requests at once; Evaluations and Profiles measured on an H200. Nothing is built or run.",
            "",
            "| from | scores | scores a second | processor ms a score | median ms | p99 ms | results kept, MiB | "
            "process grew by, MiB |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "memory: scored before by the same service. disk: measured before by another process; read, marked and "
            "computed anew. distinct: each another program that nobody has seen, with results bounded to 32 MiB.",
            "",
            f"`python benchmarks/reward_service.py`, {about['date']}, {about['cpu']}, {about['cores']} cores, Python "
            f"{about['python']}, commit {about['commit']}; load of the machine at the start: {result['load']}.",
            "",
        ]
    )


def main() -> int:
    """Measure and write; exit status 1 below the wanted rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the run from memory")
    parser.add_argument("--distinct", type=int, default=20_000, help="programs of the run that looks at memory")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    result = asyncio.run(measured(options.seconds, options.distinct))
    result |= {"load": round(load, 2), "provenance": host_provenance()}
    print(page(result))
    if not options.no_write:
        write_json(RESULTS.with_suffix(".json"), result)
        write_text(RESULTS.with_suffix(".md"), page(result))
    memory = result["memory"]
    assert isinstance(memory, dict)
    return 0 if memory["scores_per_second"] >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
