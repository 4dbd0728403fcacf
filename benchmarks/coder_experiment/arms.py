"""The arms of the experiment, each as something that can be stopped after any step and gone on with, and the test that
every model takes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
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
CHECKPOINT_STEPS, SFT_CHECKPOINT_STEPS = 5, 15
FIRST_LOOK, LOOK_STEPS = 10, 5
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
    """All arms in the order in which they are run: what two hypotheses need with all seeds, then what the others
    need."""
    found: list[Arm] = []
    for seed in range(1, seeds + 1):
        found += [Arm(f"rubric-{seed}", "grpo", seed), Arm(f"rule-{seed}", "grpo", seed, "rule")]
        if seed == 1:
            found.append(Arm(FULL_SFT, "supervised", 1))
    for seed in range(1, seeds + 1):
        found.append(Arm(f"scratch_only-{seed}", "grpo", seed, share_improve=0.0))
        found.append(Arm(f"improve_only-{seed}", "grpo", seed, share_improve=1.0))
    return [*found, Arm("rejection-1", "rejection", 1), Arm("shuffled-1", "grpo", 1, shuffled=True)]


class UnknownArm(ValueError):
    """A name that no arm of these seeds has."""


def wanted(names: str, seeds: int) -> list[Arm]:
    """The arms that ``names``, with commas, asks for, in the order in which they are run; all where it is empty. The
    name of the cold start, which comes before every arm, asks for it alone. Raises UnknownArm."""
    every = arms(seeds)
    asked = {name.strip() for name in names.split(",")} - {""}
    known = [PARTIAL_SFT, *(arm.name for arm in every)]
    if unknown := sorted(asked - set(known)):
        raise UnknownArm(f"no arm of {seeds} seeds is called {', '.join(unknown)}; known are {', '.join(known)}")
    return [arm for arm in every if not asked or arm.name in asked]


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
    validation tasks is correct and 80 % compile, looked at every 5 steps from the 10th. False when the time was up."""
    arm = folder.arm(name)
    adam, step = _resume(bench, arm, budget.sft_lr)
    order = random.Random(5)
    rows = list(data.cold_start)
    batches: list[list[Row]] = []
    for _ in range(int(budget.sft_epochs + 0.999)):
        order.shuffle(rows)
        batches += [rows[at : at + budget.sft_rows] for at in range(0, len(rows), budget.sft_rows)]
    batches = batches[: max(1, int(len(batches) * budget.sft_epochs / int(budget.sft_epochs + 0.999)))]
    asked = some(data.validation, 64, 11)
    longest = 0.0
    while step < len(batches):
        if clock() < max(5.0, 1.5 * longest):
            _checkpoint(bench, arm, adam, step)
            return False
        began = time.monotonic()
        rate = budget.sft_lr * min(1.0, (step + 1) / 5) * max(0.05, 1 - step / len(batches))
        record: dict[str, Any] = train.sft_step(bench, adam, batches[step], rate, micro=32)
        record |= {"step": step, "seconds": {"update": time.monotonic() - began}}
        step += 1
        if (stop_at and step >= FIRST_LOOK and step % LOOK_STEPS == 0) or step == len(batches):
            bench.generator.refresh()
            found = train.rollouts(bench, asked, 4, "rubric", 900_000 + step)
            record["validation"] = train.summary(found, 4)
        longest = max(longest, time.monotonic() - began)
        append(arm / "metrics.jsonl", record)
        seen = record.get("validation", {})
        if stop_at and seen and seen["correct"] >= stop_at and seen["compiled"] >= 0.8:
            break
        if step % SFT_CHECKPOINT_STEPS == 0:
            _checkpoint(bench, arm, adam, step)
    file = folder.path / "sft.pt" if name == PARTIAL_SFT else arm / "changes.pt"
    _finish(bench, file, arm, {"steps": step, "of": len(batches)})
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
    _finish(bench, path / "changes.pt", path, {"steps": step})
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
    two different answers that are correct and no hack. What a step of rollouts gave is written down at once, so a round
    goes on where it was; its updates are made together, from the checkpoint of the round's begin."""
    path = folder.arm(arm.name)
    file, learned = path / "metrics.jsonl", path / "kept.jsonl"
    adam, done_rounds = _resume(bench, path, budget.rejection_lr, rounds=True)
    asked = {record["step"]: record for record in lines(learned)}
    keep(file, lambda record: record["step"] in asked)
    longest = 0.0
    for number in range(done_rounds, budget.rejection_rounds):
        first, last = (budget.steps * n // budget.rejection_rounds for n in (number, number + 1))
        for step in (s for s in range(first, last) if s not in asked):
            if clock() < max(5.0, 2 * longest):
                return False
            began = time.monotonic()
            rows = choose(data.train, arm, settings.prompts, step)
            found = train.rollouts(bench, rows, settings.group, arm.scheme, arm.seed * 100_003 + step)
            groups = [found[at : at + settings.group] for at in range(0, len(found), settings.group)]
            record = {"step": step, **train.summary(found, settings.group), "seconds": bench.seconds}
            append(file, record | {"rollouts": (step + 1) * len(found)})
            asked[step] = {"step": step, "rows": [row.as_json() for group in groups for row in successes(group)]}
            append(learned, asked[step])
            longest = max(longest, time.monotonic() - began)
        rows = [Row.from_json(row) for step in range(first, last) for row in asked[step]["rows"]]
        batches: list[list[Row]] = []
        draw = random.Random(arm.seed * 31 + number)
        for _ in range(budget.rejection_epochs):
            draw.shuffle(rows)
            batches += [rows[at : at + budget.sft_rows] for at in range(0, len(rows), budget.sft_rows)]
        times = list[float]()
        for done, batch in enumerate(batches):
            if clock() < max(5.0, 1.5 * max(times, default=0.0) * (len(batches) - done)):
                return False
            began = time.monotonic()
            train.sft_step(bench, adam, batch, budget.rejection_lr)
            times.append(time.monotonic() - began)
        bench.generator.refresh()
        _timed_update(file, last - 1, sum(times))
        _checkpoint(bench, path, adam, number + 1)
        longest = 0.0
    done_rows = sum(len(record["rows"]) for record in asked.values())
    _finish(bench, path / "changes.pt", path, {"steps": budget.steps, "kept": done_rows})
    learned.unlink()
    return True


def _timed_update(file: Path, step: int, seconds: float) -> None:
    """Count a round's updates to its last step, instead of those of an earlier start that did not come to its end."""
    records = lines(file)
    for record in (record for record in records if record["step"] == step):
        record["seconds"]["update"] = seconds
    whole(file, "".join(json.dumps(record) + "\n" for record in records).encode())


def successes(group: Sequence[Rollout], most: int = 2) -> list[Row]:
    """The best different answers of a group that are worth something, as rows to learn from. None with other letters
    than ASCII has, which a right one may hold as blanks: the tokenizer reads no other text."""
    ranked = sorted((r for r in group if r.value > 0 and r.text.isascii()), key=lambda r: -r.value)
    unique = {r.text: r for r in reversed(ranked)}
    best = sorted(unique.values(), key=lambda r: -r.value)[:most]
    return [replace(r.row, answer=r.text, kind="own") for r in best]


def test(bench: Bench, folder: Folder, data: Data, name: str, samples: int, clock: Clock) -> bool:
    """Every request of the test ``samples`` times at temperature 1, with all that is known of each; False when the time
    was up, and then it goes on with the batch that was next. What each batch is asked depends on its place alone."""
    path = folder.result(name)
    if path.exists():
        return True
    begun = path.with_name(f"{path.name}.begun")
    part = max(1, bench.generator.rows // samples)
    batches: dict[int, list[dict[str, Any]]] = {}
    for record in lines(begun):
        batches.setdefault(record["request"] // part, []).append(record)
    whole_ones = {n for n, some in batches.items() if len(some) == samples * len(data.test[n * part : (n + 1) * part])}
    keep(begun, lambda record: record["request"] // part in whole_ones)
    longest = 0.0
    for begin in range(0, len(data.test), part):
        if begin // part in whole_ones:
            continue
        if clock() < max(5.0, 1.5 * longest):
            return False
        began = time.monotonic()
        rows = data.test[begin : begin + part]
        found = train.rollouts(bench, rows, samples, "rule", 500_000 + begin)
        append(begun, *(_judged(bench, data, r, begin + at // samples, at % samples) for at, r in enumerate(found)))
        longest = max(longest, time.monotonic() - began)
    os.replace(begun, path)
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


def some(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    return random.Random(seed).sample(list(rows), min(count, len(rows)))


def _resume(bench: Bench, path: Path, lr: float, *, rounds: bool = False) -> tuple[torch.optim.Optimizer, int]:
    """Optimiser and step (or round) of an arm's checkpoint, or of its beginning; lines written after the checkpoint are
    dropped unless ``rounds``."""
    file, step = path / "checkpoint.pt", 0
    saved = load_tensors(file) if file.exists() else None
    if saved is not None:
        step = saved["step"]
        bench.model.take(saved["changes"])
    adam = train.optimiser(bench.model, lr)
    if saved is not None:
        adam.load_state_dict(saved["adam"])
    if not rounds:
        keep(path / "metrics.jsonl", lambda record: record["step"] < step)
    bench.generator.refresh()
    return adam, step


def _checkpoint(bench: Bench, path: Path, adam: torch.optim.Optimizer, step: int) -> None:
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


def _finish(bench: Bench, file: Path, arm: Path, record: dict[str, Any]) -> None:
    """Save what was learned as ``file``, last of all, for it says that the arm is finished. The model goes on with what
    was saved, rounding included, so that it makes no difference where a slice ends."""
    steps = [r for r in lines(arm / "metrics.jsonl") if "seconds" in r]
    phases = {name for r in steps for name in r["seconds"]}
    spent = {name: round(sum(r["seconds"].get(name, 0.0) for r in steps), 2) for name in sorted(phases)}
    whole(arm / "done.json", _json({**record, "seconds": spent}))
    changes = {key: value.detach().half().cpu() for key, value in bench.model.changes().items()}
    save_tensors(file, changes)
    bench.model.take({key: value.float() for key, value in changes.items()})
    bench.generator.refresh()
    (arm / "checkpoint.pt").unlink(missing_ok=True)


def _json(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode()
