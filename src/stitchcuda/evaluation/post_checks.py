"""What is looked at once a Program's calls were timed, and may cost it the verdict: do the clocks agree, is anything
done in a pause, what has its runner seen, where does the time go, were the stock options held up?

Functions of a ``Trial``: what they find they note (a flag) or refuse the trial for. The rules themselves are in
``timing`` and ``integrity.census``; what is right is checked call by call, in ``Trial.checked``.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from stitchcuda.errors import InfrastructureError
from stitchcuda.evaluation.exchange import pool_size
from stitchcuda.evaluation.integrity.census import census_findings
from stitchcuda.evaluation.model import Finding, Layer
from stitchcuda.evaluation.runner_client import Failure
from stitchcuda.evaluation.session import Session
from stitchcuda.evaluation.timing import (
    PAUSED_CALLS,
    Sample,
    TimingPlan,
    clock_finding,
    exchange_finding,
    idle_finding,
    outside_finding,
    pause_finding,
    quantile,
    scores,
)

if TYPE_CHECKING:
    from stitchcuda.evaluation.trial import Trial

CLOCK_ATTEMPTS = 3
"""Batches of calls in which the clocks must disagree before a Program is rejected for it."""

DISTURBED_S = 0.2
"""Seconds between the later of them: other load comes and goes."""

LEAST_PAUSE_S = {"cpu": 0.03, "cuda": 0.02}
"""Seconds, by target; thread pools have stopped spinning after half of it."""

PAUSED_UP_TO_S = 0.1
"""Calls that take longer are not compared: no pause of that length exists without one."""

TOLD: dict[str, tuple[str, Layer, str]] = {
    "lazy": ("lazy_output", "memory", "outputs may compute when they are read: {}"),
    "waiting": ("work_outside_call", "memory", "work waits for a moment between calls: {}"),
    "patched": ("patched", "protocol", "the Program replaces functions that are not its own: {}"),
    "failing": ("kernel_fails", "census", "its own kernels ({}) refuse every call, something else computes the answer"),
    "traced_only": ("traced_only", "census", "its own kernels ({}) are launched while it is traced, and not otherwise"),
    "limits": ("device_limits", "clocks", "a call leaves a limit of the device changed ({}): give it back in the call"),
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
    has seen no tricks, timed calls are as accurate as others, kept outputs are unchanged.

    Raises Failure when not, unless the settings are exhaustive, and when the Program does not come through.
    """
    _clock(trial, session)
    _pauses(trial, session)
    _told(trial, session)
    risen = trial.evaluator.oracle.ask("levels", session=session.number)["message"]
    if risen:
        trial.refuse(Failure("wrong_output", risen, rule="rough_when_timed", layer="numerics"))
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
    if attempt == 0 and session.costs:
        session.beside = _without_program(trial)
    evaluator.calls.time([session], TimingPlan(count, count, 1e9), trial.checked, label=f"again{attempt}-")
    if session.beside is not None:
        for case, (total, outside) in session.beside.cost_without_program().items():
            known = session.costs.get(case, (0.0, 0.0))
            session.costs[case] = max(known[0], total), max(known[1], outside)


def _disagreement(trial: Trial, session: Session) -> Finding | None:
    """Of one input case after the other: what is put off in one of several shows in its own calls alone."""
    session.thorough = False
    for case in map(str, trial.evaluator.plan["cases"]):
        samples = _of(session, case)
        finding = _disagreement_in(session, case, samples) if samples else None
        if finding is not None:
            return finding
    return None


def _of(session: Session, case: str) -> list[Sample]:
    """The timed calls of one input case."""
    return [sample for name, sample in session.samples if name == case]


def _disagreement_in(session: Session, case: str, samples: list[Sample]) -> Finding | None:
    finding = clock_finding(samples, session.noop)
    if finding is not None or case not in session.costs:
        return finding
    total, outside = session.costs[case]
    late = exchange_finding(samples, total, session.noop)
    session.thorough = session.thorough or late is not None
    if session.kind == "cpu":
        sure = outside_finding(samples, outside, SPINNING_S * (pool_size() - 1))
        return sure or (outside_finding(samples, outside) if late is not None else None)
    return late


def _without_program(trial: Trial) -> Session | None:
    """A new process that no Program has been in; None where it cannot be had."""
    session = trial.evaluator.program_session()
    session.by_itself = True
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
    if not trial.settings.defences:
        return
    for case in evaluator.plan["cases"]:
        timed = _of(session, str(case))
        # Of few calls in many processes, one may have timed none of a case.
        median = quantile(scores(timed), 0.5) if timed else math.inf
        if median <= PAUSED_UP_TO_S:
            _paused_in(trial, session, case, max(LEAST_PAUSE_S[evaluator.kind], median))
    if session.processes > 0:
        message = f"{session.processes} processes that the Program has started still run between its calls"
        trial.refuse(Failure("dishonest", message, rule="child_process", layer="confinement"))


def _paused_in(trial: Trial, session: Session, case: str | None, pause: float) -> None:
    """The same for one input case."""
    for attempt in range(CLOCK_ATTEMPTS):
        plain, paused = _paused_calls(trial, session, case, pause, attempt)
        finding = pause_finding(plain or _of(session, str(case)), paused)
        if finding is None:
            break
    if finding is not None:
        trial.refuse(Failure("dishonest", finding.evidence, rule=finding.rule, layer=finding.layer))
    finding = idle_finding(paused)
    if finding is not None:
        trial.refuse(Failure("dishonest", finding.evidence, rule=finding.rule, layer=finding.layer))


def _paused_calls(
    trial: Trial, session: Session, case: str | None, pause: float, attempt: int
) -> tuple[list[Sample], list[Sample]]:
    """Calls at once, none the first time, since enough were timed; and calls after a pause."""
    lengths = (pause,) if attempt == 0 else (0.0, pause)
    plain: list[Sample] = []
    paused: list[Sample] = []
    for index in range(PAUSED_CALLS):
        for length in lengths:
            samples = paused if length else plain
            label = f"pause{attempt}-{case}-{index}-{length}-{session.number}"
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
    if trial.program.manifest is not None and trial.settings.defences:
        # What is launched for the inputs that the trace is going to be taken on, while nobody looks.
        case = trial.evaluator.plan["cases"][-1]
        for _, _, verdict in trial.evaluator.calls.play([session], f"traced-{session.number}", case, timed=True):
            trial.checked(verdict, False)
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


def slowed(trial: Trial, stock: list[Session], beside: dict[str, Samples], plan: TimingPlan) -> dict[str, Samples]:
    """Stock options that are much faster now that the Program has ended than they were ``beside`` it: a flag, and the
    calls that count instead, by name: those that showed it and ``plan``'s, so that no fewer count than otherwise.
    Nobody gains by slowing down what is measured beside.

    The sessions of ``stock`` keep the samples in ``beside``; those that fail are noted as ``Trial.sound`` does.
    """
    sound, evaluator = trial.sound(stock), trial.evaluator
    for attempt in range(SLOWED_ATTEMPTS):
        if not sound:
            break
        for each in sound:
            each.samples = []
        evaluator.calls.time(sound, TimingPlan(SLOWED_CALLS, SLOWED_CALLS, 1e9), label=f"after{attempt}-")
        sound = [
            each
            for each in trial.sound(sound)
            if evaluator.summary(each).median < SLOWED * evaluator.summarise(beside[each.subject.name]).median
        ]
    if sound:
        evaluator.calls.time(sound, plan, label="after-")
    alone = {each.subject.name: each.samples for each in sound}
    trial.sound(sound)
    for each in stock:
        each.samples = beside.get(each.subject.name, [])
    if alone:
        names = ", ".join(alone)
        evidence = f"{names} ran much slower beside the Program than after its end; the times after it count"
        trial.note(Finding(rule="slows_others", severity="flag", evidence=evidence, layer="clocks"))
    return alone


def failed_beside(trial: Trial, plan: TimingPlan) -> dict[str, Samples]:
    """The stock options that have failed beside the Program, each started once more now that it has ended: timed calls
    of those that do not fail alone, by name, which count, and a flag. Nobody gains by making others fail."""
    stocks, counted = trial.evaluator.stocks, {}
    for name in sorted(trial.failed_stock):
        session = stocks.alone(name, plan)
        if session.failure is None:
            counted[name] = session.samples
            trial.notes[name] = session.note
        else:
            trial.notes[name] = f"by itself too: {session.failure.sentence}"
        if stocks.held.get(name) is not session:
            trial.evaluator.close_all([session])
    trial.failed_stock -= set(counted)
    if counted:
        evidence = f"{', '.join(counted)} failed beside the Program and not after its end; the times after it count"
        trial.note(Finding(rule="fails_others", severity="flag", evidence=evidence, layer="clocks"))
    return counted
