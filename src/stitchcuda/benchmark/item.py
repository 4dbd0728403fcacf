"""One item of a sweep: its run, begun or gone on with, and the Record that is read off the run's folder."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stitchcuda.agents.lookup import Library
from stitchcuda.benchmark.governor import Governor
from stitchcuda.benchmark.measuring import HELD, Place, measured_seconds
from stitchcuda.benchmark.model import Ending, Item, Record, SweepConfig
from stitchcuda.errors import StitchError, TaskError
from stitchcuda.evaluation.model import Evaluation, Finding, Timing
from stitchcuda.profiling.model import Profile
from stitchcuda.program.files import load_program
from stitchcuda.workflow.effects import Measured, Prepared
from stitchcuda.workflow.events import EventSink
from stitchcuda.workflow.folder import CONFIG, RunFolder
from stitchcuda.workflow.records import NAME as JOURNAL
from stitchcuda.workflow.records import read_records
from stitchcuda.workflow.result import Best, Result
from stitchcuda.workflow.run import optimize, resume

PARTIAL_HACK = (2.0, 3.0)
"""Marks for honesty, of 5, that say a program leaves a part of the work to what it should replace, or only looks like
work; 1 is an outright cheat, which no accepted program has."""

MEASURING = ("prepared", "baselines", "profile", "evaluation")
"""Kinds of a run's effects that keep a device busy."""

KEPT = ("device", "driver", "cuda", "torch", "stitchcuda", "date", "confinement", "sanitizer", "data_plane")
"""Of an Evaluation's provenance, what a table needs."""


def run_item(
    item: Item,
    config: SweepConfig,
    folder: Path,
    *,
    measuring: Place,
    governor: Governor,
    sink: EventSink,
    excluded: Sequence[str],
) -> Record:
    """Take one item to its end in ``folder``; a run that is there is gone on with, and repeats nothing.

    ``excluded`` names tasks whose answers the knowledge base must not show. Raises InfrastructureError,
    ModelAccessError and RunError: the item can be tried again. A task that does not run is a Record that says so.
    """
    place = folder / "items" / item.id
    place.mkdir(parents=True, exist_ok=True)
    settings = config.run_config(item)
    device, begun = measuring.device, _begun(place)
    with ExitStack() as stack:
        bench = stack.enter_context(measuring.bench(place))
        librarian = stack.enter_context(Library(excluded_tasks=excluded))
        try:
            if begun is not None:
                resume(begun, events=sink, bench=bench, librarian=librarian, replies=governor.over, device=device)
            else:
                optimize(
                    settings,
                    events=sink,
                    runs=place,
                    bench=bench,
                    librarian=librarian,
                    replies=governor.over,
                    device=device,
                )
        except TaskError as error:
            if begun is not None and not any(r.kind == "prepared" for r in read_records(begun.path / JOURNAL)[0]):
                shutil.rmtree(begun.path)  # tried again, it is to be asked anew
            return failed(item, "not_runnable", str(error))
    run = _begun(place)
    assert run is not None
    record = read_record(item, run, folder)
    _write_page(run)
    return record


def _write_page(run: RunFolder) -> None:
    """The run's own page, which the sweep's links to; a page that cannot be made costs the item nothing."""
    from stitchcuda.report.run_html import write_report

    with contextlib.suppress(StitchError, ValueError):
        write_report(run)


def _begun(place: Path) -> RunFolder | None:
    """The item's run, if one was begun; what a killed process left without settings is removed."""
    for path in sorted(place.iterdir()):
        if path.is_dir() and (path / CONFIG).is_file():
            return RunFolder(path)
        if path.is_dir():
            shutil.rmtree(path)
    return None


def failed(item: Item, status: Ending, message: str) -> Record:
    """An item without a run to speak of."""
    return Record(
        item=item.id,
        task=item.name,
        origin=item.task,
        group=item.group,
        seed=item.seed,
        status=status,
        message=message,
    )


def read_record(item: Item, run: RunFolder, folder: Path) -> Record:
    """What a finished run says, read off its summary and journal. Raises RunError when it is not finished."""
    result = run.summary()
    records, _ = read_records(run.path / JOURNAL)
    if result is None or result.status == "awaiting_approval":
        raise TaskError(f"the run in {run.path} has not ended")
    measured = [Measured.model_validate(r.data) for r in records if r.kind == "evaluation"]
    prepared = next((Prepared.model_validate(r.data) for r in records if r.kind == "prepared"), None)
    best = _best(run) if result.best else None
    programs = _programs(measured, sum(1 for r in records if r.kind == "program" and r.data.get("problem")))
    device_seconds = measured_seconds(run.path.parent / HELD) or sum(r.seconds for r in records if r.kind in MEASURING)
    spent = result.spent
    unpriced = spent.usd == 0 and spent.input_tokens + spent.output_tokens > 0
    shown: dict[str, Any] = (
        of_evaluation(best.evaluation) if best is not None else {"labels": _labels(measured, prepared)}
    )
    provenance = best.evaluation.provenance if best else next((m.evaluation.provenance for m in measured), {})
    honesty = _honesty(run, best) if best is not None else None
    return Record(
        item=item.id,
        task=item.name,
        origin=item.task,
        group=item.group,
        seed=item.seed,
        status=result.status,
        message=result.message,
        author=result.author,
        precision=result.precision,
        mode=("train" if prepared.facts.training else "eval") if prepared else None,
        programs=programs,
        hacks=programs.get("dishonest", 0) + programs.get("impossible", 0),
        honesty=honesty,
        partial_hack=None if honesty is None else PARTIAL_HACK[0] <= honesty <= PARTIAL_HACK[1],
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        requests=spent.requests,
        usd=None if unpriced else spent.usd,
        wall_seconds=spent.seconds,
        device_seconds=round(device_seconds, 3),
        stopped=result.stopped,
        run=str(run.path.relative_to(folder.resolve())),
        provenance=_kept(provenance, result),
        **({"seconds": dict(result.seconds)} | shown),
    )


def _labels(measured: Sequence[Measured], prepared: Prepared | None) -> list[str]:
    """What programs that did not hold have shown about the task; nothing about the programs themselves."""
    found = {label for one in measured for label in one.evaluation.labels} - {"seeded_weights"}
    if prepared is not None and prepared.facts.stochastic:
        found.add("stochastic")
    return sorted(found)


def of_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """A correct program's numbers."""
    return {
        "tier": evaluation.tier,
        "speedup": {n: v for n, v in evaluation.speedup.items() if n == "over_best" or evaluation.timings[n].n},
        "seconds": {name: timing.median for name, timing in evaluation.timings.items() if timing.n},
        "interval": over_best_interval(evaluation.timings),
        "sol": evaluation.sol.fraction if evaluation.sol else None,
        "census": evaluation.census.label if evaluation.census else "",
        "own": evaluation.census.own if evaluation.census else None,
        "labels": list(evaluation.labels),
        "flags": flags(evaluation.findings),
    }


def over_best_interval(timings: dict[str, Timing]) -> tuple[float, float] | None:
    """The speedup over the best stock option between the ends of both medians' 95 % intervals."""
    program = timings.get("program")
    stock = [timing for name, timing in timings.items() if name != "program" and timing.n]
    best = min(stock, key=lambda timing: timing.median, default=None)
    if program is None or best is None or not program.n:
        return None
    if best.low is None or best.high is None or not program.low or not program.high:
        return None
    return best.low / program.high, best.high / program.low


def flags(findings: Iterable[Finding]) -> list[str]:
    """The rules of all flags."""
    return sorted({finding.rule for finding in findings if finding.severity == "flag"})


def _best(run: RunFolder) -> Best | None:
    path = run.path / "best.json"
    return Best.model_validate_json(path.read_bytes()) if path.is_file() else None


def _programs(measured: list[Measured], unusable: int) -> dict[str, int]:
    """How many programs ended in each status; what a later check of the same program said counts."""
    last: dict[str, str] = {one.digest: one.evaluation.status for one in measured}
    counts: dict[str, int] = {"no_program": unusable} if unusable else {}
    for status in last.values():
        counts[status] = counts.get(status, 0) + 1
    return counts


def _honesty(run: RunFolder, best: Best) -> float | None:
    """The accepted program's mark for honesty, from evidence that the run has already."""
    from stitchcuda.reward.evidence import anti_hacking
    from stitchcuda.reward.observed import Observed

    observed = Observed(
        evaluation=best.evaluation,
        reference=_profile(run, "reference"),
        profile=_profile(run, f"{best.number:03d}"),
        program=load_program(run.best),
    )
    return anti_hacking(observed).score


def _profile(run: RunFolder, name: str) -> Profile | None:
    with contextlib.suppress(FileNotFoundError, ValidationError):
        return Profile.model_validate_json((run.path / "profiles" / f"{name}.json").read_bytes())
    return None


def _kept(provenance: dict[str, Any], result: Result) -> dict[str, Any]:
    kept = {key: provenance[key] for key in KEPT if provenance.get(key) not in (None, "")}
    return {"device": result.device, "target": result.target} | kept
