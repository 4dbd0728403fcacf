"""The protocol: supervisor of an oracle and of runners, from a Program to an Evaluation. It holds the clock
and the verdict, imports neither torch nor a Program, and believes records and exported bytes only.

Which calls are made is in ``calls``; how one is exchanged, in ``session``; what is right, in ``oracle``; how fast, in
``timing``; what cheating looks like, in ``integrity`` and ``bounds``.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation.build import Build, build
from stitchcuda.evaluation.calls import Calls
from stitchcuda.evaluation.device_gate import Gate, Holder, gate_of
from stitchcuda.evaluation.gpu_clocks import GpuClocks
from stitchcuda.evaluation.model import (
    Evaluation,
    Tier,
    Timing,
)
from stitchcuda.evaluation.oracle_client import OracleClient
from stitchcuda.evaluation.peaks import free_memory
from stitchcuda.evaluation.runner_client import Failure, Subject
from stitchcuda.evaluation.session import Exchanges, Session
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.stock_options import StockOptions, cores
from stitchcuda.evaluation.telemetry import Trace, own_names, parse_trace
from stitchcuda.evaluation.timing import Sample, summarise
from stitchcuda.evaluation.trial import Trial
from stitchcuda.evaluation.verdict import conclude_failed
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts

REFERENCE = "reference"
"""In place of a Program's digest."""

SPARE_CORES = 4
"""Cores from which on a process may be started beside others' untimed work."""

KEPT_TRACES = 16
"""Traces of the latest Programs that are kept."""


class Evaluator:
    """Evaluates Programs for one Task on one Device; a context manager. One thread at a time.

    The oracle starts on entry and serves all Programs; every Program gets a fresh runner and a fresh secret nonce.
    Raises InfrastructureError from ``baselines`` and ``trace``; ``evaluate`` turns it into a status.
    """

    def __init__(
        self,
        task: Task,
        facts: TaskFacts,
        device: Device,
        *,
        cache: Path,
        settings: EvaluationSettings | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.task, self.facts, self.device = task, facts, device
        self.cache = cache
        self.settings = settings or EvaluationSettings()
        self.kind = task.target.kind
        # On cpu other load moves all times together, and the stock options run beside every Program.
        self.gate = Holder(gate or (gate_of("cuda") if self.kind == "cuda" else Gate(None)))
        self.crowded = False
        """Whether other Evaluators use the device in between, through the same gate"""
        self.expects: Callable[[], bool] = lambda: True
        """Whether another Program of the Task is likely to come next, for which a process is worth starting"""
        self.exchanges = Exchanges()
        self._client: OracleClient | None = None
        self._plan: dict[str, Any] | None = None
        self._loading = threading.Lock()
        self.calls = Calls(self)
        self.sessions: set[Session] = set()
        """Those that are not closed."""
        self._spare: Session | None = None
        self._warming: threading.Thread | None = None
        self._traces: dict[str, Trace] = {}
        self.stocks = StockOptions(self)
        self.clocks = GpuClocks(self.kind == "cuda")

    def __enter__(self) -> Evaluator:
        self._start_oracle()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_oracle()

    def _start_oracle(self) -> OracleClient:
        if self._client is None:
            self._client = OracleClient(self.settings.oracle_timeout_s, self.kind, self.gate)
            self._plan = None
        return self._client

    def _stop_oracle(self) -> None:
        if self._spare is not None:
            self._spare.abort()  # what it has begun is given up
        self._warmed()
        self.stocks.held.clear()
        self.stocks.early.clear()
        self._spare = None
        self.close_all(list(self.sessions))
        if self._client is not None:
            self._client.close()
        self._client = self._plan = None
        self.exchanges = Exchanges()

    @property
    def loaded(self) -> bool:
        """Whether the oracle has the task loaded."""
        return self._client is not None and self._plan is not None

    @property
    def oracle(self) -> OracleClient:
        """The oracle with the task loaded; started anew when it had died."""
        if self._client is not None and self._plan is not None:
            return self._client
        with self.gate.hold("start"), self._loading:
            client = self._start_oracle()
            if self._plan is None:
                self._plan = client.ask(
                    "init",
                    task=self.task.model_dump(),
                    training=self.facts.training,
                    stochastic=self.facts.stochastic,
                    seedable=self.facts.seedable,
                    tolerance=self.settings.tolerance(self.task.precision).model_dump(),
                    battery=str(self.cache / "battery" / f"{self.task.digest}.json"),
                )
            return client

    @property
    def plan(self) -> dict[str, Any]:
        """What the oracle said about the task: sizes, cases, work."""
        _ = self.oracle
        assert self._plan is not None
        return self._plan

    def evaluate(self, program: Program, tier: Tier = "screen", built: Build | None = None) -> Evaluation:
        """Build (unless it was ``built`` already), run, check and time a Program. Never raises for what the Program or
        the machine does.

        Raises TaskError when the task itself cannot be evaluated.
        """
        work = Trial(self, program, tier, built)
        try:
            return work.run()
        except Failure as failure:
            return conclude_failed(work, failure)
        except InfrastructureError as error:
            self._stop_oracle()
            return conclude_failed(work, Failure("infrastructure_error", str(error)))
        except OSError as error:
            self._stop_oracle()
            return conclude_failed(work, Failure("infrastructure_error", f"the machine refused something: {error}"))
        finally:
            work.close()

    def baselines(self, tier: Tier = "screen") -> dict[str, Timing]:
        """Timings of the stock options of the Task's precision class; one that failed has n = 0 and a note.

        ``screen`` takes them from the cache where they are known; ``publish`` measures anew.
        """
        return self.stocks.baselines(tier, keep=self.interleaved and tier == "screen")

    @property
    def interleaved(self) -> bool:
        """Whether the stock options stay open to be timed beside every screened Program."""
        wanted = self.settings.interleave
        return self.kind == "cpu" if wanted is None else wanted

    def room(self, count: int, programs: int = 0) -> bool:
        """Whether so many subjects, ``programs`` of them Programs, fit beside each other and the oracle: in host
        memory, and on the device."""
        plan = self.plan
        tensors = plan["inputs"] + plan["outputs"]
        on_host = 3 * tensors + 2 * plan["state"] if self.kind == "cpu" else plan["state"] + (1 << 30)
        if count * (on_host + (1 << 29)) > 0.7 * free_memory():
            return False
        if self.kind == "cpu":
            return True
        # Of each one's outputs the oracle makes a copy before it judges them, and may keep it.
        # A Program may pack its weights beside their originals; stock options read one shared copy of the state, and
        # the oracle holds it in fp64 and under noise too.
        each = tensors + plan["outputs"] + plan["state"] + 3 * plan["peak"] + (1 << 30)
        oracle = 5 * plan["state"] + 4 * plan["peak"]
        return bool(count * each + programs * 2 * plan["state"] + oracle < plan["device_free"])

    def session(self, subject: Subject) -> Session:
        """A session, not yet open; closed with the Evaluator at the latest."""
        session = Session(subject, self)
        self.sessions.add(session)
        return session

    def prepare(self) -> None:
        """Start the next Program's process beside what is untimed, which has nothing to run yet; not where it would
        take cores from others."""
        if self._spare is None and self.spares() and self.expects():
            self._spare = self.session(self.subject())
            self._warming = threading.Thread(target=self._warm, args=(self._spare,), daemon=True)
            self._warming.start()

    def spares(self) -> bool:
        """Whether a process is started ahead for the next Program."""
        return self.kind == "cuda" and cores() >= SPARE_CORES

    def _warm(self, session: Session) -> None:
        """Start a process and wait until it has opened the device, while no clock counts. What fails here fails again
        when the session is opened."""
        with contextlib.suppress(Failure, InfrastructureError, OSError), self.gate.hold("start"):
            if not session.aborted:
                session.begin()
                session.wake()

    def _warmed(self) -> None:
        """Wait for that, since a process answers one thread at a time."""
        if self._warming is not None:
            self._warming.join()
        self._warming = None

    def program_session(self) -> Session:
        """A session for a Program, not yet open: the prepared one where there is one."""
        self._warmed()
        session, self._spare = self._spare, None
        if session is not None and session.settings is not self.settings:
            self.close_all([session])
            session = None
        return session or self.session(self.subject())

    def close_all(self, sessions: Sequence[Session]) -> None:
        """Close sessions side by side, since a process on a device takes its time to end."""
        if len(sessions) > 1:
            with ThreadPoolExecutor(max_workers=len(sessions)) as pool:
                list(pool.map(Session.close, sessions))
        for session in sessions:
            session.close()
        self.sessions.difference_update(sessions)

    def trace(self, program: Program | None) -> Trace:
        """A torch.profiler pass in a confined runner; None stands for the reference. What an earlier evaluation of the
        same Program has recorded is not recorded again.

        Raises InfrastructureError when the subject fails or reports nothing usable.
        """
        known = self._traces.get(program.digest if program is not None else REFERENCE)
        if known is not None:
            return known
        session = self.stocks.traceable() if program is None else None
        name = "the program" if program is not None else "eager"
        try:
            if session is None:
                session = self._begin_trace(program)
            trace = self.take_trace(session, program)
        except Failure as failure:
            if session is not None:
                session.failure = failure
            raise InfrastructureError(f"no trace of {name}: {failure.message}") from None
        finally:
            if session is not None and session not in self.stocks.held.values():
                self.close_all([session])
            if program is None and not self.interleaved:
                self.stocks.release()
        if trace is None:
            raise InfrastructureError(f"the trace of {name} could not be read")
        return trace

    def _begin_trace(self, program: Program | None) -> Session:
        """A session for a trace alone, warm."""
        folder = None
        session = self.stocks.session("eager") if program is None else self.program_session()
        if program is not None:
            built = build(program, self.task.target, cache=self.cache, precision=self.task.precision)
            if not built.ok:
                raise InfrastructureError(f"the program does not build: {built.log[:500]}")
            folder = built.folder
        self.oracle.ask("renew", nonce=secrets.token_hex(16))
        try:
            session.open()
            session.load(folder)
            self.calls.warm_up(session, full=0)
        except BaseException:
            self.close_all([session])
            raise
        return session

    def subject(self) -> Subject:
        """A Program of this task, whose files follow."""
        return Subject("program", search_path=self.task.search_path)

    def take_trace(self, session: Session, program: Program | None, kernels: Sequence[str] = ()) -> Trace | None:
        """Trace an open session on the inputs it last took; ``kernels``: symbols of those in the built library."""
        own = own_names(program, kernels) if program is not None else frozenset()
        which: Literal["reference", "program"] = "reference" if program is None else "program"
        trace = parse_trace(session.trace(), subject=which, target=self.kind, own=own)
        if trace is not None:
            self._traces[program.digest if program is not None else REFERENCE] = trace
            if len(self._traces) > KEPT_TRACES:
                del self._traces[next(name for name in self._traces if name != REFERENCE)]
        return trace

    def summary(self, session: Session, note: str = "") -> Timing:
        """A session's samples as one Timing."""
        return self.summarise(session.samples, note)

    def summarise(self, taken: Sequence[tuple[str, Sample]], note: str = "") -> Timing:
        """Samples by input case as one Timing; the cases are weighted as the task says."""
        cuda = self.kind == "cuda"
        groups: dict[str, list[Sample]] = {}
        for case, sample in taken:
            groups.setdefault(case, []).append(sample)
        if len(groups) == 1:
            return summarise(next(iter(groups.values())), cuda, note)
        parts = {case: summarise(samples, cuda) for case, samples in groups.items()}
        weights = {case: float(self.plan["weights"].get(case, 1 / len(parts))) for case in parts}

        def mean(value: Callable[[Timing], float]) -> float:
            return sum(weights[case] * value(part) for case, part in parts.items()) / sum(weights.values())

        return Timing(
            median=mean(lambda t: t.median),
            p10=mean(lambda t: t.p10),
            p90=mean(lambda t: t.p90),
            n=sum(part.n for part in parts.values()),
            device_median=mean(lambda t: t.device_median or 0.0) if cuda else None,
            low=mean(lambda t: t.median if t.low is None else t.low),
            high=mean(lambda t: t.median if t.high is None else t.high),
            note=note or "weighted mean over the input cases",
        )
