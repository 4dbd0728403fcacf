"""Audit many tasks on a GPU machine in slices of a few minutes: which trivial answers pass, what is ill-conditioned.

    python benchmarks/audit.py kernelbench:1 kernelbench:2 kernelbench:3 --root KERNELBENCH \\
        --results benchmarks/results/audit.json --slice-seconds 480

Each finished task is added to the result file (and the .md page beside it) at once, with the machine it was found on;
what the file holds is skipped next time. ``--lanes N`` audits N tasks at once, each lane with a worker of its own,
spread over the GPUs; nothing that is kept is a time to compare, so lanes may share one. What fails there is tried once
more by itself. Works from a plain checkout.
Exit status: 0 everything is audited, 1 some tasks cannot be, 3 the slice is over and tasks are left.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from lanes import Lane, lanes_of
from provenance import gpu_provenance

from stitchcuda.hardware.detect import detect
from stitchcuda.task.audit import Auditor, expand, keep, known, load, save
from stitchcuda.task.loader import load_task
from stitchcuda.task.model import Task

UNFINISHED = 3
LEAST_SECONDS = 5.0
"""No task is started with less of the slice left than this."""
SAVE_SECONDS = 5.0
"""Between two writes of the result file, which grows to megabytes."""


class Slice:
    """The tasks still to do, and the result file, while several lanes work."""

    def __init__(self, tasks: Sequence[Task], options: argparse.Namespace) -> None:
        self.options = options
        self.document = load(options.results)
        self.document["title"] = options.title or self.document.get("title") or "Audit of tasks"
        facts = gpu_provenance()
        self.machine = ", ".join(f"{name} {value}" for name, value in facts.items() if value)
        self.queue = [task for task in tasks if options.again or known(self.document, task) is None]
        self.began = time.monotonic()
        self.saved = 0.0
        self.failed: list[Task] = []
        self.lock = threading.Lock()

    def take(self) -> tuple[Task, float] | None:
        """The next task and how long it may take, seconds; None when there is none or the slice is over."""
        with self.lock:
            left = self.options.slice_seconds - (time.monotonic() - self.began)
            if not self.queue or left < LEAST_SECONDS:
                return None
            return self.queue.pop(0), min(left, self.options.timeout)

    def finish(self, task: Task, entry: dict[str, Any]) -> None:
        """Keep one entry, and say so in a line."""
        with self.lock:
            keep(self.document, entry | {"machine": self.machine})
            self.document["provenance"] = sorted({e["machine"] for e in self.document["items"] if e.get("machine")})
            self.failed += [task] if "error" in entry else []
            if time.monotonic() - self.saved > SAVE_SECONDS:
                self.write()
            told = entry.get("error") or ", ".join(entry["battery"]["ours"]) or "-"
            print(f"{entry['task']} ({entry['wall_seconds']:.1f} s): {told[:150]}", flush=True)

    def write(self) -> None:
        """The result file and its page."""
        save(self.options.results, self.document)
        self.saved = time.monotonic()

    def work(self, lane: Lane) -> None:
        """One lane: tasks until there are none, or no time."""
        with Auditor(
            self.options.target, timeout_s=1.0, prefix=lane.pinned([]), environment=lane.environment()
        ) as auditor:
            while (taken := self.take()) is not None:
                task, auditor.timeout_s = taken
                self.finish(task, auditor.audit(task, seconds=self.options.seconds))

    def run(self, lanes: int) -> None:
        """All that is in the queue, over so many lanes."""
        threads = [threading.Thread(target=self.work, args=(lane,)) for lane in lanes_of(lanes, exclusive=False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def alone(self) -> None:
        """What failed beside others once more by itself: memory may have been short."""
        self.queue, self.failed = [*self.queue, *self.failed], []
        self.run(1)


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", help="kernelbench:LEVEL, kernelbench:LEVEL/ID, or .py files")
    parser.add_argument("--results", type=Path, required=True, help="the .json file; a .md page is kept beside it")
    parser.add_argument("--root", type=Path, help="KernelBench's checkout or Parquet folder")
    parser.add_argument("--target", default="auto", choices=["auto", "cuda", "cpu"])
    parser.add_argument("--precision", choices=["fp32", "tf32", "fp16", "bf16"])
    parser.add_argument("--slice-seconds", type=float, default=480.0, help="stop starting tasks after this long")
    parser.add_argument("--seconds", type=float, default=1.5, help="for trying trivial answers to one task")
    parser.add_argument("--timeout", type=float, default=30.0, help="longest wall time for one task")
    parser.add_argument("--lanes", type=int, default=1, help="tasks audited at once")
    parser.add_argument("--again", action="store_true", help="audit anew what is in the file already")
    parser.add_argument("--title", default="", help="heading of the page")
    options = parser.parse_args()
    target = detect(options.target).target
    options.target = target.kind
    references = expand(options.tasks, options.root)
    tasks = [load_task(name, target=target, root=options.root, precision=options.precision) for name in references]
    work = Slice(tasks, options)
    work.run(options.lanes)
    if options.lanes > 1 and work.failed:
        work.alone()
    work.write()
    if work.queue:
        print(f"{len(work.queue)} of {len(tasks)} tasks are left for another slice", flush=True)
        return UNFINISHED
    return 1 if work.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
