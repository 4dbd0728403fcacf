"""Evaluates programs by the thousand: read, compile (processes side by side), run on small hidden inputs, judge, and
time what is right, one after the other on the one device. What is known is not measured again, whichever arm asks.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coder_experiment import judge, sass, source, stock
from coder_experiment.compilers import Built, Gxx, Nvrtc, _line, kernels
from coder_experiment.judge import GOLD_SETS, REWARD_SETS, InputSet
from coder_experiment.language import Own, Program, Refused, parse
from coder_experiment.operators import BINARY, LAYOUT, OPERATORS, REDUCTIONS
from coder_experiment.schedules import good_schedules, own_program, stock_program
from coder_experiment.state import append, lines
from coder_experiment.tasks import Task, generate

BINDING = Path(__file__).resolve().parents[2] / "src" / "stitchcuda" / "evaluation" / "nvrtc_runner.py"
LAUNCH_SECONDS, START_SECONDS = 2.0, 90.0
FULL = {"cuda": 1 << 24, "cpu": 1 << 14}
"""Elements of a matrix that is timed: 64 MiB on a GPU."""
SHARED_BYTES = 8 << 20
PART = 512
"""Programs that are evaluated before what was found is written down."""
SPARES = {"cuda": 6, "cpu": 1}
"""Launching processes that wait: one takes seconds to reach a GPU, and a model's first steps crash some."""


class OutOfTime(Exception):
    """The time was up between two parts of a batch; what was measured before is kept."""


@dataclass(frozen=True)
class Outcome:
    """What running a program showed. ``status``: correct, wrong, build_failed, refused, crashed, timed_out, or
    infrastructure, which is never the program's fault. ``seconds``: median at full size, 0.0 unless correct.
    ``own_share``: of device time, in own kernels. ``gold``: by name of a set that the reward does not look at."""

    status: str
    message: str = ""
    seconds: float = 0.0
    own_share: float = 0.0
    gold: dict[str, bool] = field(default_factory=dict)
    accesses: int = 0
    wide: int = 0
    local_bytes: int = 0
    damage: bool = False

    @property
    def correct(self) -> bool:
        """Right on all inputs that decide."""
        return self.status == "correct"


@dataclass(frozen=True)
class Job:
    """A text that may be a program for a task."""

    task: Task
    text: str


class Evaluator:
    """Evaluates for one device; a context manager, one caller at a time. ``memo``: a file of what was measured.
    ``left``: seconds until the time is up."""

    def __init__(
        self,
        backend: str,
        *,
        workers: int = 0,
        memo: Path | None = None,
        elements: int = 0,
        repeats: int = 5,
        left: Callable[[], float] = lambda: float("inf"),
    ):
        self.backend, self.repeats, self.left = backend, repeats, left
        self.elements = elements or FULL[backend]
        self.workers = workers or max(1, len(os.sched_getaffinity(0)))
        self.compilers: Nvrtc | Gxx = Nvrtc(_arch(), self.workers) if backend == "cuda" else Gxx()
        self.stock = self.compilers.stock()
        self.lane = _Lane(backend, self.stock, max(self.elements, 2 * judge.SMALL + (1 << 14)))
        self.memo_path, self.memo = memo, dict[str, Outcome]()
        self.evaluated, self.seconds = 0, 0.0
        for key, record in lines(memo) if memo is not None else ():
            self.memo[key] = Outcome(**record)
        self._try_out()

    def _try_out(self) -> None:
        """Two programs that are right, so that a fault of the machine is told before thousands are called wrong. They
        are in no file. Raises RuntimeError."""
        task = generate(5, {"train": 1, "validation": 0, "test": 0})["train"][0]
        own = own_program(task, good_schedules()[0])
        for text in (stock_program(task).text, own.text):
            found = dict(self._run({"tried": (task, parse(text))}))["tried"]
            if not found.correct or found.seconds <= 0:
                self.close()
                told = f"{found.status}: {found.message}"
                raise RuntimeError(f"a program that is right ends {told}; nothing can be measured here: {text}")

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        self.lane.close()
        self.compilers.close()

    def evaluate(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcome of each job, in their order. Equal programs for a task are run once. Raises OutOfTime where the
        time is up and a long batch is not half done."""
        began = time.monotonic()
        keys: list[str] = []
        wanted: dict[str, tuple[Task, Program]] = {}
        refused: dict[str, Outcome] = {}
        for job in jobs:
            try:
                program = parse(job.text)
            except Refused as refusal:
                key = f"refused:{len(keys)}"
                refused[key] = Outcome("refused", str(refusal))
            else:
                key = f"{program.digest} {job.task.key}"
                if key not in self.memo:
                    wanted.setdefault(key, (job.task, program))
            keys.append(key)
        found: dict[str, Outcome] = {}
        waiting = list(wanted.items())
        for begin in range(0, len(waiting), PART):
            if begin and self.left() < 5:
                raise OutOfTime(f"{len(waiting) - begin} of {len(waiting)} programs are left to evaluate")
            some = dict(self._run(dict(waiting[begin : begin + PART])))
            found |= some
            self.evaluated += len(some)
            kept = {key: outcome for key, outcome in some.items() if outcome.status != "infrastructure"}
            self.memo |= kept
            if self.memo_path is not None and kept:
                append(self.memo_path, *([key, asdict(outcome)] for key, outcome in kept.items()))
        self.seconds += time.monotonic() - began
        return [refused.get(key) or found.get(key) or self.memo[key] for key in keys]

    def baselines(self, tasks: Sequence[Task]) -> list[float]:
        """Seconds of the stock kernels one after the other, for each task; 0.0 where they could not be measured."""
        jobs = [Job(task, stock_program(task).text) for task in tasks]
        return [outcome.seconds if outcome.correct else 0.0 for outcome in self.evaluate(jobs)]

    def best(self, tasks: Sequence[Task]) -> list[float]:
        """Seconds of the fastest known own program or of the stock kernels, for each task."""
        schedules = good_schedules()
        jobs = [Job(task, own_program(task, schedule).text) for task in tasks for schedule in schedules]
        outcomes = self.evaluate(jobs)
        found = []
        for at, baseline in enumerate(self.baselines(tasks)):
            some = outcomes[at * len(schedules) : (at + 1) * len(schedules)]
            times = [o.seconds for o in some if o.correct] + ([baseline] if baseline else [])
            found.append(min(times, default=0.0))
        return found

    def _run(self, wanted: dict[str, tuple[Task, Program]]) -> Iterator[tuple[str, Outcome]]:
        expected = _Expectations()
        with ThreadPoolExecutor(self.workers) as pool, ThreadPoolExecutor(2) as judges:
            built = {pool.submit(self._build, program): key for key, (_, program) in wanted.items()}
            judged: dict[Future[Outcome], str] = {}
            ready: queue.SimpleQueue[tuple[str, Built]] = queue.SimpleQueue()
            builds: dict[str, Built] = {}

            def forward() -> None:
                for future in as_completed(built):
                    ready.put((built[future], future.result()))

            threading.Thread(target=forward, daemon=True).start()
            for _ in range(len(built)):
                key, build = ready.get()
                task, program = wanted[key]
                if build.problem:
                    yield key, Outcome("infrastructure" if build.infrastructure else "build_failed", build.problem)
                    continue
                builds[key] = build
                sets = expected.sets(task)
                answer, outputs = self.lane.run(task, program, build, sets, 0)
                judged[judges.submit(self._judge, task, sets, answer, outputs, build, expected)] = key
            for future in as_completed(judged):
                key, outcome = judged[future], future.result()
                yield key, self._timed(*wanted[key], builds[key], outcome, expected) if outcome.correct else outcome

    def _build(self, program: Program) -> Built:
        try:
            return self.compilers.build(program) if program.own else Built()
        except Exception as error:  # whatever it is, the batch must not wait for it
            return Built(problem=f"{type(error).__name__}: {error}", infrastructure=True)

    def _judge(
        self,
        task: Task,
        sets: Sequence[InputSet],
        answer: dict[str, Any],
        outputs: list[NDArray[np.float32]],
        build: Built,
        expected: _Expectations,
    ) -> Outcome:
        """The verdict on small inputs."""
        if "status" in answer:
            return Outcome(answer["status"], answer["error"])
        gold: dict[str, bool] = {}
        for one, got in zip(sets, outputs, strict=True):
            difference = judge.differs(expected.of(task, one), got)
            if one.name in GOLD_SETS:
                gold[one.name] = not difference
            elif difference and one.name in (*REWARD_SETS, "full"):
                return Outcome("wrong", f"{one.name} inputs: {difference}")
        damage = any(any(counts) for counts in answer["damage"])
        total, wide = sass.accesses(build.cubin) if build.cubin else (0, 0)
        local = sum(values[0] for values in answer["facts"].values())
        return Outcome("correct", "", 0.0, 0.0, gold=gold, accesses=total, wide=wide, local_bytes=local, damage=damage)

    def _timed(self, task: Task, program: Program, build: Built, outcome: Outcome, expected: _Expectations) -> Outcome:
        """Run once more at full size, judged by a sample, and timed."""
        one = expected.full(task, self.elements)
        answer, outputs = self.lane.run(task, program, build, [one], self.repeats)
        second = self._judge(task, [one], answer, outputs, build, expected)
        if not second.correct:
            return second
        times = answer["times"]
        whole = statistics.median(sum(nodes) for nodes in times)
        own = statistics.median(
            sum(t for t, node in zip(nodes, program.nodes, strict=True) if isinstance(node, Own))
            / max(sum(nodes), 1e-12)
            for nodes in times
        )
        changed = {"seconds": max(whole, 1e-9), "own_share": own, "damage": outcome.damage or second.damage}
        return Outcome(**(asdict(outcome) | changed))


class _Expectations:
    """Input sets and exact outputs by task, for one batch."""

    def __init__(self) -> None:
        self.small: dict[str, list[InputSet]] = {}
        self.large: dict[str, InputSet] = {}
        self.known: dict[tuple[str, str], judge.Expected] = {}
        self.guard = threading.Lock()

    def sets(self, task: Task) -> list[InputSet]:
        """The small sets of a task."""
        return self.small.setdefault(task.key, judge.small_sets(task))

    def full(self, task: Task, elements: int) -> InputSet:
        """The timed set of a task."""
        return self.large.setdefault(task.key, judge.full_set(task, elements))

    def of(self, task: Task, one: InputSet) -> judge.Expected:
        """What the outputs of a set have to be."""
        key = task.key, one.name
        with self.guard:
            if key not in self.known:
                self.known[key] = judge.expect(task, one)
            return self.known[key]


class _Lane:
    """The process that launches, and some to take its place."""

    def __init__(self, backend: str, stock_file: Path, elements: int) -> None:
        self.backend, self.stock, self.elements = backend, stock_file, elements
        self.fd = os.memfd_create("coder", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, SHARED_BYTES)
        self.shared = mmap.mmap(self.fd, SHARED_BYTES)
        self.process = self._start()
        self.spares = deque(self._start() for _ in range(SPARES[backend]))
        self.restarts = 0
        self._greet(self.process)

    def _start(self) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("launcher.py")
        arguments = [self.backend, str(self.fd), str(SHARED_BYTES), str(self.elements), str(self.stock), str(BINDING)]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[self.fd],
        )

    def _greet(self, process: subprocess.Popen[bytes]) -> None:
        first = _line(process, START_SECONDS)
        if first is None or "ready" not in first:
            raise RuntimeError(f"kernels cannot be launched: {(first or {}).get('fatal', 'no answer')}")

    def _replace(self) -> None:
        self.process.kill()
        self.process.wait()
        self.restarts += 1
        self.process = self.spares.popleft()
        self.spares.append(self._start())
        self._greet(self.process)

    def run(
        self, task: Task, program: Program, build: Built, sets: Sequence[InputSet], repeats: int
    ) -> tuple[dict[str, Any], list[NDArray[np.float32]]]:
        """Launch a program on input sets: the launcher's answer, or one with ``status`` and ``error``; and outputs."""
        requests: list[dict[str, Any]] = []
        offset = 0
        for one in sets:
            count = one.elements(task)
            if one.places is not None:
                self.shared[offset : offset + 4 * count] = one.places.tobytes()
            requests.append(
                {
                    "rows": one.rows,
                    "cols": one.cols,
                    "keys": one.keys,
                    "mode": one.mode,
                    "scale": one.scale,
                    "launches": launches(program, one.rows, one.cols),
                    "offset": offset,
                    "count": count,
                    "places": one.places is not None,
                }
            )
            offset += (4 * count + 255) // 256 * 256
        request = {
            "image": build.image,
            "kernels": kernels(program),
            "sets": requests,
            "repeats": repeats,
            "seconds": 0.02,
        }
        began = time.monotonic()
        answer = None
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            answer = _line(self.process, LAUNCH_SECONDS)
        if answer is None or "error" in answer:
            late = time.monotonic() - began >= LAUNCH_SECONDS
            self._replace()
            status = "timed_out" if late else "crashed"
            return {"status": status, "error": (answer or {}).get("error", status)[:80]}, []
        outputs = []
        for each in requests:
            raw = self.shared[each["offset"] : each["offset"] + 4 * each["count"]]
            outputs.append(np.frombuffer(raw, dtype=np.float32))
        return answer, outputs

    def close(self) -> None:
        """End all processes."""
        for process in (self.process, *self.spares):
            process.kill()
            process.wait()
        self.shared.close()
        os.close(self.fd)


def launches(program: Program, rows: int, cols: int) -> list[dict[str, Any]]:
    """What is launched, in order, for matrices of ``rows`` x ``cols``."""
    shapes = dict.fromkeys(("a", "b", "c", "u", "w", "y"), (rows, cols))
    found: list[dict[str, Any]] = []
    for at, node in enumerate(program.nodes):
        if isinstance(node, Own):
            size = source.launch(node, rows, cols)
            found.append({"own": f"own_{at}", "grid": [*size.grid, *size.block]})
            for name in ("u", "w", "y"):
                if f"{name}[to]" in node.body:
                    shapes[name] = (cols, rows)
            continue
        r, c = shapes[node.source]
        kind = OPERATORS[node.operator].kind
        found.append(
            {
                "lib": stock.symbol(node.operator, c),
                "grid": list(stock.grid(node.operator, r, c)),
                "source": node.source,
                "operand": node.operand if kind == BINARY else None,
                "constant": node.operand if isinstance(node.operand, float) else 0.0,
                "target": node.target,
                "rows": r,
                "cols": c,
            }
        )
        shapes[node.target] = (c, r) if kind == LAYOUT else (r, 1) if node.operator in REDUCTIONS else (r, c)
    return found


def _arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
