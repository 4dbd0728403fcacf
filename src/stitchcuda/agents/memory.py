"""What earlier attempts teach: steps that gave nothing, what was tried beside a step, and how predictions came out.

Pure functions of attempts; how they are told is in the prompts.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.plan import Idea, Step
from stitchcuda.agents.roles import Attempt

WORTH = 1.02
"""Gain from which a step gave something; less drowns in the noise of measuring."""

_KINDS: tuple[tuple[str, str], ...] = (
    ("graph capture", r"cuda ?graph|captur|graph replay"),
    ("narrower products", r"tensor core|split product|3x(?:tf32|fp16)|bf16|fp16|tf32"),
    ("layout", r"channels.last|layout|transpos"),
    ("packed weights", r"\bpack|\bfold|merged? (?:weights|products)|prepare\b"),
    ("vectors", r"vectori[sz]|simd|float4|16-byte|polynomial"),
    ("tiling", r"\btil(?:e|ing)|\bblock(?:ing|ed)"),
    ("overlap", r"overlap|stream|pinned"),
    ("threads", r"thread|openmp|parallel region"),
    ("in place", r"in.place|workspace"),
    ("fusion", r"\bfus|\bone (?:pass|kernel|row|loop)|single (?:pass|kernel|loop)|epilogue"),
)
"""Kinds of work by the words of a step, the more special first."""


class Futile(BaseModel):
    """Attempts at alike steps, none of which gained anything."""

    model_config = ConfigDict(frozen=True)

    title: str
    kind: str = Field(description="such as 'fusion'; '' where the words name none")
    operators: list[str]
    numbers: list[int] = Field(description="of the programs, and of refused answers")
    best: float | None = Field(description="the best gain over what it started from; None: refused each time")
    reason: str = Field(default="", description="why it was refused, or the last diagnosis")


class Outcome(BaseModel):
    """A step's predicted gain beside what its best program gave."""

    model_config = ConfigDict(frozen=True)

    step: str
    number: int
    predicted: float
    measured: float


def kind_of(step: Step) -> str:
    """What kind of work a step is, by its title, else by its fusion and host; '' where no word tells."""
    for words in (step.title, f"{step.fusion} {step.host}"):
        for kind, pattern in _KINDS:
            if re.search(pattern, words, re.IGNORECASE):
                return kind
    return ""


def alike(one: Step, other: Step) -> bool:
    """The same text, or the same kind of work on the same operators."""
    if _plain(one.title) == _plain(other.title):
        return True
    kind, operators = kind_of(one), _operators(one)
    return bool(kind) and bool(operators) and kind == kind_of(other) and operators == _operators(other)


def futile(attempts: Sequence[Attempt]) -> list[Futile]:
    """Steps that were written and measured, or refused, without gain; those that only failed to work refute nothing."""
    groups: list[list[Attempt]] = []
    for attempt in attempts:
        step = attempt.planned
        if step is None or attempt.status not in ("correct", "refused"):
            continue
        group = next((g for g in groups if g[0].planned is not None and alike(g[0].planned, step)), None)
        if group is None:
            groups.append([attempt])
        else:
            group.append(attempt)
    found = []
    for group in groups:
        gains = [attempt.gain for attempt in group if attempt.gain is not None]
        step = group[0].planned
        if step is None or (gains and max(gains) >= WORTH):
            continue
        if not gains and any(attempt.status == "correct" for attempt in group):
            continue
        found.append(
            Futile(
                title=step.title,
                kind=kind_of(step),
                operators=step.operators,
                numbers=[attempt.number for attempt in group],
                best=max(gains, default=None),
                reason=group[-1].diagnosis,
            )
        )
    return found


def outcomes(attempts: Sequence[Attempt]) -> list[Outcome]:
    """Of every step whose gain was predicted and measured, its best program; in the order in which steps came."""
    best: dict[tuple[str, str], Outcome] = {}
    for attempt in attempts:
        step = attempt.planned
        if step is None or step.recipes or step.predicted_gain <= 1 or attempt.gain is None:
            continue
        key = attempt.idea, step.title
        if key not in best or attempt.gain > best[key].measured:
            best[key] = Outcome(
                step=step.title, number=attempt.number, predicted=step.predicted_gain, measured=attempt.gain
            )
    return list(best.values())


def calibration(found: Sequence[Outcome]) -> float | None:
    """How many times more was predicted than came, in the median; None for none."""
    return statistics.median(one.predicted / one.measured for one in found if one.measured > 0) if found else None


def measured(attempts: Sequence[Attempt], idea: Idea, step: Step) -> float | None:
    """The best gain that this step of this idea has had so far."""
    gains = [a.gain for a in attempts if a.idea == idea.name and a.step == step.title and a.gain is not None]
    return max(gains, default=None)


def beside(attempts: Sequence[Attempt], idea: Idea, step: Step, *, limit: int, besides: int) -> list[Attempt]:
    """What was tried on the idea or on alike steps, the latest ``limit``, and of ``besides`` other ideas the fastest
    program each; in the order of their numbers."""
    near = [a for a in attempts if a.idea == idea.name or (a.planned is not None and alike(a.planned, step))]
    best: dict[str, Attempt] = {}
    for attempt in attempts:
        if attempt in near or attempt.over_best is None:
            continue
        known = best.get(attempt.idea)
        if known is None or attempt.over_best > (known.over_best or 0.0):
            best[attempt.idea] = attempt
    fastest = sorted(best.values(), key=lambda a: -(a.over_best or 0.0))[:besides]
    return sorted([*near[-limit:], *fastest], key=lambda a: a.number)


def _plain(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", title.lower()).strip()


def _operators(step: Step) -> frozenset[str]:
    return frozenset(re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("aten::")) for name in step.operators)
