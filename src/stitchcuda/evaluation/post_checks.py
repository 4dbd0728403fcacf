"""What is looked at once a Program's calls were timed, and may cost it the verdict: do the clocks agree, is anything
done in a pause, what has its runner seen, where does the time go, were the stock options held up?

Functions of a ``Trial``: what they find they note (a flag) or refuse the trial for. The rules themselves are in
``timing`` and ``integrity.census``; what is right is checked call by call, in ``Trial.checked``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation.integrity.census import census_findings
from stitchcuda.evaluation.model import Finding, Layer
from stitchcuda.evaluation.runner_client import Failure
from stitchcuda.evaluation.session import Session, pool_size
from stitchcuda.evaluation.timing import (
    Sample,
    TimingPlan,
    clock_finding,
    exchange_finding,
    idle_finding,
    outside_finding,
    pause_finding,
)

if TYPE_CHECKING:
    from stitchcuda.evaluation.trial import Trial

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


def finish(trial: Trial, session: Session) -> None:
    """After the timed calls of an open session of the Program: the clocks agree, nothing is done in a pause, the runner
    has seen no tricks, kept outputs are unchanged.

    Raises Failure when not, unless the settings are exhaustive, and when the Program does not come through.
    """
    _clock(trial, session)
    _pauses(trial, session)
    _told(trial, session)
    try:
        session.check_held()
    except Failure as failure:
        if failure.status != "wrong_output":
            raise
        trial.refuse(failure)


def _clock(trial: Trial, session: Session) -> None:
    """Compare clocks; on disagreement measure again, since a busy machine delays hand-overs too."""
    for attempt in range(CLOCK_ATTEMPTS):
        finding = _disagreement(trial, session)
        if finding is None:
            break
        if attempt < CLOCK_ATTEMPTS - 1:
            _measure_again(trial, session, attempt)
    if session.beside is not None:
        trial.evaluator.close_all([session.beside])
        session.beside = None
    if finding is not None:
        message = f"the clocks disagree: {finding.evidence}"
        trial.refuse(Failure("dishonest", message, rule=finding.rule, layer=finding.layer))


def _measure_again(trial: Trial, session: Session, attempt: int) -> None:
    """More calls, between those of a new process that no Program has been in, so that what else the machine does
    is the same for both. The first time at least as many as there were: whoever is honest from then on has his
    honest calls counted, and a disturbance that is over does no harm."""
    evaluator, least = trial.evaluator, trial.settings.screen_min_calls
    time.sleep(attempt * DISTURBED_S)
    count = max(least, len(session.samples) // len(evaluator.plan["cases"]) + 1) if attempt == 0 else least
    if attempt == 0 and session.control_total:
        session.beside = _without_program(trial)
    evaluator.calls.time([session], TimingPlan(count, count, 1e9), trial.checked, label=f"again{attempt}-")
    if session.beside is not None:
        total, outside = session.beside.cost_without_program()
        session.control_total = max(session.control_total, total)
        session.control_outside = max(session.control_outside, outside)


def _disagreement(trial: Trial, session: Session) -> Finding | None:
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


def _without_program(trial: Trial) -> Session | None:
    """A new process that no Program has been in; None where it cannot be had."""
    session = trial.evaluator.program_session()
    trial.opened.append(session)
    try:
        session.open()
        session.control()
    except (Failure, InfrastructureError):
        trial.evaluator.close_all([session])
        return None
    return session


def _pauses(trial: Trial, session: Session) -> None:
    """A few calls at once and a few after a pause: is anything done while there is nothing to do?"""
    with trial.evaluator.gate.hold("clock"):
        _paused(trial, session)


def _paused(trial: Trial, session: Session) -> None:
    evaluator = trial.evaluator
    median = evaluator.summary(session).median
    if not trial.settings.defences or median > PAUSED_UP_TO_S:
        return
    pause = max(LEAST_PAUSE_S, median)
    for attempt in range(CLOCK_ATTEMPTS):
        plain, paused = _paused_calls(trial, session, pause, attempt)
        finding = pause_finding(plain or [sample for _, sample in session.samples], paused)
        if finding is None:
            break
    if finding is not None:
        trial.refuse(Failure("dishonest", finding.evidence, rule=finding.rule, layer=finding.layer))
    finding = idle_finding(paused)
    if finding is not None:
        trial.refuse(Failure("dishonest", finding.evidence, rule=finding.rule, layer=finding.layer))
    if session.processes > 0:
        message = f"{session.processes} processes that the Program has started still run between its calls"
        trial.refuse(Failure("dishonest", message, rule="child_process", layer="confinement"))


def _paused_calls(trial: Trial, session: Session, pause: float, attempt: int) -> tuple[list[Sample], list[Sample]]:
    """Calls at once, none the first time, since enough were timed; and calls after a pause."""
    lengths = (pause,) if attempt == 0 else (0.0, pause)
    case = trial.evaluator.plan["cases"][0]
    plain: list[Sample] = []
    paused: list[Sample] = []
    for index in range(PAUSED_CALLS):
        for length in lengths:
            samples = paused if length else plain
            label = f"pause{attempt}-{index}-{length}-{session.number}"
            for _, sample, verdict in trial.evaluator.calls.play([session], label, case, timed=True, pause=length):
                samples.append(sample)
                trial.checked(verdict, False)
    return plain, paused


def _told(trial: Trial, session: Session) -> None:
    """What the runner saw of the Program: it may lower the verdict."""
    if "aliases" in session.told:
        evidence = "an output lies in the memory of an input"
        trial.note(Finding(rule="output_aliases_input", severity="flag", evidence=evidence, layer="memory"))
    for kind, (rule, layer, words) in TOLD.items():
        if kind in session.told:
            trial.refuse(Failure("dishonest", words.format(session.told[kind]), rule=rule, layer=layer))


def trace_program(trial: Trial, session: Session) -> None:
    """Trace the Program on the inputs it last took; when that fails, or nobody can read what comes of it, a flag."""
    if not trial.settings.trace_program:
        return
    began = time.monotonic()
    kernels = trial.built.kernels if trial.built is not None else ()
    trace, problem = None, "the report of the trace could not be read"
    try:
        trace = trial.evaluator.take_trace(session, trial.program, kernels)
    except Failure as failure:
        problem = failure.message
    if trace is None:
        trial.note(Finding(rule="no_trace", severity="flag", evidence=problem, layer="census"))
    else:
        trial.trace = trace
        manifest = trial.program.manifest
        launchers = len(manifest.launchers) if manifest is not None else len(kernels)
        for finding in census_findings(trace, launchers):
            trial.note(finding)
    _told(trial, session)
    trial.spent("trace", began)


def slowed(trial: Trial, stock: list[Session], beside: dict[str, Samples]) -> dict[str, Samples]:
    """Stock options that are much faster now that the Program has ended than they were ``beside`` it: a flag, and the
    calls that count instead, by name. Nobody gains by slowing down what is measured beside.

    The sessions of ``stock`` keep the samples in ``beside``; those that fail are noted as ``Trial.sound`` does.
    """
    sound, evaluator = trial.sound(stock), trial.evaluator
    for attempt in range(SLOWED_ATTEMPTS):
        if not sound:
            break  # a clock would wait for the next Program's process, which is starting, and time nothing
        for each in sound:
            each.samples = []
        evaluator.calls.time(sound, TimingPlan(SLOWED_CALLS, SLOWED_CALLS, 1e9), label=f"after{attempt}-")
        sound = [
            each
            for each in trial.sound(sound)
            if evaluator.summary(each).median < SLOWED * evaluator.summarise(beside[each.subject.name]).median
        ]
    alone = {each.subject.name: each.samples for each in sound}
    for each in stock:
        each.samples = beside.get(each.subject.name, [])
    if alone:
        names = ", ".join(alone)
        evidence = f"{names} ran much slower beside the Program than after its end; the times after it count"
        trial.note(Finding(rule="slows_others", severity="flag", evidence=evidence, layer="clocks"))
    return alone
