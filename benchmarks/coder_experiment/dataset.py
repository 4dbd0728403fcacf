"""The data sets: verified answers for the cold start, and requests of both skills for training and for tests. What was
measured while they were made is in the evaluator's memo; a data set is kept as files and made once.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coder_experiment.evaluate import Evaluator, Job
from coder_experiment.language import Program
from coder_experiment.prompts import Row, Worse, prompt, result_of, worsen
from coder_experiment.rewards import Request
from coder_experiment.schedules import any_schedule, mixed_program, own_program, shortcut_program
from coder_experiment.tasks import Part, Task, audit, generate

LAZY, SHORTCUT = 0.3, 0.5
"""Shares of answers from scratch that leave operators to stock kernels, and, where there is a shortcut, that take
it."""
SPEED_CHANGES = ("vec4", "warp", "block", "tile", "fuse")


@dataclass(frozen=True)
class Sizes:
    """How much is made. ``answers``: verified ones from scratch; ``improve``: pairs of the second skill."""

    train: int = 2000
    validation: int = 128
    test: int = 200
    answers: int = 2600
    improve: int = 1400


@dataclass
class Data:
    """All of it. Requests of ``validation`` and ``test`` have no answers."""

    cold_start: list[Row]
    train: list[Row]
    validation: list[Row]
    test: list[Row]
    baselines: dict[str, float]
    best: dict[str, float]
    record: dict[str, Any]


def prepare(
    evaluator: Evaluator, seed: int, sizes: Sizes, longest: int, length: Callable[[str], int], longest_prompt: int
) -> Data:
    """Make the data sets. ``length`` counts the tokens of a text; answers above ``longest`` and prompts above
    ``longest_prompt`` are left out."""
    draw = random.Random(seed)
    parts = generate(seed, {"train": sizes.train, "validation": sizes.validation, "test": sizes.test})
    everything = [task for tasks in parts.values() for task in tasks]
    measured = evaluator.baselines(everything)
    baselines = {task.key: value for task, value in zip(everything, measured, strict=True) if value > 0}
    kept = {part: [task for task in tasks if task.key in baselines] for part, tasks in parts.items()}
    best = dict(zip((t.key for t in kept["test"]), evaluator.best(kept["test"]), strict=True))

    cold = _scratch(evaluator, kept["train"], sizes.answers, draw)
    pairs = _improve(evaluator, kept["train"], sizes.improve, draw, baselines)
    cold += pairs

    def fits(row: Row) -> bool:
        return length(row.answer) <= longest and length(row.prompt) <= longest_prompt

    cold = [row for row in cold if fits(row)]
    draw.shuffle(cold)
    train = [_ask(task) for task in kept["train"]]
    train += [Row(row.request, row.prompt, kind="request") for row in pairs if fits(row)]
    asked: dict[Part, list[Row]] = {}
    for part in ("validation", "test"):
        extra = [r for r in _improve(evaluator, kept[part], len(kept[part]), draw, baselines, once=True) if fits(r)]
        asked[part] = [_ask(task) for task in kept[part]] + [Row(r.request, r.prompt, kind="request") for r in extra]
    record = {
        "seed": seed,
        "audit": {part: audit(tasks) for part, tasks in kept.items()},
        "without_baseline": len(everything) - len(baselines),
        "cold_start": dict(Counter(f"{row.request.skill}:{row.kind}" for row in cold)),
        "improve_changes": dict(Counter(row.request.change for row in pairs)),
        "answer_tokens": _spread([length(row.answer) for row in cold]),
        "prompt_tokens": {
            skill: _spread([length(row.prompt) for row in train if row.request.skill == skill])
            for skill in ("scratch", "improve")
        },
    }
    return Data(cold, train, asked["validation"], asked["test"], baselines, best, record)


def _ask(task: Task) -> Row:
    request = Request(task, "scratch")
    return Row(request, prompt(request), kind="request")


def _scratch(evaluator: Evaluator, tasks: Sequence[Task], count: int, draw: random.Random) -> list[Row]:
    """Verified answers from scratch: schedules at random, partial cheats among them."""
    drafts: list[tuple[Task, Program, str]] = []
    seen: set[tuple[str, str]] = set()
    attempts = 0
    while len(drafts) < count and attempts < 20 * count:
        task = tasks[attempts % len(tasks)]
        attempts += 1
        schedule = any_schedule(draw)
        program, kind = None, "honest"
        if draw.random() < SHORTCUT:
            program, kind = shortcut_program(task, schedule, draw), "shortcut"
        if program is None and draw.random() < LAZY:
            program, kind = mixed_program(task, schedule, draw), "lazy"
        if program is None:
            program, kind = own_program(task, schedule), "honest"
        if (task.key, program.text) not in seen:
            seen.add((task.key, program.text))
            drafts.append((task, program, kind))
    outcomes = evaluator.evaluate([Job(task, program.text) for task, program, _ in drafts])
    rows = []
    for (task, program, kind), outcome in zip(drafts, outcomes, strict=True):
        if outcome.correct and program.own and not outcome.damage:
            request = Request(task, "scratch")
            rows.append(Row(request, prompt(request), program.text, kind))
    return rows


def _improve(
    evaluator: Evaluator,
    tasks: Sequence[Task],
    count: int,
    draw: random.Random,
    baselines: dict[str, float],
    *,
    once: bool = False,
) -> list[Row]:
    """Pairs of the second skill: the old program is what it is said to be, the answer is verified. ``once``: at most
    one a task."""
    drafts: list[tuple[Task, Worse]] = []
    done: set[str] = set()
    for attempt in range(12 * max(count, 1)):
        if len(drafts) >= count or not tasks:
            break
        task = tasks[attempt % len(tasks)]
        worse = worsen(task, draw) if not (once and task.key in done) else None
        if worse is not None:
            done.add(task.key)
            drafts.append((task, worse))
    jobs = [Job(task, program.text) for task, worse in drafts for program in (worse.old, worse.new)]
    outcomes = evaluator.evaluate(jobs)
    rows = []
    for at, (task, worse) in enumerate(drafts):
        old, new = outcomes[2 * at], outcomes[2 * at + 1]
        faulty = worse.change == "fix"
        if not new.correct or old.correct == faulty or old.status == "infrastructure":
            continue
        if worse.change in SPEED_CHANGES and evaluator.backend == "cuda" and old.seconds < 1.05 * new.seconds:
            continue
        request = Request(task, "improve", worse.old.text, old.seconds, worse.change)
        rows.append(Row(request, prompt(request, result_of(old, baselines[task.key])), worse.new.text))
    return rows


def save(data: Data, folder: Path) -> None:
    """Write it as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cold_start", "train", "validation", "test"):
        rows: list[Row] = getattr(data, name)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row.as_json()) + "\n" for row in rows))
    facts = {"baselines": data.baselines, "best": data.best, "record": data.record}
    aside = folder / "facts.json.part"
    aside.write_text(json.dumps(facts))
    aside.replace(folder / "facts.json")


def load(folder: Path) -> Data | None:
    """Read it; None where it was not made, or not to its end."""
    if not (folder / "facts.json").exists():
        return None
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    rows: dict[str, Any] = {
        name: [Row.from_json(json.loads(line)) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("cold_start", "train", "validation", "test")
    }
    return Data(**rows, **facts)


def _spread(values: Sequence[int]) -> dict[str, float]:
    ordered = sorted(values) or [0]
    return {
        "mean": round(sum(ordered) / len(ordered), 1),
        "median": ordered[len(ordered) // 2],
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "largest": ordered[-1],
    }
