"""The runner for measurements that take longer than one visit to a GPU machine.

It works through a list of tasks (or benchmark scripts) in slices of a few minutes. Each finished item is added
to the result file at once, with its provenance; what the file holds is skipped next time, and an interrupted
optimisation is resumed from its run folder. Works from a plain checkout: PYTHONPATH=src is set for the children.

    python benchmarks/measure.py optimize kernelbench:3/2 kernelbench:3/18 --root KERNELBENCH \\
        --results benchmarks/results/some.json --slice-seconds 480 -- --model recipes
    python benchmarks/measure.py baseline kernelbench:3/2 --root KERNELBENCH --results ...
    python benchmarks/measure.py evaluate TASK=PROGRAM ... --results ...
    python benchmarks/measure.py script benchmarks/cli_startup.py --results ...
    python benchmarks/measure.py warm kernelbench:3/2 ... --root KERNELBENCH --lanes 6 --results ...
    python benchmarks/measure.py render --results benchmarks/results/some.json

``--lanes N`` works on N items at once, each on a GPU and a share of the cores of its own; more lanes than GPUs
are refused, because items would disturb each other's times. ``warm`` fills the compilers' caches before the clock
counts: it runs the stock options of many tasks side by side and throws the times away.

What follows ``--`` goes to the ``stitchcuda`` verb (or the script) as it is. It measures nothing itself.
Exit status: 0 everything is measured, 3 the slice is over and items are left, 2 wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from lanes import Lane, forget_timings, lanes_of, timings_cached
from provenance import gpu_provenance, write_json, write_text
from tables import page, short_table

UNFINISHED = 3
"""Exit status when the slice ended before the list did."""
GRACE_SECONDS = 20.0
"""Between asking an item to stop (SIGINT, which leaves a resumable run) and killing it."""
LEAST_SECONDS = 15.0
"""No item is started with less of the slice left than this."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What to run, on what, and where the results go."""

    verb: str
    """'optimize', 'baseline', 'evaluate' or 'script'."""
    items: tuple[str, ...]
    """Task references, TASK=PROGRAM pairs, or script paths."""
    results: Path
    root: Path | None = None
    runs: Path = Path("runs")
    extra: tuple[str, ...] = ()
    slice_seconds: float = 480.0
    item_seconds: float | None = None
    """Longest one item may take over all slices of one visit; None: what is left of the slice."""
    lanes: int = 1
    """Items worked on at once."""
    again: bool = False
    """Measure what is there already once more; the new entry replaces the old."""
    title: str = ""


def key_of(job: Job, item: str) -> str:
    """What makes two entries the same measurement: verb, item and options."""
    return " ".join([job.verb, item, *job.extra])


def folder_of(job: Job, item: str) -> Path:
    """The runs folder of one item, so that an interrupted run is found again."""
    return job.runs / re.sub(r"[^A-Za-z0-9]+", "-", key_of(job, item)).strip("-")[:120]


def unfinished_run(folder: Path) -> Path | None:
    """The newest run in ``folder`` that has a journal and no summary."""
    found = [j.parent for j in folder.glob("*/journal.jsonl") if not (j.parent / "summary.json").exists()]
    return max(found, key=lambda path: path.name, default=None)


def command_for(job: Job, item: str) -> list[str]:
    """The command line that measures one item and prints one JSON object last."""
    if job.verb == "script":
        return [sys.executable, item, *job.extra]
    cli = [sys.executable, "-m", "stitchcuda.cli.main"]
    root = ["--root", str(job.root)] if job.root is not None else []
    if job.verb == "evaluate":
        task, _, program = item.partition("=")
        return [*cli, "evaluate", task, program, "--json", *root, *job.extra]
    if job.verb in ("baseline", "warm"):
        return [*cli, "baseline", item, "--json", *root, *job.extra]
    folder = folder_of(job, item)
    begun = unfinished_run(folder)
    if begun is not None:
        return [*cli, "runs", "resume", str(begun), "--json"]
    return [*cli, "optimize", item, "--json", "--out", str(folder), *root, *job.extra]


def last_json(text: str) -> Any:
    """The JSON value that ``text`` is, or ends with after other lines; None when there is none."""
    starts = [0, *(match.end() for match in re.finditer(r"\n(?=[{\[])", text))]
    for start in starts:
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text[start:])
    return None


def run_item(
    command: Sequence[str], limit_s: float, folder: Path, *, lane: Lane, stop: threading.Event
) -> tuple[int | None, str, str]:
    """Run in a process group of its own: exit status (None: stopped at the limit), stdout, end of stderr."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stdout.log").open("w+") as out, (folder / "stderr.log").open("w+") as errors:
        child = subprocess.Popen(
            lane.pinned(command), stdout=out, stderr=errors, env=lane.environment(), start_new_session=True
        )
        deadline = time.monotonic() + limit_s
        code: int | None = None
        while code is None and not stop.is_set() and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(timeout=0.2)
        end(child)
        out.seek(0)
        errors.seek(0)
        return code, out.read(), errors.read()[-4000:]


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask a child that still runs to end, then kill what is left of its group."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def load(path: Path) -> dict[str, Any]:
    """The result file, or an empty one. Raises SystemExit when it is not one of ours."""
    if not path.exists():
        return {"title": "", "items": []}
    try:
        document = json.loads(path.read_text())
        assert isinstance(document["items"], list)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise SystemExit(f"{path} is not a result file of this script; move it away or name another") from None
    return dict(document)


class Progress:
    """The result file while several lanes add to it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.document = load(job.results)
        if job.title:
            self.document["title"] = job.title
        self.lock = threading.Lock()
        self.begin = time.monotonic()
        self.longest = 0.0
        entries = {entry["key"]: entry for entry in self.document["items"]}
        done = {key for key, entry in entries.items() if not entry.get("provisional")}
        todo = [item for item in job.items if job.again or key_of(job, item) not in done]
        # What failed or was stopped before comes last, so that one bad item cannot eat every slice.
        self.queue = sorted(todo, key=lambda item: key_of(job, item) in entries)
        self.provenance = gpu_provenance() if todo else {}
        if job.lanes > 1:
            self.provenance["lanes"] = job.lanes

    def left(self) -> float:
        """Seconds left in the slice."""
        return self.job.slice_seconds - (time.monotonic() - self.begin)

    def take(self, first: bool) -> tuple[str, float] | None:
        """The next item and how long it may take; None when there is none or the slice is too short for it."""
        with self.lock:
            left = self.left()
            if not self.queue or (not first and left < max(LEAST_SECONDS, 0.5 * self.longest)):
                return None
            item = self.queue.pop(0)
            print(f"{item} ({left:.0f} s left in the slice, {len(self.queue)} items wait)", flush=True)
            return item, max(min(left, self.job.item_seconds or left), 1.0)

    def keep(self, entry: dict[str, Any]) -> None:
        """Add one entry in place of an older one of the same key, and write both files."""
        with self.lock:
            self.longest = max(self.longest, entry["seconds"])
            kept = [old for old in self.document["items"] if old["key"] != entry["key"]]
            self.document["items"] = [*kept, entry]
            write_json(self.job.results, self.document)
            write_text(self.job.results.with_suffix(".md"), page(self.document))
            print(f"  {entry['item']}: exit {entry['exit']}, {entry['seconds']:.0f} s{_first_line(entry)}", flush=True)

    def work(self, lane: Lane, stop: threading.Event) -> None:
        """One lane: items until there are none, or no time."""
        first = True
        while not stop.is_set():
            taken = self.take(first)
            if taken is None:
                return
            first = False
            item, limit = taken
            started = time.monotonic()
            folder = folder_of(self.job, item)
            code, out, errors = run_item(command_for(self.job, item), limit, folder, lane=lane, stop=stop)
            if stop.is_set():
                return
            entry = self.entry(item, code, out, errors, limit)
            self.keep(entry | {"seconds": round(time.monotonic() - started, 1)})

    def entry(self, item: str, code: int | None, out: str, errors: str, limit: float) -> dict[str, Any]:
        """What is kept of one item. ``provisional``: shown, but measured again by a later slice."""
        job = self.job
        result = None if job.verb == "warm" else last_json(out)
        entry = {
            "key": key_of(job, item),
            "verb": job.verb,
            "item": item,
            "options": list(job.extra),
            "exit": code,
            "seconds": 0.0,
            "provenance": self.provenance,
            "result": result,
        }
        if job.verb == "script":
            entry["output"] = out[-4000:]
        if code is None:
            entry["error"] = f"stopped after {limit:.0f} s"
        elif result is None and (code != 0 or job.verb not in ("script", "warm")):
            entry["error"] = errors.strip()[-1500:] or f"exit status {code} and no output"
        elif isinstance(result, dict) and result.get("status") == "infrastructure_error":
            entry["error"] = str(result.get("message", "the machine failed"))
        entry["provisional"] = "error" in entry
        return entry


def measure(job: Job) -> int:
    """Work through the items that are not in the result file until the slice is over."""
    lanes = lanes_of(job.lanes, exclusive=job.verb != "warm")
    progress, stop = Progress(job), threading.Event()
    cached = timings_cached() if job.verb == "warm" else {}
    threads = [threading.Thread(target=progress.work, args=(lane, stop)) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        print("interrupted; what is finished is kept", flush=True)
        stop.set()
        for thread in threads:
            thread.join()
    if job.verb == "warm":
        forget_timings(cached)
    entries = {entry["key"]: entry for entry in progress.document["items"]}
    states = [entries.get(key_of(job, item), {"provisional": True}) for item in job.items]
    left = sum(bool(state.get("provisional")) for state in states)
    if left:
        print(f"{left} of {len(states)} items are left for another slice", flush=True)
    print(short_table(progress.document), flush=True)
    return UNFINISHED if left else 0


def _first_line(entry: dict[str, Any]) -> str:
    """The last line of an item's error that says something, for the progress line."""
    told = [line.strip("│╭╰─╮╯ ") for line in entry.get("error", "").splitlines()]
    said = [line for line in told if any(character.isalnum() for character in line)]
    return f": {said[-1][:200]}" if said else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    extra: list[str] = []
    if "--" in given:
        cut = given.index("--")
        given, extra = given[:cut], given[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["optimize", "baseline", "evaluate", "script", "warm", "render"])
    parser.add_argument("items", nargs="*", help="tasks, TASK=PROGRAM pairs, or scripts")
    parser.add_argument("--results", type=Path, required=True, help="the .json file; a .md page is kept beside it")
    parser.add_argument("--root", type=Path, help="KernelBench's checkout or Parquet folder")
    parser.add_argument("--runs", type=Path, default=Path("runs/measure"), help="where run folders go")
    parser.add_argument("--slice-seconds", type=float, default=480.0, help="stop starting items after this long")
    parser.add_argument("--item-seconds", type=float, help="longest time for one item")
    parser.add_argument("--lanes", type=int, default=1, help="items worked on at once, each on its own GPU")
    parser.add_argument("--again", action="store_true", help="measure items anew that are in the file already")
    parser.add_argument("--title", default="", help="heading of the page")
    options = parser.parse_args(given)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.verb == "render":
        document = load(options.results)
        write_text(options.results.with_suffix(".md"), page(document))
        print(page(document))
        return 0
    if not options.items:
        parser.error("name at least one item")
    return measure(
        Job(
            verb=options.verb,
            items=tuple(options.items),
            results=options.results,
            root=options.root,
            runs=options.runs,
            extra=tuple(extra),
            slice_seconds=options.slice_seconds,
            item_seconds=options.item_seconds,
            lanes=options.lanes,
            again=options.again,
            title=options.title,
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
