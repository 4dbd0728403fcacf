"""Many Programs of many Tasks on one device: sources are compiled and processes started while others are judged, and
one clock at a time counts. How one Program is evaluated is in ``evaluator``; who may use the device when, in
``device_gate``; what the time went into, in ``pipeline_chart``.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation.build import Build, build
from stitchcuda.evaluation.device_gate import Gate, Span, gate_of
from stitchcuda.evaluation.evaluator import Evaluator
from stitchcuda.evaluation.model import Evaluation, Tier
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts, TensorFacts

AHEAD = 16
"""Programs in hand for each lane: being built, waiting, or under way."""

OPEN_TASKS = 16
"""Evaluators that stay open at most, where memory allows."""

FILLED = 0.85
"""Share of the device's (on cpu the machine's) memory that open Evaluators may need together."""

CONTEXTS = 2 << 30
"""Bytes for the contexts of an oracle, a runner and the next Program's process on cuda; on cpu a quarter of it for
processes."""

ELEMENT_BYTES = {"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float16": 2, "bfloat16": 2}
"""Of dtypes that are not four bytes wide; smaller ones count as two."""


@dataclass(frozen=True)
class Job:
    """One Program to evaluate. ``name`` is for people and for the chart."""

    name: str
    task: Task
    facts: TaskFacts
    program: Program
    tier: Tier = "screen"


@dataclass(frozen=True)
class Done:
    """A Job and what came of it; times are time.monotonic() seconds. ``spans``: when it held the device."""

    job: Job
    evaluation: Evaluation
    queued: float
    built: tuple[float, float]
    begun: float
    ended: float
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class _Ticket:
    """A built Job on its way to a lane. ``alone``: it had not enough memory beside others."""

    job: Job
    result: Future[Done]
    queued: float
    build: Build
    built: tuple[float, float]
    alone: bool = False


@dataclass
class _Seat:
    """One open Evaluator, which one thread at a time uses. ``need``: bytes."""

    digest: str
    evaluator: Evaluator
    need: int
    busy: bool = True
    used: float = field(default_factory=time.monotonic)


class Pipeline:
    """Evaluates Programs on one device, several at a time in all but their timed calls; a context manager.

    ``lanes`` Programs are under way at once, and ``builders`` threads wait for compilers (by default as many as this
    machine's cores suit). Evaluators with their oracles stay open and are used again; the Programs of one Task share
    one, unless ``per_task`` allows more. Safe to use from several threads.
    """

    def __init__(
        self,
        device: Device,
        *,
        cache: Path,
        settings: EvaluationSettings | None = None,
        lanes: int | None = None,
        builders: int | None = None,
        per_task: int = 1,
        gate: Gate | None = None,
    ) -> None:
        self.device, self.cache = device, cache
        self.settings = settings or EvaluationSettings()
        self.kind = device.target.kind
        self.gate = gate or gate_of(self.kind)
        cores = len(os.sched_getaffinity(0))
        # A lane on cpu computes on all cores; on cuda its processes keep about two busy.
        self.lanes = lanes or (2 if self.kind == "cpu" else max(2, min(8, cores // 2)))
        self.builders = builders or max(1, cores // 2)
        self.per_task = per_task
        self.memory = int(FILLED * (device.memory_bytes or 1 << 60))
        self._seats: list[_Seat] = []
        self._ready: list[_Ticket] = []
        self._changed = threading.Condition()
        self._closed = False
        self._ending = False
        """Whether all jobs have been read."""
        self._building = ThreadPoolExecutor(self.builders, thread_name_prefix="build")
        self._threads = [threading.Thread(target=self._lane, name=f"lane-{n}", daemon=True) for n in range(self.lanes)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(abort=kind is not None)

    def close(self, *, abort: bool = False) -> None:
        """Let what is under way come to its end (``abort``: kill its processes), drop what waits, whose futures raise
        InfrastructureError, and end the oracles; safe to call twice."""
        with self._changed:
            self._closed = True
            dropped, self._ready = self._ready, []
            busy = [seat.evaluator for seat in self._seats if seat.busy]
            self._changed.notify_all()
        for evaluator in busy if abort else []:
            for session in list(evaluator.sessions):
                session.abort()
        for ticket in dropped:
            ticket.result.set_exception(_closed())
        self._building.shutdown(wait=True)
        for thread in self._threads:
            thread.join()
        seats, self._seats = self._seats, []
        for seat in seats:
            seat.evaluator.__exit__(None, None, None)

    def evaluate_many(self, jobs: Iterable[Job]) -> Iterator[Done]:
        """Evaluate all, each yielded as soon as it is done, in whatever order.

        ``jobs`` is read no further ahead than the lanes need, so that it may be made from earlier answers. Raises
        TaskError when a Task cannot be evaluated.
        """
        source = iter(jobs)
        finished: queue.SimpleQueue[Future[Done]] = queue.SimpleQueue()
        under_way, more = 0, True
        self._ending = False
        while more or under_way:
            while more and under_way < self.lanes * AHEAD:
                job = next(source, None)
                if job is None:
                    more, self._ending = False, True
                else:
                    self.submit(job).add_done_callback(finished.put)
                    under_way += 1
            if under_way:
                done = finished.get()
                under_way -= 1
                yield done.result()

    def submit(self, job: Job) -> Future[Done]:
        """Evaluate one. Its build begins as soon as a builder is free; then it waits for a lane and its Task's
        Evaluator. The future raises TaskError or InfrastructureError when there is no Evaluation."""
        result: Future[Done] = Future()
        result.set_running_or_notify_cancel()
        try:
            self._building.submit(self._build, job, result, time.monotonic())
        except RuntimeError:
            result.set_exception(_closed())
        return result

    def _build(self, job: Job, result: Future[Done], queued: float) -> None:
        if self._queue(None, result):
            return
        try:
            # On cpu compilers use the cores that a clock counts on.
            with self.gate.hold("start", job.name) if self.kind == "cpu" else contextlib.nullcontext():
                began = time.monotonic()
                product = build(
                    job.program,
                    job.task.target,
                    cache=self.cache,
                    precision=job.task.precision,
                    timeout_s=self.settings.build_timeout_s,
                )
            ticket = _Ticket(job, result, queued, product, (began, time.monotonic()))
            if not product.ok:
                self._finish(ticket, self._evaluator(job))  # needs neither a lane nor an oracle
                return
        except BaseException as error:
            result.set_exception(error)
            return
        self._queue(ticket, result)

    def _queue(self, ticket: _Ticket | None, result: Future[Done]) -> bool:
        """Add what is ready, if anything; whether the pipeline is closed, which whoever waits then hears."""
        with self._changed:
            closed = self._closed
            if ticket is not None and not closed:
                self._ready.append(ticket)
                self._changed.notify()
        if closed:
            result.set_exception(_closed())
        return closed

    def _evaluator(self, job: Job) -> Evaluator:
        settings, gate = self.settings, self.gate
        evaluator = Evaluator(job.task, job.facts, self.device, cache=self.cache, settings=settings, gate=gate)
        evaluator.crowded = True
        evaluator.expects = partial(self._expects, job.task)
        return evaluator

    def _expects(self, task: Task) -> bool:
        """Whether another Program of a Task may come: not once all jobs have been read, and none of its is ready."""
        with self._changed:
            return not self._ending or any(ticket.job.task.digest == task.digest for ticket in self._ready)

    def _finish(self, ticket: _Ticket, evaluator: Evaluator) -> Evaluation:
        """Evaluate, and tell whoever waits unless it is to be tried again."""
        job, begun = ticket.job, time.monotonic()
        evaluator.gate.label = job.name
        evaluation = evaluator.evaluate(job.program, job.tier, ticket.build)
        if not (short_of_memory(evaluation) and not ticket.alone and self._crowded()):
            spans = tuple(s for s in list(self.gate.spans) if s.label == job.name and s.begin >= ticket.queued)
            ticket.result.set_result(Done(job, evaluation, ticket.queued, ticket.built, begun, time.monotonic(), spans))
        return evaluation

    def _crowded(self) -> bool:
        with self._changed:
            return len(self._seats) > 1

    def _lane(self) -> None:
        """A thread that evaluates what is ready, one after the other."""
        while True:
            with self._changed:
                while (choice := self._choose()) is None and not self._closed:
                    self._changed.wait()
                if choice is None:
                    return
                ticket, seat, leaving = choice
            for old in leaving:
                old.evaluator.__exit__(None, None, None)
            self._serve(ticket, seat)

    def _serve(self, ticket: _Ticket, seat: _Seat) -> None:
        try:
            if seat.evaluator._client is None:
                seat.evaluator.__enter__()
            self._finish(ticket, seat.evaluator)
        except BaseException as error:
            ticket.result.set_exception(error)
        with self._changed:
            seat.busy, seat.used = False, time.monotonic()
            if not ticket.result.done():
                if self._closed:
                    ticket.result.set_exception(_closed())
                else:
                    self._ready.insert(0, replace(ticket, alone=True))
            self._changed.notify_all()

    def _choose(self) -> tuple[_Ticket, _Seat, list[_Seat]] | None:
        """The first ready Program whose Task has a free Evaluator, or room for one, with the Evaluators that have to go
        for it; None when nothing can go on now. With the lock held."""
        for evict in (False, True):
            for place, ticket in enumerate(self._ready):
                seat, leaving = self._seat_for(ticket, evict)
                if seat is not None:
                    del self._ready[place]
                    return ticket, seat, leaving
        return None

    def _seat_for(self, ticket: _Ticket, evict: bool) -> tuple[_Seat | None, list[_Seat]]:
        digest = ticket.job.task.digest + repr(ticket.job.facts)
        own = [seat for seat in self._seats if seat.digest == digest]
        idle = sorted((seat for seat in self._seats if not seat.busy), key=lambda seat: seat.used)
        if ticket.alone:
            if len(idle) < len(self._seats) or not evict:
                return None, []
            return self._take(ticket, digest, idle)
        free = next((seat for seat in own if not seat.busy), None)
        if free is not None:
            free.busy = True
            return free, []
        if len(own) >= self.per_task:
            return None, []
        need = memory_need(ticket.job.task, ticket.job.facts)
        leaving: list[_Seat] = []
        while self._seats and not self._fits(need, leaving):
            if not evict or len(leaving) == len(idle):
                return None, []
            leaving.append(idle[len(leaving)])
        return self._take(ticket, digest, leaving)

    def _fits(self, need: int, leaving: list[_Seat]) -> bool:
        staying = [seat for seat in self._seats if seat not in leaving]
        if not staying:
            return True
        return len(staying) < OPEN_TASKS and sum(seat.need for seat in staying) + need <= self.memory

    def _take(self, ticket: _Ticket, digest: str, leaving: list[_Seat]) -> tuple[_Seat, list[_Seat]]:
        self._seats = [seat for seat in self._seats if seat not in leaving]
        seat = _Seat(digest, self._evaluator(ticket.job), memory_need(ticket.job.task, ticket.job.facts))
        self._seats.append(seat)
        return seat, leaving


def memory_need(task: Task, facts: TaskFacts) -> int:
    """About what an Evaluator of a Task needs on its device (on cpu, of the machine) at its worst, bytes: inputs and
    outputs in shared buffers, copies and the reference's own in two processes, its state also in fp64 and under noise.
    """
    tensors = sum(tensor_bytes(fact) for fact in (*facts.inputs, *facts.outputs) if isinstance(fact, TensorFacts))
    contexts = CONTEXTS if task.target.kind == "cuda" else CONTEXTS // 4
    return 8 * tensors + 8 * 4 * facts.parameters + contexts


def tensor_bytes(fact: TensorFacts) -> int:
    """Bytes of a tensor's elements."""
    count = 1
    for size in fact.shape:
        count *= size
    return count * ELEMENT_BYTES.get(fact.dtype, 4 if fact.dtype.endswith("32") else 2)


def short_of_memory(evaluation: Evaluation) -> bool:
    """Whether it ended for want of memory, its own or the oracle's."""
    if evaluation.status == "infrastructure_error":
        return "memory" in evaluation.message
    return evaluation.status == "out_of_memory"


def _closed() -> InfrastructureError:
    return InfrastructureError("the pipeline was closed before the program's turn came")
