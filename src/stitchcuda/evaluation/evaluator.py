"""The protocol: supervisor of an oracle and of runners, from a Program to an Evaluation. It holds the clock
and the verdict, imports neither torch nor a Program, and believes records and exported bytes only.

How a call is exchanged is in ``session``; what is right, in ``oracle``; how fast, in ``timing``; what cheating
looks like, in ``integrity`` and ``bounds``.
"""

from __future__ import annotations

import itertools
import random
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation import baseline_cache
from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.model import (
    Evaluation,
    Tier,
    Timing,
)
from stitchcuda.evaluation.oracle_client import OracleClient
from stitchcuda.evaluation.runner_client import Failure, Subject
from stitchcuda.evaluation.session import Session
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.telemetry import Trace, own_kernels, parse_trace
from stitchcuda.evaluation.timing import Sample, TimingPlan, summarise
from stitchcuda.evaluation.trial import Trial
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts


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
    ) -> None:
        self.task, self.facts, self.device = task, facts, device
        self.cache = cache
        self.settings = settings or EvaluationSettings()
        self.kind = task.target.kind
        self._client: OracleClient | None = None
        self._plan: dict[str, Any] | None = None
        self._calls = itertools.count(1)
        self._stock: dict[str, Session | str] = {}

    def __enter__(self) -> Evaluator:
        self._start_oracle()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_oracle()

    def _start_oracle(self) -> OracleClient:
        if self._client is None:
            self._client = OracleClient(self.settings.oracle_timeout_s)
            self._plan = None
        return self._client

    def _stop_oracle(self) -> None:
        for session in self._stock.values():
            if isinstance(session, Session):
                session.close()
        self._stock.clear()
        if self._client is not None:
            self._client.close()
        self._client = self._plan = None

    @property
    def oracle(self) -> OracleClient:
        """The oracle with the task loaded; started anew when it had died."""
        client = self._start_oracle()
        if self._plan is None:
            self._plan = client.ask(
                "init",
                task=self.task.model_dump(),
                training=self.facts.training,
                stochastic=self.facts.stochastic,
                seedable=self.facts.seedable,
                tolerance=self.settings.tolerance(self.task.precision).model_dump(),
            )
        return client

    @property
    def plan(self) -> dict[str, Any]:
        """What the oracle said about the task: sizes, cases, work."""
        _ = self.oracle
        assert self._plan is not None
        return self._plan

    def evaluate(self, program: Program, tier: Tier = "screen") -> Evaluation:
        """Build, run, check and time a Program. Never raises for what the Program or the machine does.

        Raises TaskError when the task itself cannot be evaluated.
        """
        work = Trial(self, program, tier)
        try:
            return work.run()
        except Failure as failure:
            return work.failed(failure.status, failure.message, failure.log)
        except InfrastructureError as error:
            self._stop_oracle()
            return work.failed("infrastructure_error", str(error), "")
        except OSError as error:
            self._stop_oracle()
            return work.failed("infrastructure_error", f"the machine refused something: {error}", "")
        finally:
            work.close()

    def baseline_names(self) -> list[str]:
        """The stock options that exist on this target, eager first."""
        if self.kind == "cpu":
            names = ["eager", "compile"]
        else:
            names = ["eager", "cuda_graph", "compile", "compile_reduce_overhead"]
        return [*names, "compile_max_autotune"] if self.settings.max_autotune else names

    def baselines(self, tier: Tier = "screen") -> dict[str, Timing]:
        """Timings of the stock options of the Task's precision class; one that failed has n = 0 and a note.

        ``screen`` takes them from the cache where they are known; ``publish`` measures anew.
        """
        path = baseline_cache.cache_path(
            self.cache, self.task, self.device, self.plan["torch"], self.device.multiprocessors
        )
        known = baseline_cache.read(path) if tier == "screen" else {}
        missing = [name for name in self.baseline_names() if name not in known]
        if missing:
            self.oracle.ask("renew", nonce=secrets.token_hex(16))
            for group in [missing] if self.roomy(len(missing)) else [[name] for name in missing]:
                known |= self._measure_baselines(group)
            baseline_cache.write(path, known)
        return {name: known[name] for name in self.baseline_names()}

    def _measure_baselines(self, names: list[str]) -> dict[str, Timing]:
        """Stock options timed call by call beside each other."""
        stock = self.open_stocks(names)
        sessions = [session for session in stock.values() if isinstance(session, Session)]
        self.time(sessions, self.screen_plan())
        timings = {}
        for name, session in stock.items():
            if isinstance(session, Session) and session.failure is None:
                timings[name] = self.summary(session, session.note)
            else:
                failure = session.failure if isinstance(session, Session) else session
                timings[name] = Timing(median=0, p10=0, p90=0, n=0, note=str(failure)[:300])
        for session in sessions:
            session.close()
        return timings

    def roomy(self, count: int) -> bool:
        """Whether so many subjects fit on the device beside each other and the oracle."""
        if self.kind == "cpu":
            return True
        each = 3 * (self.plan["inputs"] + self.plan["outputs"]) + 2 * self.plan["state"] + (1 << 30)
        return bool(count * each < 0.6 * self.plan["device_free"])

    def open_stocks(self, names: Sequence[str], label: str = "stock") -> dict[str, Session | str]:
        """``open_stock`` for several; at once on cuda, where starting up is most of a short measurement."""
        _ = self.plan
        with ThreadPoolExecutor(max_workers=1 if self.kind == "cpu" else max(1, len(names))) as pool:
            return dict(zip(names, pool.map(lambda name: self.open_stock(name, label), names), strict=True))

    def open_stock(self, name: str, label: str = "stock") -> Session | str:
        """A stock option, started and warm under the oracle's present state; a sentence when it cannot be had."""
        session = self.session(self.stock(name))
        try:
            session.open()
            session.load()
            self.warm_up(session, full=1, patience=self.settings.compile_timeout_s, label=f"{label}-{name}-")
        except Failure as failure:
            session.close()
            return f"{failure.status}: {failure.message}"[:300]
        if session.failure is not None:
            return f"{session.failure.status}: {session.failure.message}"[:300]
        return session

    def beside(self) -> dict[str, Session | str]:
        """The stock options that stay open beside screened Programs, brought to the oracle's present state."""
        for held in self._stock.values():
            if isinstance(held, Session) and held.failure is None:
                held.refresh()
        self._stock |= self.open_stocks([name for name in self.baseline_names() if name not in self._stock])
        return self._stock

    def stock(self, name: str) -> Subject:
        """A baseline as something a runner can run."""
        folder = self.cache / "inductor" / self.plan["torch"]
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
        if self.kind == "cpu":
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        return Subject(name, None, self.task.source, self.task.search_path, environment)

    def session(self, subject: Subject) -> Session:
        """A session, not yet open."""
        return Session(subject, self.oracle, self.plan, self.kind, self.settings)

    def trace(self, program: Program | None) -> Trace:
        """A torch.profiler pass in a confined runner; None stands for the reference.

        Raises InfrastructureError when the subject fails or reports nothing usable.
        """
        if program is None:
            subject = self.stock("eager")
        else:
            built = build(program, self.task.target, cache=self.cache, precision=self.task.precision)
            if not built.ok:
                raise InfrastructureError(f"the program does not build: {built.log[:500]}")
            subject = Subject("program", built.folder, search_path=self.task.search_path)
        self.oracle.ask("renew", nonce=secrets.token_hex(16))
        session = self.session(subject)
        try:
            session.open()
            session.load()
            self.warm_up(session, full=0)
            trace = self.take_trace(session, program)
        except Failure as failure:
            raise InfrastructureError(f"no trace of {subject.name}: {failure.message}") from None
        finally:
            session.close()
        if trace is None:
            raise InfrastructureError(f"the trace of {subject.name} could not be read")
        return trace

    def take_trace(self, session: Session, program: Program | None) -> Trace | None:
        """Trace an open session on the inputs it last took."""
        own = own_kernels(program.files) if program is not None else frozenset()
        which: Literal["reference", "program"] = "reference" if program is None else "program"
        return parse_trace(session.trace(), subject=which, target=self.kind, own=own)

    def patience(self) -> float:
        """Seconds that a call may take once the first has run."""
        return max(5.0, self.settings.call_timeout_factor * self.facts.eager_seconds)

    def play(
        self,
        sessions: Sequence[Session],
        label: str,
        case: str | None,
        *,
        full: bool = False,
        hold: bool = False,
        patience: float | None = None,
    ) -> list[tuple[Session, Sample, dict[str, Any]]]:
        """One round: the same fresh inputs to every session in random order, each call exported and checked.

        A Program's failure is raised; a stock option that fails is closed and left out from then on.
        """
        sessions = [session for session in sessions if session.failure is None]
        number = next(self._calls)
        filled = self.oracle.ask("fill", call=number, label=label, case=case, sessions=[s.number for s in sessions])
        played = []
        for session in random.sample(sessions, len(sessions)):
            state = full and bool(self.plan["watch"]) and not session.subject.trusted
            try:
                sample = session.call(
                    number, filled["seed"], hold=hold, state=state, timeout_s=patience or self.patience()
                )
            except Failure as failure:
                if not session.subject.trusted:
                    raise
                session.failure = failure
                session.close()
                continue
            verdict = self.oracle.ask("check", session=session.number, call=number, full=full, hold=hold, state=state)
            session.missing_state.update(verdict["missing_state"])
            if session.subject.trusted and not verdict["ok"]:
                session.note = f"not within the error budget: {verdict['message'][:200]}"
            played.append((session, sample, verdict))
        return played

    def warm_up(
        self,
        session: Session,
        *,
        full: int,
        check: Callable[[dict[str, Any], bool], None] = lambda verdict, full: None,
        patience: float | None = None,
        label: str = "check",
    ) -> None:
        """The first calls: ``full`` of each case against fp64, then more until warm. A Program's outputs are held."""
        cases = self.plan["cases"]
        for case in cases:
            for index in range(max(full, self.settings.warmup_calls)):
                hold = not session.subject.trusted and case == cases[0] and index < self.held_calls()
                wait = (patience or self.settings.call_timeout_s) if session.calls == 0 else patience
                judged = index < full
                for _, _, verdict in self.play(
                    [session], f"{label}{index}", case, full=judged, hold=hold, patience=wait
                ):
                    check(verdict, judged)

    def held_calls(self) -> int:
        """How many outputs the runner keeps; fewer when they are large."""
        return self.settings.held_outputs if self.plan["outputs"] < 1 << 30 else min(1, self.settings.held_outputs)

    def screen_plan(self) -> TimingPlan:
        """How many timed calls the screen tier makes."""
        s = self.settings
        return TimingPlan(calls=s.screen_calls, least=s.screen_min_calls, seconds=s.screen_seconds)

    def time(
        self,
        sessions: Sequence[Session],
        plan: TimingPlan,
        check: Callable[[dict[str, Any], bool], None] = lambda verdict, full: None,
        label: str = "timed",
    ) -> None:
        """Timed calls, every one on fresh inputs and checked; samples are added to the sessions."""
        for session in sessions:
            session.measure_noop()
        began = time.monotonic()
        cases = self.plan["cases"]
        for index in range(plan.calls * len(cases)):
            if index >= plan.least * len(cases) and time.monotonic() - began > plan.seconds:
                break
            case = cases[index % len(cases)]
            for session, sample, verdict in self.play(sessions, f"{label}{index}", case):
                session.samples.append((str(case), sample))
                if not session.subject.trusted:
                    check(verdict, False)

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
            note=note or "weighted mean over the input cases",
        )
