"""Which family of inputs a checked call gets: an order that only the nonce's holder knows, families that the reference
does not stand left out with the reason. What a family does to tensors is in ``families``; oracle only.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch

from stitchcuda.evaluation import compare, layout
from stitchcuda.evaluation.expectation import Expectation, Result, derive
from stitchcuda.evaluation.families import (
    FAMILIES,
    VALUES,
    Family,
    Input,
    change,
    leaves,
    look,
    permute,
    plant,
)
from stitchcuda.evaluation.judging import Judge, Round
from stitchcuda.evaluation.schedule import RELATED

MAGNITUDES = (30.0, 1e3, 1e5)
"""Standard deviations by which the probe moves elements: the first that the reference's outputs show well."""

LARGEST_HALF = 1e3
"""The same where fp16 would overflow."""

EXTREME = ("spikes", "probe")
"""Families that are no base for related ones: their magnitudes would add up."""

SHOWS = 20.0
"""Multiples of the error budget by which outputs must move to show a planted element well."""


class Varied:
    """Inputs for one call, with the reference's answer where it was needed to choose them."""

    def __init__(self, inputs: list[Any], family: str = "", eager: Result | None = None, values: str = "") -> None:
        self.inputs, self.family, self.eager = inputs, family, eager
        self.values = values
        """The family that the values come from."""


class Variety:
    """The families of one Task. Reasons for leaving one out hold for the Task, not for a nonce."""

    def __init__(self, expectation: Expectation, source: str) -> None:
        self.expectation, self.source = expectation, source
        self.skipped: dict[str, dict[str, str]] = {}
        """By input case: family and why the reference does not stand it."""
        self.looks: dict[str, list[Input]] = {}
        self.magnitudes: dict[str, float] = {}
        self.specials: dict[str, tuple[bool, bool]] = {}
        self.given: dict[str, set[str]] = {}

    def renew(self) -> None:
        """Forget which families this evaluation has seen."""
        self.given.clear()

    def order(self, nonce: bytes, case: str | None) -> list[Family]:
        """All families: signed first, because it alone tells precision classes apart on inputs of one sign; the others
        as the nonce has it, related ones behind a base that they can be made from."""
        order: list[Family] = ["signed", *(family for family in FAMILIES if family != "signed")]
        drawn = random.Random(derive(nonce, f"families:{case}"))
        while True:
            rest = order[1:]
            drawn.shuffle(rest)
            order = ["signed", *rest]
            if not any(a in EXTREME and b in RELATED for a, b in itertools.pairwise(order)):
                return order

    def told(self, case: str | None, family: str) -> dict[str, str]:
        """For the Evaluation: the family just checked, and why others are left out, by name."""
        prefix = f"{case}/" if case is not None else ""
        told = {family: "checked"} if family else {}
        told |= {name: f"left out: {reason}" for name, reason in self.skipped.get(str(case), {}).items()}
        return {prefix + name: text for name, text in told.items()}

    def make(
        self, wanted: str, nonce: bytes, label: str, case: str | None, seed: int, earlier: Round | None, judge: Judge
    ) -> Varied:
        """Inputs of the ``wanted`` family (its name, or "next" for one not had yet); the Task's own
        where none applies. ``earlier`` is the round before, for families that are made from it.
        """
        key = str(case)
        given, skipped = self.given.setdefault(key, set()), self.skipped.setdefault(key, {})
        names = self.order(nonce, case) if wanted == "next" else [f for f in FAMILIES if f == wanted]
        own: list[Any] | None = None
        if key not in self.looks:
            own = self.expectation.inputs(nonce, label, case)
            self.looks[key] = [look(tensor, self.source) for tensor in leaves(own)]
        if earlier is not None and (earlier.case != case or earlier.family in EXTREME):
            earlier = None
        for family in names:
            if family in skipped or (wanted == "next" and family in given):
                continue
            if family in VALUES or earlier is None:
                values, origin = own if own is not None else self.expectation.inputs(nonce, label, case), ""
                own = None
            else:
                values, origin = earlier.inputs, earlier.values
            before = earlier.eager if earlier is not None and family in RELATED else None
            problem, eager = self._turn(family, values, key, derive(nonce, f"{family}:{label}"), seed, before, judge)
            if not problem:
                given.add(family)
                return Varied(values, family, eager, family if family in VALUES else origin)
            skipped[family] = problem
            earlier = earlier if family in VALUES else None
        return Varied(own if own is not None else self.expectation.inputs(nonce, label, case))

    def _turn(
        self, family: Family, values: list[Any], key: str, seed: int, draw: int, before: Result | None, judge: Judge
    ) -> tuple[str, Result | None]:
        """Turn ``values`` into the family in place: why not, or nothing and the reference's answer. ``before``: its
        answer to the values as they are, where that is known."""
        tensors, looks = leaves(values), self.looks[key]
        if family == "probe":
            return self._probe(values, key, seed, draw, before, judge)
        if family in VALUES and not change(family, tensors, looks, seed):
            return "no input takes other values", None
        if family == "permuted" and not permute(tensors, looks, seed):
            return "no input may be reordered", None
        return self._answer(values, key, draw)

    def _answer(self, values: list[Any], key: str, draw: int) -> tuple[str, Result | None]:
        """The reference's answer, or why it is of no use."""
        if key not in self.specials:
            self.specials[key] = _specials(
                self.expectation.eager(self.expectation.inputs(b"plain", "0", _case(key)), 0)
            )
        try:
            answer = self.expectation.eager(values, draw)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            return f"the reference raises {type(error).__name__} on it", None
        nan, infinite = _specials(answer)
        if (nan and not self.specials[key][0]) or (infinite and not self.specials[key][1]):
            return "the reference gives NaN or infinity on it", None
        return "", answer

    def _probe(
        self, values: list[Any], key: str, seed: int, draw: int, before: Result | None, judge: Judge
    ) -> tuple[str, Result | None]:
        """Change a few elements of the inputs, so far that the outputs show it."""
        tensors, looks, start = leaves(values), self.looks[key], self.magnitudes.get(key, MAGNITUDES[0])
        if before is None:
            before = self.expectation.eager(values, draw)
        most = LARGEST_HALF if any(tensor.dtype == torch.float16 for tensor in tensors) else MAGNITUDES[-1]
        found: tuple[str, Result | None] = ("no input may change", None)
        for magnitude in [m for m in MAGNITUDES if start <= m <= most]:
            if not plant(tensors, looks, seed, magnitude, others=found[1] is None):
                return found
            now = self._answer(values, key, draw)
            if now[1] is None:
                if found[1] is None:
                    return now
                plant(tensors, looks, seed, -magnitude, others=False)
                return self._answer(values, key, draw)
            self.magnitudes[key], found = magnitude, now
            if shows(before, now[1], judge, key):
                break
        return found


def _case(key: str) -> str | None:
    return None if key == "None" else key


def _specials(answer: Result) -> tuple[bool, bool]:
    floats = [t for t in layout.leaves(answer[0]) if t.is_floating_point()]
    return any(bool(t.isnan().any()) for t in floats), any(bool(t.isinf().any()) for t in floats)


def shows(before: Result, after: Result, judge: Judge, key: str) -> bool:
    """Whether an output has moved by much more than its error budget."""
    for one, two in zip(layout.leaves(before[0]), layout.leaves(after[0]), strict=False):
        if one.shape != two.shape:
            return True
        moved = compare.distance(two, one)
        limit = max((b.relative for (where, _), b in judge.budgets.items() if where == key), default=1e-5)
        if moved.relative > SHOWS * limit:
            return True
    return False
