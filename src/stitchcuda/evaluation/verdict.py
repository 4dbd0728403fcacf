"""The verdict on a Trial that has ended: its Evaluation, from the findings, checks, timings and notes of the Trial, and
labels, bounds, peaks of memory and provenance. Runs nothing of the Program.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stitchcuda import __version__
from stitchcuda.evaluation import bounds
from stitchcuda.evaluation.model import Correctness, Evaluation, Finding, Status
from stitchcuda.evaluation.peaks import figures, free_memory, peak_host_bytes
from stitchcuda.evaluation.planes import Planes
from stitchcuda.evaluation.runner_client import Failure

if TYPE_CHECKING:
    from stitchcuda.evaluation.trial import Trial


def conclude(trial: Trial) -> Evaluation:
    """The Evaluation of a Program that came through all its calls; what its times and state give away is added to the
    findings first."""
    evaluator = trial.evaluator
    _largest(trial)
    clocks = evaluator.clocks.finding()
    if clocks is not None and trial.tier == "publish":
        trial.note(clocks)
    median = trial.timings["program"].median
    missing = {name for session in trial.programs for name in session.missing_state}
    if missing:
        names = ", ".join(sorted(missing)[:5])
        evidence = f"a call leaves {names} as it was"
        trial.note(Finding(rule="state_update", severity="flag", evidence=evidence, layer="state"))
    for finding in bounds.bound_findings(evaluator.plan["work"], evaluator.device, median):
        trial.note(finding)
    if trial.first is not None:
        return _ended(trial, trial.first)
    rejected = next((f for f in trial.findings if f.severity == "reject"), None)
    if rejected is not None:
        status: Status = "impossible" if rejected.rule == "impossible" else "dishonest"
        return _evaluation(trial, status, rejected.evidence, trial.checks.correctness())
    speedup = _speedup(trial, median)
    best = f", {speedup['over_best']:.2f}x over the best stock option" if "over_best" in speedup else ""
    message = f"correct in {trial.checks.calls} calls; {median * 1e3:.3f} ms a call{best}"
    return _evaluation(trial, "correct", message, trial.checks.correctness(), speedup)


def conclude_failed(trial: Trial, failure: Failure) -> Evaluation:
    """The Evaluation of a Program that did not come through; what ended it first counts."""
    if failure.status == "dishonest" or (trial.settings.exhaustive and failure.status != "infrastructure_error"):
        trial.note(failure.finding())
    return _ended(trial, trial.first or failure)


def _ended(trial: Trial, failure: Failure) -> Evaluation:
    trial.log = failure.log or trial.log
    if failure.status == "out_of_memory":
        failure.message = f"{failure.message}; {figures(_memory(trial), trial.evaluator.kind)}"
    correctness = trial.checks.correctness(failure.message) if failure.status == "wrong_output" else None
    trial.timings = {}
    return _evaluation(trial, failure.status, failure.message, correctness)


def _evaluation(
    trial: Trial,
    status: Status,
    message: str,
    correctness: Correctness | None,
    speedup: dict[str, float] | None = None,
) -> Evaluation:
    evaluator = trial.evaluator
    labels = set(trial.checks.labels)
    if evaluator.facts.stochastic:
        labels.add("stochastic")
    if trial.seeded:
        labels.add("seeded_weights")
    program = trial.timings.get("program")
    sol = None
    if program is not None and status == "correct":
        task = evaluator.task
        sol = bounds.speed_of_light(evaluator.plan["work"], evaluator.device, task.precision, program.median)
    trial.seconds |= {"waited": sum(list(evaluator.gate.waits)), "total": time.monotonic() - trial.began}
    return Evaluation(
        status=status,
        message=message,
        tier=trial.tier,
        precision=evaluator.task.precision,
        findings=trial.findings,
        correctness=correctness,
        timings=trial.timings,
        speedup=speedup or {},
        census=trial.census_taken(),
        sol=sol,
        labels=sorted(labels),
        log=_shorten(trial.log, 4000),
        seconds={name: round(value, 6) for name, value in trial.seconds.items()},
        memory=_memory(trial),
        provenance=_provenance(trial),
    )


def _largest(trial: Trial) -> None:
    """Where the device was busy for longer than a call is said to last, that counts."""
    timing = trial.timings["program"]
    active = trial.trace.active_seconds if trial.trace is not None else 0.0
    if active <= 1.25 * timing.median + 20e-6:
        return
    evidence = f"a call is timed at {timing.median * 1e3:.3f} ms, but keeps the device busy for {active * 1e3:.3f} ms"
    trial.note(Finding(rule="device_busier", severity="flag", evidence=evidence, layer="clocks"))
    note = "the device trace's time, which is the larger"
    trial.timings["program"] = timing.model_copy(update={"median": active, "high": active, "note": note})


def _speedup(trial: Trial, median: float) -> dict[str, float]:
    speedup = {name: t.median / median for name, t in trial.timings.items() if name != "program" and median > 0}
    sound = [ratio for name, ratio in speedup.items() if "error budget" not in trial.notes.get(name, "")]
    return speedup | ({"over_best": min(sound)} if sound else {})


def _memory(trial: Trial) -> dict[str, int]:
    evaluator, plan = trial.evaluator, trial.evaluator._plan or {}
    memory = {
        where: max((session.peak(where) for session in trial.programs), default=0) for where in ("host", "device")
    }
    client = evaluator._client
    if client is not None:
        memory["oracle_host"] = peak_host_bytes([client.process.pid])
    if evaluator.kind == "cuda":
        memory |= {"reference_device": plan.get("peak", 0), "device_free": plan.get("device_free", 0)}
    else:
        memory["host_free"] = free_memory()
    return memory


def _provenance(trial: Trial) -> dict[str, str | float | int | bool | None]:
    evaluator = trial.evaluator
    plan = evaluator._plan or {}
    confinement = "not started"
    for session in trial.programs:
        if session.torch:
            confinement = "full" if not session.missing else "without " + ", ".join(session.missing)
    provenance: dict[str, str | float | int | bool | None] = {
        "device": evaluator.device.name,
        "driver": evaluator.device.driver,
        "cuda": plan.get("cuda", ""),
        "torch": plan.get("torch", ""),
        "nonce": trial.nonce,
        "stitchcuda": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "confinement": confinement,
        "build_confinement": trial.built.confinement if trial.built is not None else "",
        "extensions": trial.built.extensions if trial.built is not None else "",
        "sanitizer": trial.sanitized,
        "data_plane": "device" if evaluator.kind == "cuda" and Planes.ipc else "host",
        "interleaved": trial.interleaved and (trial.tier == "publish" or evaluator.interleaved),
        "reference": trial.checks.reference,
        "trivial_answers": ", ".join(trial.checks.trivial),
        "fixed_inputs": bool(plan.get("fixed_inputs", False)),
        "task": evaluator.task.digest,
        "program": trial.program.digest,
    }
    return provenance | evaluator.clocks.facts() | {f"baseline:{name}": note for name, note in trial.notes.items()}


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: limit // 2 - 20] + "\n[...]\n" + text[-(limit // 2 - 20) :]
