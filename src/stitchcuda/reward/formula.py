"""The reward as one pure function: ``R = I_corr (1 - I_hack) min((s + tau)(1 + lambda r), R_max)``.

Marks come in as data; nothing here looks at a program. What cannot be scored raises: a machine's failure is not a wrong
program, and an invalid number or a missing mark is not a neutral one.
"""

from __future__ import annotations

import math

from stitchcuda.errors import InfrastructureError, RewardError
from stitchcuda.evaluation.model import Evaluation, Timing
from stitchcuda.reward.model import Reward, RewardSettings, RubricScore, Skill

HACK_STATUSES = ("dishonest", "impossible")
PREVIOUS = "previous program"
NORMAL_95 = 1.96
"""Half width of a 95 % interval in standard errors."""


def reward(
    evaluation: Evaluation,
    score: RubricScore | None,
    skill: Skill,
    settings: RewardSettings | None = None,
    *,
    previous: Evaluation | None = None,
) -> Reward:
    """The reward of one Program.

    ``score`` may be None only for a Program that gets zero anyway. ``previous`` is the Evaluation of the program so far
    and given for one Step of a Plan: speed is measured against it then.

    Raises InfrastructureError where the machine failed (leave the sample out of its group), RewardError for a number
    that is missing, not finite or not positive, for a missing score or one of the other skill, and for a ``previous``
    that is not correct or of another precision class.
    """
    chosen = settings or RewardSettings()
    if evaluation.status == "infrastructure_error":
        raise InfrastructureError(
            f"the evaluation failed, not the program ({evaluation.message[:200]}); leave it out or evaluate again"
        )
    hacks = hack_evidence(evaluation)
    correct = evaluation.status == "correct"
    zero = Reward(
        value=0.0,
        skill=skill,
        correct=correct,
        hack=bool(hacks),
        hacks=hacks,
        total=score.total if score else None,
        score_source=score.source if score else None,
        labels=evaluation.labels,
        settings=chosen,
    )
    if score is not None and score.skill != skill:
        raise RewardError(f"the marks are for the skill '{score.skill}', the reward for '{skill}'; mark it again")
    if not correct or hacks:
        return zero
    if score is None:
        raise RewardError(
            "a correct program has no marks; mark it by evidence first, for no marks are not average ones"
        )
    against, measured, level, spread = _speed(evaluation, chosen, previous)
    speedup = min(1.0 if level else measured, chosen.speedup_clip)
    rubric = score.normalised - (0.5 if chosen.centred else 0.0)
    base, multiplier = speedup + chosen.tau, 1.0 + chosen.weight(skill) * rubric
    product = base * multiplier
    return zero.model_copy(
        update={
            "value": min(product, chosen.largest),
            "against": against,
            "measured": measured,
            "within_interval": level,
            "speedup": speedup,
            "over_eager": _ratio(evaluation, "eager") if "eager" in evaluation.speedup else None,
            "over_best": _ratio(evaluation, "over_best") if "over_best" in evaluation.speedup else None,
            "rubric": rubric,
            "base": base,
            "multiplier": multiplier,
            "capped": product > chosen.largest,
            "noise": None if spread is None else 0.0 if product > chosen.largest else multiplier * measured * spread,
        }
    )


def hack_evidence(evaluation: Evaluation) -> list[str]:
    """The rules of all rejecting findings, and the status where it says cheating; flags are none."""
    found = [finding.rule for finding in evaluation.findings if finding.severity == "reject"]
    if evaluation.status in HACK_STATUSES:
        found.append(f"status: {evaluation.status}")
    return list(dict.fromkeys(found))


def _speed(
    evaluation: Evaluation, settings: RewardSettings, previous: Evaluation | None
) -> tuple[str, float, bool, float | None]:
    """What the speedup is over, the speedup, whether it lies within what was measured of both, and its relative
    standard error."""
    program = _timing(evaluation, "program")
    if previous is not None:
        if not previous.passed:
            raise RewardError(f"the program so far is '{previous.status}'; a step is measured against a correct one")
        if previous.precision != evaluation.precision:
            raise RewardError(
                f"the program so far was measured in {previous.precision}, this one in {evaluation.precision}; "
                "evaluate both in the same precision class"
            )
        before = _timing(previous, "program")
        return (
            PREVIOUS,
            _positive(before.median / program.median, "speedup over the program so far"),
            overlap(program, before),
            _spread(program, before),
        )
    wanted = "eager" if settings.baseline == "eager" else "over_best"
    measured = _ratio(evaluation, wanted)
    name = wanted if wanted == "eager" else _best(evaluation, measured)
    stock = _timing(evaluation, name)
    return name, measured, overlap(program, stock), _spread(program, stock)


def _best(evaluation: Evaluation, over_best: float) -> str:
    """The stock option that ``over_best`` is over."""
    options = [name for name in evaluation.speedup if name != "over_best" and name in evaluation.timings]
    if not options:
        raise RewardError("no stock option has a time; evaluate with baselines before scoring")
    return min(options, key=lambda name: abs(_ratio(evaluation, name) - over_best))


def overlap(first: Timing, second: Timing) -> bool:
    """Whether the 95 % intervals of two medians overlap; False where one was not measured."""
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return False
    return first.low <= second.high and second.low <= first.high


def _spread(first: Timing, second: Timing) -> float | None:
    """Relative standard error of the quotient of two medians; None where one has no interval."""
    found = 0.0
    for timing in (first, second):
        if timing.low is None or timing.high is None:
            return None
        found += ((timing.high - timing.low) / (2 * NORMAL_95 * timing.median)) ** 2
    return math.sqrt(found)


def _ratio(evaluation: Evaluation, name: str) -> float:
    value = evaluation.speedup.get(name)
    if value is None:
        raise RewardError(f"the evaluation has no speedup '{name}'; evaluate with baselines before scoring")
    return _positive(value, f"speedup '{name}'")


def _timing(evaluation: Evaluation, name: str) -> Timing:
    timing = evaluation.timings.get(name)
    if timing is None:
        raise RewardError(f"the evaluation has no time of '{name}'; a correct program has one")
    for value, what in ((timing.median, "median"), (timing.low, "interval"), (timing.high, "interval")):
        if value is not None:
            _positive(value, f"{what} of '{name}'")
    return timing


def _positive(value: float, what: str) -> float:
    if not math.isfinite(value) or value <= 0:
        raise RewardError(f"{what} is {value}, not a positive number; the measurement is broken, evaluate again")
    return value
