"""One Program on its way from files to an Evaluation: build, first calls, timed calls, findings, verdict.

The calls themselves are made by the ``evaluator``, which outlives the trial.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stitchcuda import __version__
from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation import bounds, knockout, sanitizer
from stitchcuda.evaluation.build import Build, build
from stitchcuda.evaluation.integrity.census import census_findings, take_census
from stitchcuda.evaluation.integrity.inspect import inspect_program
from stitchcuda.evaluation.model import (
    Census,
    Correctness,
    Evaluation,
    Finding,
    Layer,
    OutputError,
    Status,
    Tier,
    Timing,
)
from stitchcuda.evaluation.peaks import figures, free_memory, peak_host_bytes
from stitchcuda.evaluation.publish import Publication
from stitchcuda.evaluation.runner_client import Failure
from stitchcuda.evaluation.session import Planes, Session, pool_size
from stitchcuda.evaluation.starting import meanwhile
from stitchcuda.evaluation.telemetry import Trace
from stitchcuda.evaluation.timing import (
    Sample,
    TimingPlan,
    clock_finding,
    exchange_finding,
    idle_finding,
    outside_finding,
    pause_finding,
)
from stitchcuda.program.model import Program

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator


CLOCK_ATTEMPTS = 3
"""Batches of calls in which the clocks must disagree before a Program is rejected for it."""

DISTURBED_S = 0.2
"""Seconds between the later of them: other load comes and goes."""


PAUSED_CALLS = 3
"""Calls after a pause, and as many at once, that are compared."""

LEAST_PAUSE_S = 0.03
"""Seconds; thread pools have stopped spinning after half of it."""

PAUSED_UP_TO_S = 0.1
"""Calls that take longer are not compared: no pause of that length exists without one."""

TOLD: dict[str, tuple[str, Layer, str]] = {
    "lazy": ("lazy_output", "memory", "outputs may compute when they are read: {}"),
    "patched": ("patched", "protocol", "the Program replaces functions that are not its own: {}"),
    "failing": ("kernel_fails", "census", "its own kernels ({}) refuse every call, something else computes the answer"),
    "moved": ("weight_mutation", "state", "a call changes the parameter {}, which the reference leaves as it was"),
}
"""What a runner may say about its Program: rule, layer and sentence by kind."""

SPINNING_S = 0.002
"""Seconds for which a thread of an OpenMP pool may spin behind a call."""

SLOWED = 0.7
"""Stock options that take less than this share of their time once the Program has ended were held up by it."""

SLOWED_CALLS = 5
"""Timed calls of each stock option to see that."""

SLOWED_ATTEMPTS = 2
"""Batches of calls that must show it, since other load comes and goes."""

Samples = list[tuple[str, Sample]]
"""Timed calls, each with its input case."""


@dataclass
class Checks:
    """What the checked calls of one Program showed."""

    worst: dict[str, OutputError] = field(default_factory=dict)
    calls: int = 0
    labels: set[str] = field(default_factory=set)
    families: dict[str, str] = field(default_factory=dict)
    reference: str = ""
    trivial: list[str] = field(default_factory=list)
    """Trivial answers that pass the task as written."""

    def add(self, verdict: dict[str, Any], full: bool) -> None:
        self.calls += 1
        self.labels.update(verdict["labels"])
        self.families |= verdict.get("families", {})
        self.trivial = verdict.get("trivial") or self.trivial
        self.reference = verdict.get("reference", self.reference)
        for raw in verdict["outputs"]:
            error = OutputError(**raw)
            known = self.worst.get(error.output)
            if not error.ok or (full and (known is None or error.relative_norm > known.relative_norm)):
                self.worst[error.output] = error

    def correctness(self, message: str = "") -> Correctness:
        outputs, families = list(self.worst.values()), dict(sorted(self.families.items()))
        return Correctness(
            ok=not message, calls_checked=self.calls, outputs=outputs, families=families, message=message
        )


class Trial:
    """One Program on its way to an Evaluation."""

    def __init__(self, evaluator: Evaluator, program: Program, tier: Tier, built: Build | None = None) -> None:
        self.evaluator, self.program, self.tier = evaluator, program, tier
        self.settings = evaluator.settings
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.findings: list[Finding] = []
        self.first: Failure | None = None
        """In exhaustive mode, what would have ended the trial."""
        self.checks = Checks()
        self.timings: dict[str, Timing] = {}
        self.notes: dict[str, str] = {}
        self.opened: list[Session] = []
        self.programs: list[Session] = []
        self.failed_stock: set[str] = set()
        self.interleaved = True
        self.lock = threading.Lock()
        self.nonce = secrets.token_hex(16)
        self.trace: Trace | None = None
        self.built = built
        self.folder: Path | None = None
        self.sanitized = ""
        self.log = ""
        self.seeded = False

    def close(self) -> None:
        self.evaluator.close_all(self.opened)

    def run(self) -> Evaluation:
        """All of it. Raises Failure when the Program does not come through, InfrastructureError and OSError."""
        evaluator = self.evaluator
        evaluator.gate.waits.clear()
        if self.built is not None:
            self.folder = self._build()  # what is refused needs no process
        evaluator.oracle.ask("renew", nonce=self.nonce)
        evaluator.clocks.seen.clear()
        if not evaluator.interleaved:
            evaluator.stocks.release()
        if self.tier == "publish":
            self._publish()
        else:
            self._screen()
        return self._verdict()

    def _screen(self) -> None:
        evaluator, settings = self.evaluator, self.settings
        session = self.program_session()
        with meanwhile(session, partial(self._open, session)) as opened:
            folder = self.folder or self._build()
            opened.result()
        self.load(session, folder)
        self.warm_up(session, full=settings.correctness_seeds, label="check")
        stock: list[Session] = []
        if settings.baselines and evaluator.interleaved:
            began = time.monotonic()
            stock = self.sound(evaluator.stocks.beside())
            self.spent("baselines", began)
        began = time.monotonic()
        evaluator.time([session, *stock], evaluator.screen_plan(), self.checked)
        self.spent("timed", began)
        began = time.monotonic()
        self.finish(session)
        self.spent("clocks", began)
        evaluator.prepare()
        self.census(session)
        self.timings["program"] = evaluator.summary(session)
        evaluator.close_all([session])
        slowed = self.slowed(stock, {each.subject.name: each.samples for each in stock})
        for each in self.sound(stock):
            name = each.subject.name
            self._keep_baseline(name, evaluator.summarise(slowed.get(name, each.samples), each.note))
        if settings.baselines and not evaluator.interleaved:
            began = time.monotonic()
            for name, timing in evaluator.baselines("screen").items():
                self._keep_baseline(name, timing)
            evaluator.stocks.release()
            self.spent("baselines", began)
        self._knock_out(folder)

    def _knock_out(self, folder: Path) -> None:
        if knockout.wanted(self):
            began = time.monotonic()
            knockout.knock_out(self, folder)
            self.spent("knockout", began)

    def census_taken(self) -> Census | None:
        """The census, once there is a trace."""
        return take_census(self.trace) if self.trace is not None else None

    def _publish(self) -> None:
        folder = self.folder or self._build()
        measured = Publication(self, folder).run()
        self._knock_out(folder)
        began = time.monotonic()
        self.sanitized = sanitizer.sanitize(self)
        self.spent("sanitizer", began)
        for name, taken in measured.items():
            if name == "program":
                self.timings[name] = self.evaluator.summarise(taken)
            elif name not in self.failed_stock:
                self._keep_baseline(name, self.evaluator.summarise(taken, self.notes.get(name, "")))

    def _build(self) -> Path:
        evaluator = self.evaluator
        built = self.built or build(
            self.program,
            evaluator.task.target,
            cache=evaluator.cache,
            precision=evaluator.task.precision,
            timeout_s=self.settings.build_timeout_s,
        )
        self.seconds["build"] = built.seconds
        self.log = built.log
        self.built = built
        read = inspect_program(self.program, evaluator.task.target, evaluator.task.precision)
        found = [*(read if self.settings.static_rules else []), *built.findings]
        self.findings += found
        if not built.ok or built.folder is None:
            first = next((line for line in built.log.splitlines() if line.strip()), "no message")
            raise Failure("build_failed", f"the program does not build: {first[:300]}", built.log)
        rejected = next((finding for finding in found if finding.severity == "reject"), None)
        if rejected is not None:
            self.refuse(Failure("dishonest", rejected.evidence, rule=rejected.rule, layer=rejected.layer))
        return built.folder

    def program_session(self) -> Session:
        """A session for the Program, not yet open; closed with the trial at the latest."""
        session = self.evaluator.program_session()
        self.programs.append(session)
        self.opened.append(session)
        return session

    def _open(self, session: Session) -> None:
        began = time.monotonic()
        session.open()
        self.spent("start", began)

    def load(self, session: Session, folder: Path) -> None:
        """Open the Program's session if need be, and load the Program."""
        if not session.attached:
            self._open(session)
        session.load(folder)
        self.seeded = self.seeded or session.seeded
        self.seconds |= session.seconds

    def warm_up(self, session: Session, *, full: int, label: str) -> None:
        """The Program's first calls, each of them checked, ``full`` of each case against fp64."""
        began = time.monotonic()
        self.evaluator.warm_up(session, full=full, check=self.checked, label=label)
        self.spent("check", began)

    def sound(self, stock: list[Session]) -> list[Session]:
        """Those that have not failed; the others' reasons are noted."""
        bad = {session.subject.name: session.failure.sentence for session in stock if session.failure is not None}
        self.notes |= bad
        self.failed_stock |= set(bad)
        return [session for session in stock if session.failure is None]

    def spent(self, stage: str, began: float) -> None:
        """Add the time since ``began`` to a stage."""
        with self.lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began

    def finish(self, session: Session) -> None:
        """After the timed calls of the Program: the clocks agree, kept outputs are unchanged."""
        self._clock(session)
        self._pauses(session)
        self._told(session)
        try:
            session.check_held()
        except Failure as failure:
            if failure.status != "wrong_output":
                raise
            self.refuse(failure)

    def _told(self, session: Session) -> None:
        """What the runner saw of the Program: it may lower the verdict."""
        if "aliases" in session.told:
            evidence = "an output lies in the memory of an input"
            self.note(Finding(rule="output_aliases_input", severity="flag", evidence=evidence, layer="memory"))
        for kind, (rule, layer, words) in TOLD.items():
            if kind in session.told:
                self.refuse(Failure("dishonest", words.format(session.told[kind]), rule=rule, layer=layer))

    def slowed(self, stock: list[Session], beside: dict[str, Samples]) -> dict[str, Samples]:
        """Stock options that are much faster now that the Program has ended than they were ``beside`` it: a flag, and
        the calls that count instead. Nobody gains by slowing down what is measured beside."""
        sound, evaluator = self.sound(stock), self.evaluator
        for attempt in range(SLOWED_ATTEMPTS):
            for each in sound:
                each.samples = []
            evaluator.time(sound, TimingPlan(SLOWED_CALLS, SLOWED_CALLS, 1e9), label=f"after{attempt}-")
            sound = [
                each
                for each in self.sound(sound)
                if evaluator.summary(each).median < SLOWED * evaluator.summarise(beside[each.subject.name]).median
            ]
            if not sound:
                break
        alone = {each.subject.name: each.samples for each in sound}
        for each in stock:
            each.samples = beside.get(each.subject.name, [])
        if alone:
            names = ", ".join(alone)
            evidence = f"{names} ran much slower beside the Program than after its end; the times after it count"
            self.note(Finding(rule="slows_others", severity="flag", evidence=evidence, layer="clocks"))
        return alone

    def checked(self, verdict: dict[str, Any], full: bool) -> None:
        """Take a verdict of the oracle on the Program in; Failure when it is bad."""
        with self.lock:
            self.checks.add(verdict, full)
        if not verdict["ok"]:
            rule = verdict.get("rule", "")
            self.refuse(Failure("wrong_output", verdict["message"], rule=rule, layer=_layer(verdict)))
        if verdict["changed_inputs"]:
            names = ", ".join(verdict["changed_inputs"][:5])
            evidence = f"a call changes its input {names}, which the reference leaves as it was; write to new tensors"
            self.refuse(Failure("dishonest", evidence, rule="input_mutation", layer="memory"))

    def note(self, finding: Finding) -> None:
        """Keep a finding; the first of each rule and layer."""
        with self.lock:
            if all((f.rule, f.layer) != (finding.rule, finding.layer) for f in self.findings):
                self.findings.append(finding)

    def refuse(self, failure: Failure) -> None:
        """End the trial; in exhaustive mode remember it and let the other layers look."""
        if not self.settings.exhaustive:
            raise failure
        self.note(failure.finding())
        self.first = self.first or failure

    def _clock(self, session: Session) -> None:
        """Compare clocks; on disagreement measure again, since a busy machine delays hand-overs too."""
        for attempt in range(CLOCK_ATTEMPTS):
            finding = self._disagreement(session)
            if finding is None:
                break
            if attempt < CLOCK_ATTEMPTS - 1:
                self._measure_again(session, attempt)
        if session.beside is not None:
            self.evaluator.close_all([session.beside])
            session.beside = None
        if finding is not None:
            message = f"the clocks disagree: {finding.evidence}"
            self.refuse(Failure("dishonest", message, rule=finding.rule, layer=finding.layer))

    def _measure_again(self, session: Session, attempt: int) -> None:
        """More calls, between those of a new process that no Program has been in, so that what else the machine does
        is the same for both. The first time at least as many as there were: whoever is honest from then on has his
        honest calls counted, and a disturbance that is over does no harm."""
        evaluator, least = self.evaluator, self.settings.screen_min_calls
        time.sleep(attempt * DISTURBED_S)
        count = max(least, len(session.samples) // len(evaluator.plan["cases"]) + 1) if attempt == 0 else least
        if attempt == 0 and session.control_total:
            session.beside = self._without_program()
        evaluator.time([session], TimingPlan(count, count, 1e9), self.checked, label=f"again{attempt}-")
        if session.beside is not None:
            total, outside = session.beside.cost_without_program()
            session.control_total = max(session.control_total, total)
            session.control_outside = max(session.control_outside, outside)

    def _disagreement(self, session: Session) -> Finding | None:
        samples = [sample for _, sample in session.samples]
        finding = clock_finding(samples, session.noop)
        if finding is not None or not session.control_total:
            return finding
        late = exchange_finding(samples, session.control_total, session.noop)
        session.thorough = late is not None
        if session.kind == "cpu":
            sure = outside_finding(samples, session.control_outside, SPINNING_S * (pool_size() - 1))
            return sure or (outside_finding(samples, session.control_outside) if late is not None else None)
        return late

    def _without_program(self) -> Session | None:
        """A new process that no Program has been in; None where it cannot be had."""
        session = self.evaluator.program_session()
        self.opened.append(session)
        try:
            session.open()
            session.control()
        except (Failure, InfrastructureError):
            self.evaluator.close_all([session])
            return None
        return session

    def _pauses(self, session: Session) -> None:
        """A few calls at once and a few after a pause: is anything done while there is nothing to do?"""
        with self.evaluator.gate.hold("clock"):
            self._paused(session)

    def _paused(self, session: Session) -> None:
        evaluator = self.evaluator
        median = evaluator.summary(session).median
        if not self.settings.defences or median > PAUSED_UP_TO_S:
            return
        pause = max(LEAST_PAUSE_S, median)
        for attempt in range(CLOCK_ATTEMPTS):
            plain, paused = self._paused_calls(session, pause, attempt)
            finding = pause_finding(plain or [sample for _, sample in session.samples], paused)
            if finding is None:
                break
        if finding is not None:
            self.refuse(Failure("dishonest", finding.evidence, rule=finding.rule, layer=finding.layer))
        finding = idle_finding(paused)
        if finding is not None:
            self.refuse(Failure("dishonest", finding.evidence, rule=finding.rule, layer=finding.layer))
        if session.processes > 0:
            message = f"{session.processes} processes that the Program has started still run between its calls"
            self.refuse(Failure("dishonest", message, rule="child_process", layer="confinement"))

    def _paused_calls(self, session: Session, pause: float, attempt: int) -> tuple[list[Sample], list[Sample]]:
        """Calls at once, none the first time, since enough were timed; and calls after a pause."""
        lengths = (pause,) if attempt == 0 else (0.0, pause)
        case = self.evaluator.plan["cases"][0]
        plain: list[Sample] = []
        paused: list[Sample] = []
        for index in range(PAUSED_CALLS):
            for length in lengths:
                samples = paused if length else plain
                label = f"pause{attempt}-{index}-{length}-{session.number}"
                for _, sample, verdict in self.evaluator.play([session], label, case, timed=True, pause=length):
                    samples.append(sample)
                    self.checked(verdict, False)
        return plain, paused

    def census(self, session: Session) -> None:
        """Trace the Program on the inputs it last took; when that fails, a flag."""
        if not self.settings.trace_program:
            return
        began = time.monotonic()
        kernels = self.built.kernels if self.built is not None else ()
        try:
            self.trace = self.evaluator.take_trace(session, self.program, kernels)
            if self.trace is not None:
                manifest = self.program.manifest
                launchers = len(manifest.launchers) if manifest is not None else len(kernels)
                for finding in census_findings(self.trace, launchers):
                    self.note(finding)
        except Failure as failure:
            self.note(Finding(rule="no_trace", severity="flag", evidence=failure.message, layer="census"))
        self._told(session)
        self.spent("trace", began)

    def _keep_baseline(self, name: str, timing: Timing) -> None:
        if timing.n:
            self.timings[name] = timing
        if timing.note:
            self.notes[name] = timing.note

    def _largest(self) -> None:
        """Where the device was busy for longer than a call is said to last, that counts."""
        timing = self.timings["program"]
        active = self.trace.active_seconds if self.trace is not None else 0.0
        if active <= 1.25 * timing.median + 20e-6:
            return
        evidence = (
            f"a call is timed at {timing.median * 1e3:.3f} ms, but keeps the device busy for {active * 1e3:.3f} ms"
        )
        self.note(Finding(rule="device_busier", severity="flag", evidence=evidence, layer="clocks"))
        note = "the device trace's time, which is the larger"
        self.timings["program"] = timing.model_copy(update={"median": active, "high": active, "note": note})

    def _verdict(self) -> Evaluation:
        evaluator = self.evaluator
        self._largest()
        clocks = evaluator.clocks.finding()
        if clocks is not None and self.tier == "publish":
            self.note(clocks)
        median = self.timings["program"].median
        missing = {name for session in self.programs for name in session.missing_state}
        if missing:
            names = ", ".join(sorted(missing)[:5])
            evidence = f"a call leaves {names} as it was"
            self.note(Finding(rule="state_update", severity="flag", evidence=evidence, layer="state"))
        for finding in bounds.bound_findings(evaluator.plan["work"], evaluator.device, median):
            self.note(finding)
        if self.first is not None:
            return self._ended(self.first)
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

    def failed(self, failure: Failure) -> Evaluation:
        """The Evaluation of a Program that did not come through; what ended it first counts."""
        if failure.status == "dishonest" or (self.settings.exhaustive and failure.status != "infrastructure_error"):
            self.note(failure.finding())
        return self._ended(self.first or failure)

    def _memory(self) -> dict[str, int]:
        evaluator, plan = self.evaluator, self.evaluator._plan or {}
        memory = {
            where: max((session.peak(where) for session in self.programs), default=0) for where in ("host", "device")
        }
        client = evaluator._client
        if client is not None:
            memory["oracle_host"] = peak_host_bytes([client.process.pid])
        if evaluator.kind == "cuda":
            memory |= {"reference_device": plan.get("peak", 0), "device_free": plan.get("device_free", 0)}
        else:
            memory["host_free"] = free_memory()
        return memory

    def _ended(self, failure: Failure) -> Evaluation:
        self.log = failure.log or self.log
        if failure.status == "out_of_memory":
            failure.message = f"{failure.message}; {figures(self._memory(), self.evaluator.kind)}"
        correctness = self.checks.correctness(failure.message) if failure.status == "wrong_output" else None
        self.timings = {}
        return self._evaluation(failure.status, failure.message, correctness)

    def _evaluation(
        self, status: Status, message: str, correctness: Correctness | None, speedup: dict[str, float] | None = None
    ) -> Evaluation:
        evaluator = self.evaluator
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
        self.seconds |= {"waited": sum(list(evaluator.gate.waits)), "total": time.monotonic() - self.began}
        return Evaluation(
            status=status,
            message=message,
            tier=self.tier,
            precision=evaluator.task.precision,
            findings=self.findings,
            correctness=correctness,
            timings=self.timings,
            speedup=speedup or {},
            census=self.census_taken(),
            sol=sol,
            labels=sorted(labels),
            log=_shorten(self.log, 4000),
            seconds={name: round(value, 6) for name, value in self.seconds.items()},
            memory=self._memory(),
            provenance=self._provenance(),
        )

    def _provenance(self) -> dict[str, str | float | int | bool | None]:
        evaluator = self.evaluator
        plan = evaluator._plan or {}
        confinement = "not started"
        for session in self.programs:
            if session.torch:
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
            "build_confinement": self.built.confinement if self.built is not None else "",
            "extensions": self.built.extensions if self.built is not None else "",
            "sanitizer": self.sanitized,
            "data_plane": "device" if evaluator.kind == "cuda" and Planes.ipc else "host",
            "interleaved": self.interleaved and (self.tier == "publish" or evaluator.interleaved),
            "reference": self.checks.reference,
            "trivial_answers": ", ".join(self.checks.trivial),
            "fixed_inputs": bool(plan.get("fixed_inputs", False)),
            "task": evaluator.task.digest,
            "program": self.program.digest,
        }
        return provenance | evaluator.clocks.facts() | {f"baseline:{name}": note for name, note in self.notes.items()}


def _layer(verdict: dict[str, Any]) -> Layer:
    """Which defence saw a wrong output: the oracle may say; a piece of state is the state's."""
    said: Layer | None = verdict.get("layer")
    bad = next((output["output"] for output in verdict["outputs"] if not output["ok"]), "")
    return said or ("state" if bad.startswith("state:") else "numerics")


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: limit // 2 - 20] + "\n[...]\n" + text[-(limit // 2 - 20) :]
