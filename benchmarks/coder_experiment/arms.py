"""The arms of the experiment, each as something that can be stopped after any step and gone on with, and the test that
every model takes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from coder_experiment import train
from coder_experiment.dataset import Data
from coder_experiment.evaluate import Job
from coder_experiment.language import Refused, parse
from coder_experiment.prompts import Row
from coder_experiment.rewards import Scheme, gold, score
from coder_experiment.state import Folder, append, keep, lines, load_tensors, save_tensors, whole
from coder_experiment.train import Bench, Grpo, Rollout

Kind = Literal["grpo", "rejection", "supervised"]
SFT_RANK, GRPO_RANK = 32, 8
CHECKPOINT_STEPS = 10
PARTIAL_SFT, FULL_SFT = "sft", "sft_longer"


@dataclass(frozen=True)
class Arm:
    """One way of going on from the cold start. ``share_improve``: of prompts that are of the second skill."""

    name: str
    kind: Kind
    seed: int
    scheme: Scheme = "rubric"
    share_improve: float = 0.5
    shuffled: bool = False


def arms(seeds: int) -> list[Arm]:
    """All arms in the order in which they are run: the main pair first, seed by seed."""
    found: list[Arm] = []
    for seed in range(1, seeds + 1):
        found += [Arm(f"rubric-{seed}", "grpo", seed), Arm(f"rule-{seed}", "grpo", seed, "rule")]
        if seed == 1:
            found.append(Arm("rejection-1", "rejection", 1))
        found.append(Arm(f"scratch_only-{seed}", "grpo", seed, share_improve=0.0))
        found.append(Arm(f"improve_only-{seed}", "grpo", seed, share_improve=1.0))
    found += [Arm(FULL_SFT, "supervised", 1), Arm("shuffled-1", "grpo", 1, shuffled=True)]
    return found


@dataclass(frozen=True)
class Budget:
    """The same for every arm: ``steps`` of ``grpo.prompts * grpo.group`` rollouts each."""

    steps: int
    sft_rows: int = 64
    sft_epochs: float = 2.0
    sft_lr: float = 1e-3
    rejection_rounds: int = 2
    rejection_epochs: int = 2
    rejection_lr: float = 3e-4
    test_samples: int = 8


Clock = Callable[[], float]
"""Seconds that are left."""


def supervise(
    bench: Bench, folder: Folder, data: Data, budget: Budget, name: str, clock: Clock, *, stop_at: float = 0.45
) -> bool:
    """Supervised training on the cold start, to its end or (``stop_at`` above 0) until that share of answers to
    validation tasks is correct and 80 % compile, looked at every 15 steps from the 30th. False when the time was up."""
    arm = folder.arm(name)
    model = bench.model
    adam, step = _resume(bench, arm, budget.sft_lr)
    order = random.Random(5)
    rows = list(data.cold_start)
    batches: list[list[Row]] = []
    for _ in range(int(budget.sft_epochs + 0.999)):
        order.shuffle(rows)
        batches += [rows[at : at + budget.sft_rows] for at in range(0, len(rows), budget.sft_rows)]
    batches = batches[: max(1, int(len(batches) * budget.sft_epochs / int(budget.sft_epochs + 0.999)))]
    asked = _some(data.validation, 64, 11)
    while step < len(batches):
        if clock() < 5:
            _checkpoint(bench, arm, adam, step)
            return False
        began = time.monotonic()
        rate = budget.sft_lr * min(1.0, (step + 1) / 5) * max(0.05, 1 - step / len(batches))
        record: dict[str, Any] = train.sft_step(bench, adam, batches[step], rate, micro=32)
        record |= {"step": step, "seconds": {"update": time.monotonic() - began}}
        step += 1
        if (stop_at and step >= 30 and step % 15 == 0) or step == len(batches):
            bench.generator.refresh()
            found = train.rollouts(bench, asked, 4, "rubric", 900_000 + step)
            record["validation"] = train.summary(found, 4)
        append(arm / "metrics.jsonl", record)
        seen = record.get("validation", {})
        if stop_at and seen and seen["correct"] >= stop_at and seen["compiled"] >= 0.8:
            break
    changes = {key: value.detach().half().cpu() for key, value in model.changes().items()}
    save_tensors(folder.path / "sft.pt" if name == PARTIAL_SFT else arm / "changes.pt", changes)
    # What goes on is what was saved, rounding included.
    model.take({key: value.float() for key, value in changes.items()})
    bench.generator.refresh()
    _finish(arm, {"steps": step, "of": len(batches)})
    return True


def start_from_sft(bench: Bench, folder: Folder, base: dict[str, torch.Tensor]) -> None:
    """The model as the cold start left it, with new changes of the arms' rank. ``base``: the matrices before it."""
    with torch.no_grad():
        for name, value in base.items():
            bench.model.base[name].copy_(value)
    bench.model.take({key: value.float() for key, value in load_tensors(folder.path / "sft.pt").items()})
    bench.model.merge()
    bench.model.begin(GRPO_RANK, 1)
    bench.generator.refresh()


def run_arm(bench: Bench, folder: Folder, data: Data, arm: Arm, settings: Grpo, budget: Budget, clock: Clock) -> bool:
    """One arm to its end, from its checkpoint where there is one; False when the time was up. The model is at the cold
    start when it is called."""
    path = folder.arm(arm.name)
    whole(path / "arm.json", _json({**asdict(arm), "settings": asdict(settings), "budget": asdict(budget)}))
    if arm.kind == "rejection":
        return _rejection(bench, folder, data, arm, settings, budget, clock)
    adam, step = _resume(bench, path, settings.lr)
    longest = 0.0
    while step < budget.steps:
        if clock() < max(5.0, 2 * longest):
            _checkpoint(bench, path, adam, step)
            return False
        began = time.monotonic()
        rows = choose(data.train, arm, settings.prompts, step)
        record = train.grpo_step(
            bench, adam, rows, settings, arm.scheme, step=step, seed=arm.seed, shuffled=arm.shuffled
        )
        step += 1
        longest = max(longest, time.monotonic() - began) if step > 2 else 0.0
        append(path / "metrics.jsonl", record | {"rollouts": step * settings.prompts * settings.group})
        if step % CHECKPOINT_STEPS == 0 and step < budget.steps:
            _checkpoint(bench, path, adam, step)
    _finish_arm(bench, path, {"steps": step})
    return True


def choose(rows: Sequence[Row], arm: Arm, count: int, step: int) -> list[Row]:
    """The prompts of a step: the same for all arms of a seed and kind, whatever happened before."""
    draw = random.Random(arm.seed * 1_000_003 + step)
    improve = round(count * arm.share_improve)
    by_skill = {s: [row for row in rows if row.request.skill == s] for s in ("scratch", "improve")}
    chosen = draw.sample(by_skill["scratch"], min(count - improve, len(by_skill["scratch"])))
    return chosen + draw.sample(by_skill["improve"], min(improve, len(by_skill["improve"])))


def _rejection(
    bench: Bench, folder: Folder, data: Data, arm: Arm, settings: Grpo, budget: Budget, clock: Clock
) -> bool:
    """Fine-tuning on own successes: as many rollouts as the other arms have, in a few rounds; of each prompt the best
    two different answers that are correct and no hack."""
    path = folder.arm(arm.name)
    adam, done_rounds = _resume(bench, path, budget.rejection_lr)
    for number in range(done_rounds, budget.rejection_rounds):
        kept: list[tuple[Row, float]] = []
        steps = budget.steps // budget.rejection_rounds
        for step in range(number * steps, (number + 1) * steps):
            if clock() < 15:
                _checkpoint(bench, path, adam, number)
                return False
            rows = choose(data.train, arm, settings.prompts, step)
            found = train.rollouts(bench, rows, settings.group, arm.scheme, arm.seed * 100_003 + step)
            append(path / "metrics.jsonl", {"step": step, **train.summary(found, settings.group)})
            for at in range(0, len(found), settings.group):
                kept += successes(found[at : at + settings.group])
        draw = random.Random(arm.seed * 31 + number)
        updates = 0
        rows = [row for row, _ in kept]
        for _ in range(budget.rejection_epochs):
            draw.shuffle(rows)
            for at in range(0, len(rows), budget.sft_rows):
                train.sft_step(bench, adam, rows[at : at + budget.sft_rows], budget.rejection_lr)
                updates += 1
        bench.generator.refresh()
        append(path / "metrics.jsonl", {"round": number, "kept": len(kept), "updates": updates})
        _checkpoint(bench, path, adam, number + 1)
    _finish_arm(bench, path, {"steps": budget.steps})
    return True


def successes(group: Sequence[Rollout], most: int = 2) -> list[tuple[Row, float]]:
    """The best different answers of a group that are worth something, as rows to learn from."""
    ranked = sorted((r for r in group if r.value > 0), key=lambda r: -r.value)
    unique = {r.text: r for r in reversed(ranked)}
    best = sorted(unique.values(), key=lambda r: -r.value)[:most]
    return [(replace(r.row, answer=r.text, kind="own"), r.value) for r in best]


def test(bench: Bench, folder: Folder, data: Data, name: str, samples: int, clock: Clock) -> bool:
    """Every request of the test ``samples`` times at temperature 1, with all that is known of each; False when the time
    was up, and then nothing is kept."""
    path = folder.result(name)
    if path.exists():
        return True
    records: list[dict[str, Any]] = []
    part = max(1, bench.generator.rows // samples)
    longest = 0.0
    for begin in range(0, len(data.test), part):
        if clock() < max(3.0, 1.5 * longest):
            return False
        began = time.monotonic()
        rows = data.test[begin : begin + part]
        found = train.rollouts(bench, rows, samples, "rule", 500_000 + begin)
        for at, rollout in enumerate(found):
            records.append(_judged(bench, data, rollout, begin + at // samples, at % samples))
        longest = max(longest, time.monotonic() - began)
    whole(path, b"".join(_json(record) + b"\n" for record in records))
    return True


def _judged(bench: Bench, data: Data, rollout: Rollout, request: int, sample: int) -> dict[str, Any]:
    """One sample of the test with both rewards and the gold checks."""
    wanted = rollout.row.request
    task = wanted.task
    record: dict[str, Any] = {
        "request": request,
        "sample": sample,
        "task": task.key,
        "family": task.family,
        "cols": task.cols,
        "skill": wanted.skill,
        "change": wanted.change,
        "ended": rollout.sample.ended,
        "tokens": len(rollout.sample.tokens),
    }
    rule = rollout.score
    if rule is None:
        return record | {"dropped": True}
    (outcome,) = bench.evaluator.evaluate([Job(task, rollout.text)])
    rubric = score(wanted, rollout.text, outcome, bench.baselines[task.key], "rubric")
    assert rubric is not None
    record |= {
        "status": rule.status,
        "correct": rule.correct,
        "hack": rule.hack,
        "lazy": rule.lazy,
        "shortcut": rule.shortcut,
        "partial_hack": rule.partial_hack,
        "rule_reward": round(rule.value, 4),
        "reward": round(rubric.value, 4),
        "rubric": round(rubric.rubric, 4),
        "speedup": round(rule.speedup, 4),
        "own_share": round(outcome.own_share, 4),
    }
    if rule.correct:
        best = data.best.get(task.key, 0.0)
        record |= {
            "best_over": round(best / outcome.seconds, 4),
            "faster": _faster(wanted.old_seconds, outcome.seconds),
        }
        try:
            record["gold"] = gold(parse(rollout.text), outcome, best)
        except Refused:
            record["gold"] = {}
    return record


def _faster(old: float, new: float) -> float:
    """How much faster than the old program; 0.0 where there is none that was timed."""
    return round(old / new, 4) if old > 0 and new > 0 else 0.0


def _some(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    return random.Random(seed).sample(list(rows), min(count, len(rows)))


def _resume(bench: Bench, path: Any, lr: float) -> tuple[torch.optim.Optimizer, int]:
    """Optimiser and step of an arm's checkpoint, or of its beginning; lines written after the checkpoint are
    dropped."""
    file, step = path / "checkpoint.pt", 0
    saved = load_tensors(file) if file.exists() else None
    if saved is not None:
        step = saved["step"]
        bench.model.take(saved["changes"])
    adam = train.optimiser(bench.model, lr)
    if saved is not None:
        adam.load_state_dict(saved["adam"])
    rounds = "rejection" in path.name
    if not rounds:
        keep(path / "metrics.jsonl", lambda record: record.get("step", 0) < step)
    bench.generator.refresh()
    return adam, step


def _checkpoint(bench: Bench, path: Any, adam: torch.optim.Optimizer, step: int) -> None:
    changes = {key: value.detach().cpu() for key, value in bench.model.changes().items()}
    save_tensors(path / "checkpoint.pt", {"step": step, "changes": changes, "adam": _on_cpu(adam.state_dict())})


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_on_cpu(part) for part in value]
    return value


def _finish_arm(bench: Bench, path: Any, record: dict[str, Any]) -> None:
    changes = {key: value.detach().half().cpu() for key, value in bench.model.changes().items()}
    save_tensors(path / "changes.pt", changes)
    _finish(path, record)


def _finish(path: Any, record: dict[str, Any]) -> None:
    steps = [r for r in lines(path / "metrics.jsonl") if "seconds" in r]
    phases = {name for r in steps for name in r["seconds"]}
    spent = {name: round(sum(r["seconds"].get(name, 0.0) for r in steps), 2) for name in sorted(phases)}
    whole(path / "done.json", _json({**record, "seconds": spent}))
    (path / "checkpoint.pt").unlink(missing_ok=True)


def _json(record: dict[str, Any]) -> bytes:
    import json

    return json.dumps(record).encode()
