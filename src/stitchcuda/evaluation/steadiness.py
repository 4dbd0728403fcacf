"""How far the times of an Evaluation are to be believed: what disturbed the machine, and within what the speedup lies.
Pure functions of data; for whoever reads an Evaluation, never for its verdict.
"""

from __future__ import annotations

from stitchcuda.evaluation.model import Evaluation, Timing

WIDE = 0.05
"""Half of the 95 % interval of a median, as a share of it, from which the median alone says too little."""
SPREAD = 1.5
"""Ratio of slow calls (p90) to fast ones (p10) from which something else ran beside them."""
DISTURBED = {"unsteady_clocks": "clocks were not steady", "slows_others": "other programs ran much slower beside it"}
"""Findings of an Evaluation that say so, in words."""


def doubt(evaluation: Evaluation) -> str:
    """Why the times of a correct Program are doubtful, and within what the speedup lies; '' where they are steady."""
    program = evaluation.timings.get("program")
    if program is None or not evaluation.passed:
        return ""
    said = _disturbances(evaluation)
    for name, timing in (("its", program), *_opponent(evaluation)):
        whose = "its median" if name == "its" else f"that of {name}"
        if timing.low is not None and timing.high is not None and _half(timing) > WIDE:
            said.append(f"{whose} is known to ±{_half(timing):.0%} only")
        if timing.p10 > 0 and timing.p90 > SPREAD * timing.p10:
            said.append(
                f"{'its' if name == 'its' else name} slow calls take {timing.p90 / timing.p10:.1f}x its fast ones"
            )
    if not said:
        return ""
    within = speedup_interval(evaluation)
    bounds = f"; over the best stock option {within[0]:.2f}x to {within[1]:.2f}x" if within else ""
    return f"{', '.join(said)}{bounds}"


def speedup_interval(evaluation: Evaluation) -> tuple[float, float] | None:
    """Between what the speedup over the best stock option lies, by the 95 % intervals of both medians; None: unknown.

    Both ends are taken at once, so that it is wider than 95 % of the truth: it warns, and proves nothing.
    """
    program, other = evaluation.timings.get("program"), next(iter(_opponent(evaluation)), None)
    if program is None or other is None:
        return None
    ours, theirs = _interval(program), _interval(other[1])
    if ours is None or theirs is None or ours[0] <= 0:
        return None
    return theirs[0] / ours[1], theirs[1] / ours[0]


def _disturbances(evaluation: Evaluation) -> list[str]:
    said = [
        f"{DISTURBED[finding.rule]} ({finding.evidence})"
        if finding.rule == "unsteady_clocks"
        else DISTURBED[finding.rule]
        for finding in evaluation.findings
        if finding.rule in DISTURBED
    ]
    held = evaluation.provenance.get("clocks_held_down")
    if held and not any("clocks" in words for words in said):
        said.append(f"clocks were held down ({held})")
    return said


def _opponent(evaluation: Evaluation) -> list[tuple[str, Timing]]:
    """The stock option that ``over_best`` is about."""
    best = evaluation.speedup.get("over_best")
    names = [name for name, ratio in evaluation.speedup.items() if name != "over_best" and ratio == best]
    return [(name, evaluation.timings[name]) for name in names[:1] if name in evaluation.timings]


def _interval(timing: Timing) -> tuple[float, float] | None:
    return (timing.low, timing.high) if timing.low is not None and timing.high is not None else None


def _half(timing: Timing) -> float:
    low, high = _interval(timing) or (0.0, 0.0)
    return (high - low) / 2 / timing.median if timing.median > 0 else 0.0
