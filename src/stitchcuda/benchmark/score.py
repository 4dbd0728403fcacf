"""Scoring a program that somebody else made: one evaluation, as strict as any, and its Record."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from stitchcuda.benchmark.item import KEPT, PARTIAL_HACK, failed, of_evaluation
from stitchcuda.benchmark.measuring import HELD, Place, measured_seconds
from stitchcuda.benchmark.model import Ending, Item, Record, SweepConfig
from stitchcuda.errors import InfrastructureError, ProgramError, TaskError
from stitchcuda.evaluation.model import Evaluation
from stitchcuda.program.files import load_program
from stitchcuda.task.loader import load_task
from stitchcuda.workflow.bench import ComputeBench
from stitchcuda.workflow.result import NOISE, finite
from stitchcuda.workflow.storage import write_whole

EVALUATION, MARK = "evaluation.json", "mark"


def score_item(item: Item, config: SweepConfig, folder: Path, *, measuring: Place) -> Record:
    """Evaluate the item's program. Raises InfrastructureError when the machine fails, which is nobody's result."""
    place = folder / "items" / item.id
    place.mkdir(parents=True, exist_ok=True)
    try:
        program = load_program(Path(item.program or ""))
    except ProgramError as error:
        return failed(item, "nothing_correct", str(error)).model_copy(
            update={"programs": {"no_program": 1}, "usd": 0.0}
        )
    device = measuring.device
    root = Path(config.root) if config.root else None
    try:
        task = load_task(item.task, target=device.target, root=root, precision=config.precision)
        with measuring.bench(place) as bench:
            if isinstance(bench, ComputeBench):
                bench.of_run(_mark(place / MARK), device.name)
            facts = bench.inspect(task)
            device = bench.ceilings(device)
            bench.use(task, facts, device)
            evaluation = bench.evaluate(program, config.tier)
    except TaskError as error:
        (place / MARK).unlink(missing_ok=True)  # tried again, it is to be measured anew
        return failed(item, "not_runnable", str(error))
    if evaluation.status == "infrastructure_error":
        raise InfrastructureError(evaluation.message)
    write_whole(place / EVALUATION, (evaluation.model_dump_json(indent=1) + "\n").encode())
    seconds, honesty = measured_seconds(place / HELD), _honesty(evaluation)
    shown: dict[str, Any] = of_evaluation(evaluation) if evaluation.passed else {}
    return failed(item, _ending(evaluation), evaluation.message).model_copy(
        update={
            "precision": task.precision,
            "mode": "train" if facts.training else "eval",
            "programs": {evaluation.status: 1},
            "hacks": int(evaluation.status in ("dishonest", "impossible")),
            "honesty": honesty,
            "partial_hack": None if honesty is None else PARTIAL_HACK[0] <= honesty <= PARTIAL_HACK[1],
            "usd": 0.0,
            "wall_seconds": seconds,
            "device_seconds": seconds,
            "run": f"items/{item.id}",
            "provenance": {"device": device.name}
            | {k: evaluation.provenance[k] for k in KEPT if evaluation.provenance.get(k) not in (None, "")},
            **finite(shown),
        }
    )


def _mark(path: Path) -> str:
    """What this item's jobs are named by: the same when its sweep is resumed, which then finds on a spool what was
    measured while it was dead."""
    if not path.is_file():
        write_whole(path, secrets.token_hex(16).encode())
    return path.read_text(encoding="utf-8")


def _ending(evaluation: Evaluation) -> Ending:
    if not evaluation.passed:
        return "nothing_correct"
    return "no_gain" if evaluation.speedup.get("eager", 1.0) < 1 - NOISE else "correct"


def _honesty(evaluation: Evaluation) -> float | None:
    from stitchcuda.reward.evidence import anti_hacking
    from stitchcuda.reward.observed import Observed

    return anti_hacking(Observed(evaluation=evaluation)).score if evaluation.passed else None
