"""One Program on its way from files to an Evaluation: build, first calls, timed calls, findings, verdict.

The calls themselves are made by the ``evaluator``, which outlives the trial.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stitchcuda import __version__
from stitchcuda.evaluation import bounds
from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.integrity.census import take_census
from stitchcuda.evaluation.model import Correctness, Evaluation, Finding, OutputError, Status, Tier, Timing
from stitchcuda.evaluation.runner_client import Failure, Subject
from stitchcuda.evaluation.session import Planes, Session
from stitchcuda.evaluation.telemetry import Trace
from stitchcuda.evaluation.timing import Sample, TimingPlan, clock_finding
from stitchcuda.program.model import Program

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator


CLOCK_ATTEMPTS = 3
"""Batches of calls in which the clocks must disagree before a Program is rejected for it."""


@dataclass
class Checks:
    """What the checked calls of one Program showed."""

    worst: dict[str, OutputError] = field(default_factory=dict)
    calls: int = 0
    labels: set[str] = field(default_factory=set)
    reference: str = ""

    def add(self, verdict: dict[str, Any], full: bool) -> None:
        self.calls += 1
        self.labels.update(verdict["labels"])
        self.reference = verdict.get("reference", self.reference)
        for raw in verdict["outputs"]:
            error = OutputError(**raw)
            known = self.worst.get(error.output)
            if not error.ok or (full and (known is None or error.relative_norm > known.relative_norm)):
                self.worst[error.output] = error

    def correctness(self, message: str = "") -> Correctness:
        return Correctness(ok=not message, calls_checked=self.calls, outputs=list(self.worst.values()), message=message)


class Trial:
    """One Program on its way to an Evaluation."""

    def __init__(self, evaluator: Evaluator, program: Program, tier: Tier) -> None:
        self.evaluator, self.program, self.tier = evaluator, program, tier
        self.settings = evaluator.settings
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.findings: list[Finding] = []
        self.checks = Checks()
        self.timings: dict[str, Timing] = {}
        self.notes: dict[str, str] = {}
        self.opened: list[Session] = []
        self.session: Session | None = None
        self.nonce = secrets.token_hex(16)
        self.trace: Trace | None = None
        self.log = ""
        self.seeded = False

    def close(self) -> None:
        for session in self.opened:
            session.close()

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
        evaluator, settings = self.evaluator, self.settings
        session = self._begin(subject, full=settings.correctness_seeds)
        interleave = evaluator.kind == "cpu" if settings.interleave is None else settings.interleave
        stock: list[Session] = []
        if settings.baselines and interleave:
            began = time.monotonic()
            stock = self._sessions(evaluator.beside())
            self.seconds["baselines"] = time.monotonic() - began
        evaluator.time([session, *stock], evaluator.screen_plan(), self._checked)
        self._finish(session, stock)
        self._census(session)
        self.timings["program"] = evaluator.summary(session)
        for each in stock:
            if each.failure is None:
                self._keep_baseline(each.subject.name, evaluator.summary(each, each.note))
        session.close()
        if settings.baselines and not interleave:
            began = time.monotonic()
            for name, timing in evaluator.baselines("screen").items():
                self._keep_baseline(name, timing)
            self.seconds["baselines"] = time.monotonic() - began

    def _sessions(self, stock: dict[str, Session | str]) -> list[Session]:
        """Those that opened; the others' reasons are noted."""
        self.notes |= {name: reason for name, reason in stock.items() if isinstance(reason, str)}
        sessions = [session for session in stock.values() if isinstance(session, Session)]
        self.notes |= {s.subject.name: s.failure.message[:300] for s in sessions if s.failure is not None}
        return [session for session in sessions if session.failure is None]

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
            began = time.monotonic()
            stock = self._sessions(evaluator.open_stocks(names, label))
            self.opened += stock
            self.seconds["baselines"] = self.seconds.get("baselines", 0.0) + time.monotonic() - began
            plan = TimingPlan(calls, settings.screen_min_calls, settings.publish_seconds / rounds)
            evaluator.time([session, *stock], plan, self._checked, label=label)
            self._finish(session, stock)
            names = [each.subject.name for each in stock if each.failure is None]
            self.notes |= {each.subject.name: each.note for each in stock if each.note}
            for each in (session, *stock):
                if each.failure is None:
                    samples.setdefault(each.subject.name, []).extend(each.samples)
            if index == rounds - 1:
                self._census(session)
            for each in (session, *stock):
                each.close()
        for name, taken in samples.items():
            if name == "program":
                self.timings["program"] = evaluator.summarise(taken)
            elif name in names:
                self._keep_baseline(name, evaluator.summarise(taken, self.notes.get(name, "")))

    def _begin(self, subject: Subject, *, full: int, label: str = "check") -> Session:
        """Open the Program and make its first calls, each checked."""
        began = time.monotonic()
        session = self.session = self.evaluator.session(subject)
        self.opened.append(session)
        session.open()
        session.load()
        self.seeded = self.seeded or session.seeded
        self.seconds["start"] = self.seconds.get("start", 0.0) + time.monotonic() - began
        self.seconds |= session.seconds
        began = time.monotonic()
        self.evaluator.warm_up(session, full=full, check=self._checked, label=label)
        self.seconds["check"] = self.seconds.get("check", 0.0) + time.monotonic() - began
        return session

    def _finish(self, session: Session, stock: Sequence[Session]) -> None:
        """After the timed calls: the clocks agree, kept outputs are unchanged, failed stock options are noted."""
        self._clock(session)
        session.check_held()
        self.notes |= {each.subject.name: each.failure.message[:300] for each in stock if each.failure is not None}

    def _checked(self, verdict: dict[str, Any], full: bool) -> None:
        self.checks.add(verdict, full)
        if not verdict["ok"]:
            raise Failure("wrong_output", verdict["message"])

    def _clock(self, session: Session) -> None:
        """Compare clocks; on disagreement measure again, since a busy machine delays hand-overs too."""
        latest = session.samples
        for attempt in range(CLOCK_ATTEMPTS):
            finding = clock_finding([sample for _, sample in latest], session.noop)
            if finding is None:
                return
            if attempt == CLOCK_ATTEMPTS - 1:
                self.findings.append(finding)
                raise Failure("dishonest", f"the clocks disagree: {finding.evidence}")
            earlier = len(session.samples)
            least = self.settings.screen_min_calls
            self.evaluator.time([session], TimingPlan(least, least, 1e9), self._checked, label=f"again{attempt}-")
            latest = session.samples[earlier:]

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
        if self.seeded:
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
            "reference": self.checks.reference,
            "fixed_inputs": bool(plan.get("fixed_inputs", False)),
            "task": evaluator.task.digest,
            "program": self.program.digest,
        }
        return provenance | {f"baseline:{name}": note for name, note in self.notes.items()}


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: limit // 2 - 20] + "\n[...]\n" + text[-(limit // 2 - 20) :]
