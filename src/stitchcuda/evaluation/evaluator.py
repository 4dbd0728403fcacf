"""The protocol: supervisor of an oracle and of runners, from a Program to an Evaluation. It holds the clock
and the verdict, imports neither torch nor a Program, and believes records and exported bytes only.

How a call is exchanged is in ``session``; what is right, in ``oracle``; how fast, in ``timing``; what cheating
looks like, in ``integrity`` and ``bounds``.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from stitchcuda import __version__
from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation import baseline_cache, bounds
from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.integrity.census import take_census
from stitchcuda.evaluation.model import (
    Correctness,
    Evaluation,
    Finding,
    OutputError,
    Status,
    Tier,
    Timing,
)
from stitchcuda.evaluation.oracle_client import OracleClient
from stitchcuda.evaluation.runner_client import Failure, Subject
from stitchcuda.evaluation.session import Planes, Session
from stitchcuda.evaluation.settings import EvaluationSettings
from stitchcuda.evaluation.telemetry import Trace, own_kernels, parse_trace
from stitchcuda.evaluation.timing import Sample, clock_finding, summarise
from stitchcuda.hardware.model import Device
from stitchcuda.program.model import Program
from stitchcuda.task.model import Task, TaskFacts


@dataclass
class _Checks:
    """What the checked calls of one Program showed."""

    worst: dict[str, OutputError] = field(default_factory=dict)
    calls: int = 0
    labels: set[str] = field(default_factory=set)

    def add(self, verdict: dict[str, Any], full: bool) -> None:
        self.calls += 1
        self.labels.update(verdict["labels"])
        for raw in verdict["outputs"]:
            error = OutputError(**raw)
            known = self.worst.get(error.output)
            if not error.ok or (full and (known is None or error.relative_norm > known.relative_norm)):
                self.worst[error.output] = error

    def correctness(self, message: str = "") -> Correctness:
        return Correctness(ok=not message, calls_checked=self.calls, outputs=list(self.worst.values()), message=message)


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
        self._call = 0

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
        """Build, run, check and time a Program. Never raises for what the Program or the machine does."""
        work = _Work(self, program, tier)
        try:
            return work.run()
        except Failure as failure:
            return work.failed(failure.status, failure.message, failure.log)
        except InfrastructureError as error:
            self._stop_oracle()
            return work.failed("infrastructure_error", str(error), "")
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
            known |= {name: self._measure_baseline(name) for name in missing}
            baseline_cache.write(path, known)
        return {name: known[name] for name in self.baseline_names()}

    def _measure_baseline(self, name: str) -> Timing:
        session = self.session(self.stock(name))
        note = ""
        try:
            session.open()
            session.load()
            for verdict in self.warm_up([session], full=1, patience=self.settings.compile_timeout_s):
                note = note or ("" if verdict["ok"] else f"not within the error budget: {verdict['message'][:200]}")
            self.time([session], self.screen_plan())
            return self.summary(session, note)
        except Failure as failure:
            return Timing(median=0, p10=0, p90=0, n=0, note=f"{failure.status}: {failure.message}"[:300])
        finally:
            session.close()

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
            self.warm_up([session], full=0)
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
        """One round: the same fresh inputs to every session in random order, each call exported and checked."""
        self._call += 1
        filled = self.oracle.ask("fill", call=self._call, label=label, case=case, sessions=[s.number for s in sessions])
        played = []
        for session in random.sample(sessions, len(sessions)):
            state = bool(self.plan["watch"]) and not session.subject.trusted
            sample = session.call(
                self._call, filled["seed"], hold=hold, state=state, timeout_s=patience or self.patience()
            )
            verdict = self.oracle.ask(
                "check", session=session.number, call=self._call, full=full, hold=hold, state=state
            )
            session.missing_state.update(verdict["missing_state"])
            played.append((session, sample, verdict))
        return played

    def warm_up(
        self, sessions: Sequence[Session], *, full: int, patience: float | None = None, label: str = "warm"
    ) -> list[dict[str, Any]]:
        """The first calls: ``full`` of each case against fp64, then more until warm; returns the verdicts."""
        verdicts = []
        first = patience or self.settings.call_timeout_s
        for case in self.plan["cases"]:
            for index in range(max(full, self.settings.warmup_calls)):
                hold = case == self.plan["cases"][0] and index < self.held_calls() and full > 0
                for session, _, verdict in self.play(
                    sessions,
                    f"{label}{index}",
                    case,
                    full=index < full,
                    hold=hold and not sessions[0].subject.trusted,
                    patience=first if session_is_new(sessions) else None,
                ):
                    if not session.subject.trusted:
                        verdict["full"] = index < full
                    verdicts.append(verdict)
        return verdicts

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
        check: Callable[[dict[str, Any]], None] = lambda verdict: None,
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
                    check(verdict)

    def summary(self, session: Session, note: str = "") -> Timing:
        """A session's samples as one Timing; several input cases are weighted as the task says."""
        cuda = self.kind == "cuda"
        groups: dict[str, list[Sample]] = {}
        for case, sample in session.samples:
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


@dataclass(frozen=True)
class TimingPlan:
    """How many timed calls: up to ``calls``, at least ``least``, and none begun after ``seconds``."""

    calls: int
    least: int
    seconds: float


def session_is_new(sessions: Sequence[Session]) -> bool:
    """Whether some session has not made a call yet."""
    return any(session.calls == 0 for session in sessions)


class _Work:
    """One Program on its way to an Evaluation."""

    def __init__(self, evaluator: Evaluator, program: Program, tier: Tier) -> None:
        self.evaluator, self.program, self.tier = evaluator, program, tier
        self.settings = evaluator.settings
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.findings: list[Finding] = []
        self.checks = _Checks()
        self.timings: dict[str, Timing] = {}
        self.notes: dict[str, str] = {}
        self.opened: list[Session] = []
        self.session: Session | None = None
        self.nonce = secrets.token_hex(16)
        self.trace: Trace | None = None
        self.log = ""

    def close(self) -> None:
        for session in self.opened:
            session.close()

    def open(self, subject: Subject) -> Session:
        session = self.evaluator.session(subject)
        self.opened.append(session)
        session.open()
        session.load()
        return session

    def run(self) -> Evaluation:
        evaluator, settings = self.evaluator, self.settings
        built = build(
            self.program,
            evaluator.task.target,
            cache=evaluator.cache,
            precision=evaluator.task.precision,
            timeout_s=settings.build_timeout_s,
        )
        self.seconds["build"] = built.seconds
        self.log = built.log
        if not built.ok or built.folder is None:
            first = next((line for line in built.log.splitlines() if line.strip()), "no message")
            raise Failure("build_failed", f"the program does not build: {first[:300]}", built.log)
        evaluator.oracle.ask("renew", nonce=self.nonce)
        subject = Subject("program", built.folder, search_path=evaluator.task.search_path)
        if self.tier == "publish":
            self._publish(subject)
        else:
            self._screen(subject)
        return self._verdict()

    def _screen(self, subject: Subject) -> None:
        evaluator = self.evaluator
        session = self._begin(subject, full=self.settings.correctness_seeds)
        evaluator.time([session], evaluator.screen_plan(), self._checked)
        self._clock(session)
        session.check_held()
        self._census(session)
        self.timings["program"] = evaluator.summary(session)
        session.close()
        if self.settings.baselines:
            began = time.monotonic()
            for name, timing in evaluator.baselines("screen").items():
                self._keep_baseline(name, timing)
            self.seconds["baselines"] = time.monotonic() - began

    def _publish(self, subject: Subject) -> None:
        """Several fresh processes of everything, calls interleaved."""
        evaluator, settings = self.evaluator, self.settings
        rounds = settings.publish_processes
        calls = -(-settings.publish_calls // rounds)
        names = evaluator.baseline_names() if settings.baselines else []
        samples: dict[str, list[tuple[str, Sample]]] = {}
        for index in range(rounds):
            label = f"round{index}-"
            session = self._begin(subject, full=settings.correctness_seeds if index == 0 else 1, label=label)
            stock = []
            for name in list(names):
                try:
                    other = self.open(evaluator.stock(name))
                    for verdict in evaluator.warm_up(
                        [other], full=0, patience=settings.compile_timeout_s, label=f"{label}{name}"
                    ):
                        if not verdict["ok"]:
                            self.notes[name] = f"not within the error budget: {verdict['message'][:200]}"
                    stock.append(other)
                except Failure as failure:
                    names.remove(name)
                    self.notes[name] = f"{failure.status}: {failure.message}"[:300]
            plan = TimingPlan(calls, settings.screen_min_calls, settings.publish_seconds / rounds)
            evaluator.time([session, *stock], plan, self._checked, label=label)
            self._clock(session)
            session.check_held()
            if index == rounds - 1:
                self._census(session)
            for each in (session, *stock):
                samples.setdefault(each.subject.name, []).extend(each.samples)
            for each in (session, *stock):
                if each is not session or index < rounds - 1:
                    each.close()
        for name, taken in samples.items():
            holder = evaluator.session(Subject(name))
            holder.samples = taken
            timing = evaluator.summary(holder, self.notes.get(name, ""))
            if name == "program":
                self.timings["program"] = timing
            else:
                self._keep_baseline(name, timing)

    def _begin(self, subject: Subject, *, full: int, label: str = "check") -> Session:
        """Open the Program and make its first calls, each checked."""
        began = time.monotonic()
        session = self.session = self.open(subject)
        self.seconds["start"] = self.seconds.get("start", 0.0) + time.monotonic() - began
        for key, value in session.seconds.items():
            self.seconds[key] = value
        began = time.monotonic()
        evaluator = self.evaluator
        for case in evaluator.plan["cases"]:
            for index in range(max(full, self.settings.warmup_calls)):
                first_case = case == evaluator.plan["cases"][0]
                hold = first_case and index < evaluator.held_calls()
                patience = self.settings.call_timeout_s if session.calls == 0 else None
                [(_, _, verdict)] = evaluator.play(
                    [session], f"{label}{index}", case, full=index < full, hold=hold, patience=patience
                )
                self._checked(verdict, full=index < full)
        self.seconds["check"] = self.seconds.get("check", 0.0) + time.monotonic() - began
        return session

    def _checked(self, verdict: dict[str, Any], full: bool = False) -> None:
        self.checks.add(verdict, full)
        if not verdict["ok"]:
            raise Failure("wrong_output", verdict["message"])

    def _clock(self, session: Session) -> None:
        """Compare clocks; on disagreement measure once more, since a busy machine delays hand-overs too."""
        finding = clock_finding([s for _, s in session.samples], session.noop)
        if finding is None:
            return
        earlier = len(session.samples)
        least = self.settings.screen_min_calls
        self.evaluator.time([session], TimingPlan(least, least, 1e9), self._checked, label="again")
        finding = clock_finding([s for _, s in session.samples[earlier:]], session.noop)
        if finding is not None:
            self.findings.append(finding)
            raise Failure("dishonest", f"the clocks disagree: {finding.evidence}")

    def _census(self, session: Session) -> None:
        if not self.settings.trace_program:
            return
        began = time.monotonic()
        try:
            self.trace = self.evaluator.take_trace(session, self.program)
        except Failure as failure:
            self.findings.append(Finding(rule="no_trace", severity="flag", evidence=failure.message))
        self.seconds["trace"] = time.monotonic() - began

    def _keep_baseline(self, name: str, timing: Timing) -> None:
        if timing.n:
            self.timings[name] = timing
        if timing.note:
            self.notes[name] = timing.note

    def _verdict(self) -> Evaluation:
        evaluator = self.evaluator
        median = self.timings["program"].median
        if self.session is not None and self.session.missing_state:
            names = ", ".join(sorted(self.session.missing_state)[:5])
            self.findings.append(
                Finding(rule="state_update", severity="flag", evidence=f"a call leaves {names} as it was")
            )
        self.findings += bounds.bound_findings(evaluator.plan["work"], evaluator.device, median)
        rejected = next((f for f in self.findings if f.severity == "reject"), None)
        if rejected is not None:
            status: Status = "impossible" if rejected.rule == "impossible" else "dishonest"
            return self._evaluation(status, rejected.evidence, self.checks.correctness())
        speedup = self._speedup(median)
        best = f", {speedup['over_best']:.2f}x over the best stock option" if "over_best" in speedup else ""
        message = f"correct in {self.checks.calls} calls; {median * 1e3:.3f} ms a call{best}"
        return self._evaluation("correct", message, self.checks.correctness(), speedup)

    def _speedup(self, median: float) -> dict[str, float]:
        speedup = {name: t.median / median for name, t in self.timings.items() if name != "program" and median > 0}
        sound = [ratio for name, ratio in speedup.items() if "error budget" not in self.notes.get(name, "")]
        return speedup | ({"over_best": min(sound)} if sound else {})

    def failed(self, status: Status, message: str, log: str) -> Evaluation:
        """The Evaluation of a Program that did not come through."""
        self.log = log or self.log
        correctness = self.checks.correctness(message) if status == "wrong_output" else None
        self.timings = {}
        return self._evaluation(status, message, correctness)

    def _evaluation(
        self, status: Status, message: str, correctness: Correctness | None, speedup: dict[str, float] | None = None
    ) -> Evaluation:
        evaluator, session = self.evaluator, self.session
        labels = set(self.checks.labels)
        if evaluator.facts.stochastic:
            labels.add("stochastic")
        if any(opened.seeded for opened in self.opened):
            labels.add("seeded_weights")
        program = self.timings.get("program")
        sol = None
        if program is not None and status == "correct":
            task = evaluator.task
            sol = bounds.speed_of_light(evaluator.plan["work"], evaluator.device, task.precision, program.median)
        self.seconds["total"] = time.monotonic() - self.began
        return Evaluation(
            status=status,
            message=message,
            tier=self.tier,
            precision=evaluator.task.precision,
            findings=self.findings,
            correctness=correctness,
            timings=self.timings,
            speedup=speedup or {},
            census=take_census(self.trace) if self.trace is not None else None,
            sol=sol,
            labels=sorted(labels),
            log=_shorten(self.log, 4000),
            seconds={name: round(value, 6) for name, value in self.seconds.items()},
            memory={"host": session.peak_host, "device": session.peak_device} if session is not None else {},
            provenance=self._provenance(),
        )

    def _provenance(self) -> dict[str, str | float | int | bool | None]:
        evaluator, session = self.evaluator, self.session
        plan = evaluator._plan or {}
        confinement = "not started"
        if session is not None:
            confinement = "full" if not session.missing else "without " + ", ".join(session.missing)
        provenance: dict[str, str | float | int | bool | None] = {
            "device": evaluator.device.name,
            "driver": evaluator.device.driver,
            "cuda": plan.get("cuda", ""),
            "torch": plan.get("torch", ""),
            "nonce": self.nonce,
            "stitchcuda": __version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "confinement": confinement,
            "data_plane": "device" if evaluator.kind == "cuda" and Planes.ipc else "host",
            "fixed_inputs": bool(plan.get("fixed_inputs", False)),
            "task": evaluator.task.digest,
            "program": self.program.digest,
        }
        return provenance | {f"baseline:{name}": note for name, note in self.notes.items()}


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: limit // 2 - 20] + "\n[...]\n" + text[-(limit // 2 - 20) :]
