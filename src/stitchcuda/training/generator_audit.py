"""Which generated tasks are worth training on: each is audited at small sizes, many at a time in worker processes.

A task is dropped when it does not run, when a trivial answer passes it, when its own rounding is amplified beyond any
budget, when it draws random numbers, or when a part of it does nothing. The auditing itself is ``task.audit``'s.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from stitchcuda.errors import StitchError
from stitchcuda.task.audit import Auditor, labels
from stitchcuda.task.model import Target
from stitchcuda.training.generator import GeneratedTask, SizeSet, generate

INDEX = "tasks.jsonl"
LONGEST_SECONDS = 60.0
"""For one task."""
LEAST_SPREAD = 1e-3
"""Standard deviation of an output over its magnitude below which it is all but a constant."""
LEAST_YIELD = 0.3
"""Share of tasks that must be valid; below it, something is wrong with the machine or the generator."""
_CPU = Target(kind="cpu", arch="native")


@dataclass
class Audited:
    """The valid tasks, in order, and why the others were dropped."""

    valid: list[GeneratedTask] = field(default_factory=list)
    dropped: list[tuple[GeneratedTask, str]] = field(default_factory=list)

    @property
    def reasons(self) -> dict[str, dict[str, int]]:
        """Dropped tasks by family and the first words of the reason."""
        counts: dict[str, Counter[str]] = {}
        for task, reason in self.dropped:
            counts.setdefault(task.family, Counter())[reason.partition(":")[0]] += 1
        return {family: dict(counter) for family, counter in sorted(counts.items())}


def verdict(entry: dict[str, Any], source: str) -> str:
    """Why a task is dropped, by its audit's entry; empty for a valid one."""
    if "error" in entry:
        return f"does not run: {entry['error']}"
    if found := labels(entry):
        passing = ", ".join(entry["battery"]["ours"])
        return f"{found[0]}: {passing}" if passing else found[0]
    # F.normalize bounds its divisor from below; that does nothing to rows that are not zero.
    idle = [line for line in entry["dead_work"] if not (line.endswith(": clamp_min") and "F.normalize" in source)]
    if idle:
        return f"dead work: {'; '.join(idle)}"
    for output in entry["outputs"]:
        if output.get("finite", 0.0) < 1.0:
            return "not finite"
        if output["std"] <= LEAST_SPREAD * max(abs(output["mean"]), output["std"]):
            return "all but constant"
    return ""


class Memory:
    """Verdicts in a file, so that an audit that was stopped goes on where it was. For several threads."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, KeyError):  # a line that was cut by a kill
                    entry = json.loads(line)
                    self._known[entry["digest"]] = entry["reason"]

    def find(self, digest: str) -> str | None:
        """The verdict on a task of this digest, if there is one."""
        return self._known.get(digest)

    def keep(self, digest: str, reason: str) -> None:
        """Add a verdict."""
        with self._lock:
            self._known[digest] = reason
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"digest": digest, "reason": reason}) + "\n")


def audited(
    seed: int,
    count: int,
    *,
    lanes: int = 2,
    memory: Path | None = None,
    tell: Callable[[int, int], None] = lambda valid, tried: None,
) -> Audited:
    """The first ``count`` valid tasks of a seed, however many that takes; equal for any number of ``lanes``.

    Each lane is a worker process with one thread of torch. ``memory`` is a file of verdicts that is read first and
    added to. Raises StitchError when hardly any task is valid.
    """
    found = Audited()
    verdicts = Memory(memory)
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with ExitStack() as stack:
        free: SimpleQueue[Auditor] = SimpleQueue()
        for _ in range(lanes):
            free.put(stack.enter_context(Auditor("cpu", timeout_s=LONGEST_SECONDS, environment=environment)))
        pool = stack.enter_context(ThreadPoolExecutor(lanes))

        def look(task: GeneratedTask) -> str:
            asked = task.task(_CPU, "audit")
            if (before := verdicts.find(asked.digest)) is not None:
                return before
            auditor = free.get()
            try:
                entry = auditor.audit(asked, seconds=LONGEST_SECONDS / 2)
            finally:
                free.put(auditor)
            reason = verdict(entry, task.body)
            verdicts.keep(asked.digest, reason)
            return reason

        for task, reason in _in_order(pool, look, generate(seed), 2 * lanes):
            if reason:
                found.dropped.append((task, reason))
            else:
                found.valid.append(task)
            tried = len(found.valid) + len(found.dropped)
            tell(len(found.valid), tried)
            if len(found.valid) == count:
                break
            if tried >= 50 and len(found.valid) < LEAST_YIELD * tried:
                last = found.dropped[-1][1]
                raise StitchError(f"only {len(found.valid)} of {tried} generated tasks are valid; the last: {last}")
    return found


def _in_order(
    pool: ThreadPoolExecutor,
    look: Callable[[GeneratedTask], str],
    tasks: Iterator[GeneratedTask],
    ahead: int,
) -> Iterator[tuple[GeneratedTask, str]]:
    """Tasks with what was found, in their order, a few of them under way."""
    under_way: deque[tuple[GeneratedTask, Future[str]]] = deque()
    try:
        for task in itertools.islice(tasks, ahead):
            under_way.append((task, pool.submit(look, task)))
        while under_way:
            task, future = under_way.popleft()
            yield task, future.result()
            following = next(tasks)
            under_way.append((following, pool.submit(look, following)))
    finally:
        for _, future in under_way:
            future.cancel()


def write_tasks(found: Audited, folder: Path, which: SizeSet = "full") -> None:
    """``NAME.py`` for every valid task at the chosen sizes, and ``tasks.jsonl`` with all their sizes."""
    for part in ("train", "held_out"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    lines = []
    for task in found.valid:
        part = "held_out" if task.held_out else "train"
        (folder / part / f"{task.name}.py").write_text(task.source(which), encoding="utf-8")
        lines.append(json.dumps({"split": part, **task.model_dump(mode="json")}))
    (folder / INDEX).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_tasks(folder: Path) -> list[GeneratedTask]:
    """What ``write_tasks`` wrote. Raises StitchError when there is none, or it is damaged."""
    path = folder / INDEX
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [GeneratedTask.model_validate({n: v for n, v in line.items() if n != "split"}) for line in lines]
    except FileNotFoundError:
        raise StitchError(f"{folder} holds no generated tasks ({INDEX} is missing)") from None
    except ValueError as error:
        raise StitchError(f"{path} is damaged: {str(error).splitlines()[0]}") from None


def table(found: Audited) -> str:
    """Counts by family as Markdown."""
    reasons = sorted({reason for counts in found.reasons.values() for reason in counts})
    head = ["family", "generated", "valid", "held out", *reasons, "operators (median)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    families = sorted({task.family for task in found.valid} | set(found.reasons))
    rows = [(family, [t for t in found.valid if t.family == family]) for family in families]
    for name, valid in [*rows, ("all", found.valid)]:
        dropped = [r for t, r in found.dropped if name in (t.family, "all")]
        counts = Counter(reason.partition(":")[0] for reason in dropped)
        lengths = sorted(task.expression.count("(") for task in valid)
        cells = [name, len(valid) + len(dropped), len(valid), sum(task.held_out for task in valid)]
        cells += [counts[reason] for reason in reasons] + [lengths[len(lengths) // 2] if lengths else ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
