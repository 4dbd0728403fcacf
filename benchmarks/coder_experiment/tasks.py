"""Tasks: chains of operators over inputs, generated, audited and split so that no composition of the test is trained
on. What a program for one may look like is in ``schedules``; exact results are ``reference``'s.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coder_experiment.operators import (
    ADDITIVE,
    BINARY,
    CLAMP,
    LAYOUT,
    POINTWISE,
    REDUCTIONS,
    ROW,
    ROW_WISE,
    SCALAR,
    UNARY,
    Array,
    Step,
    number,
    wrap,
)

Family = Literal["E", "R", "T", "P"]
Part = Literal["train", "validation", "test"]
FAMILIES: tuple[Family, ...] = ("E", "R", "T", "P")
SHARES = {"E": 0.3, "R": 0.2, "T": 0.15, "P": 0.35}

TRAIN_COLS = (32, 48, 64, 100, 128, 192, 256, 384, 512, 1000, 1024, 2048, 4096, 8192)
TEST_COLS = (40, 96, 160, 320, 640, 1500, 3072, 6144)
"""Never trained on; half of the test's tasks have one of them."""
INPUTS = ("a", "b", "c")

SCALES, SHIFTS, CLAMPS = (0.25, 0.5, 1.5, 2.0, 3.0), (0.25, 0.5, 1.0, 1.5, -0.5, -1.0), (0.5, 1.0, 6.0, 8.0)
LARGEST = 1e5
"""Of a value under usual inputs."""


@dataclass(frozen=True)
class Task:
    """``y = chain(a)`` for matrices with ``cols`` columns; the rows are what fills the memory asked for."""

    chain: tuple[Step, ...]
    cols: int
    family: Family

    @property
    def composition(self) -> str:
        """Operators and how they are put together, without constants and sizes: what the split goes by. Inputs beside
        ``a`` are named by their order, for one that only calls ``b`` what another calls ``c`` is no other."""
        names = {"a": "a"}
        parts = []
        for step in self.chain:
            if isinstance(step.operand, str):
                parts.append(f"{step.name}:{names.setdefault(step.operand, f'input{len(names)}')}")
            else:
                parts.append(step.name)
        return "|".join(parts)

    @property
    def expression(self) -> str:
        """As a prompt writes it."""
        return express(self.chain)

    @property
    def key(self) -> str:
        """Names the task: its expression and columns."""
        return f"{self.expression} @{self.cols}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, ``a`` first."""
        used = {"a"} | {s.operand for s in self.chain if isinstance(s.operand, str)}
        return tuple(name for name in INPUTS if name in used)

    @property
    def reduced(self) -> bool:
        """Whether the output is one number a row."""
        return any(s.name in REDUCTIONS for s in self.chain)

    @property
    def transposed(self) -> bool:
        """Whether the output is ``[cols, rows]``."""
        return any(s.name == "transpose" for s in self.chain)

    def as_json(self) -> dict[str, Any]:
        """For a record."""
        return {"chain": [s.as_json() for s in self.chain], "cols": self.cols, "family": self.family}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Task:
        """From a record."""
        return cls(tuple(Step(name, operand) for name, operand in record["chain"]), record["cols"], record["family"])


def express(chain: Sequence[Step], start: str = "a") -> str:
    """The chain as one expression."""
    text, additive = start, False
    for step in chain:
        operand = number(step.operand) if isinstance(step.operand, float) else step.operand
        text = step.operator.text.format(v=wrap(text, step, additive=additive), o=operand)
        additive = step.name in ADDITIVE
    return text


def reference(task: Task, inputs: dict[str, Array]) -> Array:
    """The exact output for ``inputs`` of shape [rows, cols] each: [rows, cols], [cols, rows] or [rows, 1]; float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = inputs["a"]
        for step in task.chain:
            value = step.apply(value, inputs)
    return value


def generate(seed: int, counts: dict[Part, int]) -> dict[Part, list[Task]]:
    """As many distinct tasks of each part as ``counts`` says, no composition in two parts; equal seeds, equal tasks."""
    draw = random.Random(seed)
    found: dict[Part, list[Task]] = {part: [] for part in counts}
    keys: set[str] = set()
    compositions: set[str] = set()
    attempts = 0
    while any(len(found[part]) < counts[part] for part in counts):
        attempts += 1
        if attempts > 400 * (sum(counts.values()) + 50):
            raise RuntimeError(f"only {len(keys)} of {sum(counts.values())} tasks were found; ask for fewer")
        family = draw.choices(FAMILIES, [SHARES[name] for name in FAMILIES])[0]
        chain = tuple(_chain(draw, family))
        shape = Task(chain, 0, family)
        part = part_of(shape.composition)
        if part not in counts or len(found[part]) >= counts[part]:
            continue
        # A test task has a composition of its own, so that the tasks are independent of each other.
        if part != "train" and shape.composition in compositions:
            continue
        unseen = part == "test" and len(found[part]) % 2 == 1
        task = Task(chain, draw.choice(TEST_COLS if unseen else TRAIN_COLS), family)
        if task.key in keys or not alive(task):
            continue
        keys.add(task.key)
        compositions.add(task.composition)
        found[part].append(task)
    return found


def part_of(composition: str) -> Part:
    """The part that a composition belongs to, told from itself alone."""
    value = int(hashlib.sha256(composition.encode()).hexdigest()[:8], 16) % 100
    return "test" if value < 18 else "validation" if value < 26 else "train"


def alive(task: Task) -> bool:
    """Whether every operator does something, if only for large values, and the output is finite and not constant."""
    draw = np.random.default_rng(7)
    usual = {name: draw.uniform(-2, 2, (24, 33)) for name in INPUTS}
    large = {name: 8 * value for name, value in usual.items()}
    changed = [False] * len(task.chain)
    for inputs in (usual, large):
        value = inputs["a"]
        for at, step in enumerate(task.chain):
            with np.errstate(all="ignore"):
                after = step.apply(value, inputs)
            if not np.isfinite(after).all() or (inputs is usual and np.abs(after).max() > LARGEST):
                return inputs is large and all(changed[: at + 1]) and all(changed)
            same = after.shape == value.shape and np.abs(after - value).max() < 1e-2 * (1e-3 + np.abs(value).max())
            changed[at] |= not same
            value = after
        if inputs is usual and float(value.std()) < 1e-3 * (1e-2 + float(np.abs(value).mean())):
            return False
    return all(changed)


def _chain(draw: random.Random, family: Family) -> Iterator[Step]:
    """Operators of one task of a family."""
    if family == "E":
        yield from _pointwise(draw, draw.randint(2, 5))
        return
    if family == "T":
        before, after = draw.choice([(0, 0), (1, 0), (0, 1), (1, 1), (2, 0)])
        yield from _pointwise(draw, before)
        yield Step("transpose")
        yield from _pointwise(draw, after, binary=False)
        return
    before, after = (draw.randint(0, 1), draw.randint(0, 1)) if family == "R" else (draw.randint(1, 2), 1)
    yield from _pointwise(draw, before)
    row = draw.choice(ROW_WISE)
    yield Step(row)
    reduced = row in REDUCTIONS
    shape = draw.random()
    if family == "P" and not reduced and shape < 0.35:
        yield Step("transpose")
        yield from _pointwise(draw, draw.randint(0, 1), binary=False)
    elif family == "P" and not reduced and shape < 0.6:
        yield from _pointwise(draw, draw.randint(0, 1))
        yield Step(draw.choice(ROW_WISE))
    else:
        yield from _pointwise(draw, after, binary=not reduced)


def _pointwise(draw: random.Random, count: int, *, binary: bool = True) -> Iterator[Step]:
    last = ""
    for _ in range(count):
        name = draw.choice([n for n in POINTWISE if n != last and (binary or Step(n).operator.kind != BINARY)])
        last = name
        kind = Step(name).operator.kind
        if kind == BINARY:
            yield Step(name, draw.choices(INPUTS, [1, 6, 3])[0])
        elif kind == CLAMP:
            yield Step(name, draw.choice(CLAMPS))
        elif kind == SCALAR:
            yield Step(name, draw.choice(SCALES if name == "scale" else SHIFTS))
        else:
            yield Step(name)


def heavy(task: Task) -> int:
    """How many operators are more than pointwise."""
    return sum(step.operator.kind in (ROW, LAYOUT) for step in task.chain)


def audit(tasks: Iterable[Task]) -> dict[str, Any]:
    """Counts for the record: by family, operators, compositions and columns."""
    listed = list(tasks)
    names = sorted({step.name for task in listed for step in task.chain})
    return {
        "tasks": len(listed),
        "compositions": len({task.composition for task in listed}),
        "families": {family: sum(task.family == family for task in listed) for family in FAMILIES},
        "operators": {name: sum(any(s.name == name for s in t.chain) for t in listed) for name in names},
        "unseen_cols": sum(task.cols in TEST_COLS for task in listed),
        "longest": max((len(task.chain) for task in listed), default=0),
        "unary_only": sum(all(s.operator.kind == UNARY for s in task.chain) for task in listed),
    }
