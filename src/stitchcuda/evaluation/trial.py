"""One Program on its way from files to an Evaluation: build, first calls, timed calls.

The calls themselves are made in ``calls``, for an ``evaluator`` that outlives the trial. What is looked at after them
is in ``post_checks``, ``knockout`` and ``sanitizer``, how the Evaluation is put together in ``verdict``, and the rounds
of the publish tier in ``publish``.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stitchcuda.evaluation import knockout, post_checks, sanitizer
from stitchcuda.evaluation.build import Build, build
from stitchcuda.evaluation.integrity.census import take_census
from stitchcuda.evaluation.integrity.inspect import inspect_program
from stitchcuda.evaluation.model import (
    Census,
    Correctness,
    Evaluation,
    Finding,
    Layer,
    OutputError,
    Tier,
    Timing,
)
from stitchcuda.evaluation.publish import Publication
from stitchcuda.evaluation.runner_client import Failure
from stitchcuda.evaluation.session import Session
from stitchcuda.evaluation.starting import meanwhile
from stitchcuda.evaluation.telemetry import Trace
from stitchcuda.evaluation.verdict import conclude
from stitchcuda.program.model import Program

if TYPE_CHECKING:
    from stitchcuda.evaluation.evaluator import Evaluator


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
        """Take in the oracle's verdict on one call; kept of each output are the largest error of a ``full`` check, and
        an error beyond the budget of any."""
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
        """All of it for an Evaluation; with a ``message`` (what is wrong first) it is not ok."""
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
        """Close every session that was opened for the trial."""
        self.evaluator.close_all(self.opened)

    def run(self) -> Evaluation:
        """All of it. Raises Failure when the Program does not come through, InfrastructureError and OSError."""
        evaluator = self.evaluator
        evaluator.gate.waits.clear()
        if self.built is not None:
            self.folder = self._build()  # what is refused needs no process
        began, loaded = time.monotonic(), evaluator.loaded
        oracle = evaluator.oracle
        if not loaded:
            self.spent("open", began)
        oracle.ask("renew", nonce=self.nonce)
        evaluator.clocks.seen.clear()
        if not evaluator.interleaved:
            evaluator.stocks.release()
        if self.tier == "publish":
            self._publish()
        else:
            self._screen()
        return conclude(self)

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
        evaluator.calls.time([session, *stock], evaluator.calls.screen_plan(), self.checked)
        self.spent("timed", began)
        began = time.monotonic()
        post_checks.finish(self, session)
        self.spent("clocks", began)
        evaluator.prepare()
        post_checks.trace_program(self, session)
        self.timings["program"] = evaluator.summary(session)
        evaluator.close_all([session])
        beside = {each.subject.name: each.samples for each in stock}
        slowed = post_checks.slowed(self, stock, beside, evaluator.calls.screen_plan())
        for each in self.sound(stock):
            name = each.subject.name
            self._keep_baseline(name, evaluator.summarise(slowed.get(name, each.samples), each.note))
        began = time.monotonic()
        for name, samples in post_checks.failed_beside(self, evaluator.calls.screen_plan()).items():
            self._keep_baseline(name, evaluator.summarise(samples, self.notes[name]))
        self.spent("baselines", began)
        if settings.baselines and not evaluator.interleaved:
            began = time.monotonic()
            for name, timing in evaluator.baselines("screen").items():
                self._keep_baseline(name, timing)
            evaluator.stocks.release()
            self.spent("baselines", began)
        self._knock_out(folder)

    def _knock_out(self, folder: Path) -> None:
        # Without a trace nobody knows what its kernels do, and a Program can see to it that there is none.
        manifest, settings = self.program.manifest, self.settings
        untraced = settings.trace_program and self.trace is None
        doubted = untraced and settings.defences and manifest is not None and bool(manifest.launchers)
        if doubted or knockout.wanted(self):
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
        began = time.monotonic()
        session = self.evaluator.program_session()
        self.spent("start", began)  # of one that still gets ready
        # Those of a publish start beside others.
        session.by_itself = self.tier == "publish"
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
        self.evaluator.calls.warm_up(session, full=full, check=self.checked, label=label)
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

    def checked(self, verdict: dict[str, Any], full: bool) -> None:
        """Take a verdict of the oracle on the Program in; Failure when it is bad."""
        with self.lock:
            self.checks.add(verdict, bool(verdict.get("full", full)))
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

    def _keep_baseline(self, name: str, timing: Timing) -> None:
        if timing.n:
            self.timings[name] = timing
        if timing.note:
            self.notes[name] = timing.note


def _layer(verdict: dict[str, Any]) -> Layer:
    """Which defence saw a wrong output: the oracle may say; a piece of state is the state's."""
    said: Layer | None = verdict.get("layer")
    bad = next((output["output"] for output in verdict["outputs"] if not output["ok"]), "")
    return said or ("state" if bad.startswith("state:") else "numerics")
