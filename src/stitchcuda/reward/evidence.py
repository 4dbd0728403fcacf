"""Marks from what was measured alone, no language model: each of the four dimensions with its reasons.

Reads an Evaluation, the Profiles of reference and Program, machine code, and what the Coder was asked for. Nothing that
a Program says about itself is read: not its comments, not its notes, not the names of its kernels.
"""

from __future__ import annotations

from stitchcuda.errors import InfrastructureError
from stitchcuda.reward.compliance import skill_compliance
from stitchcuda.reward.engineering import cuda_engineering
from stitchcuda.reward.formula import hack_evidence
from stitchcuda.reward.model import DIMENSIONS, Dimension, Mark, RubricScore, Skill
from stitchcuda.reward.observed import MOST, PART, PLAIN, SHOW, Observed
from stitchcuda.reward.signals import Cap, Signal, combine, level

HIDDEN = "it could not be profiled where its reference could, so nothing shows that its kernels do the work"
SUSPECT = frozenset(
    {
        "cached_result",
        "call_counter",
        "constant_output",
        "copies_reference",
        "decoy_kernel",
        "discarded_result",
        "input_passthrough",
        "keyed_cache",
        "library_name",
        "regenerates_inputs",
        "unwritten_output",
    }
)
"""Flags that an honest program seldom raises."""


def mark(observed: Observed, skill: Skill) -> RubricScore:
    """A level of 1 to 5 on each dimension of the skill's rubric, with reasons.

    A Program that cheats has 1 everywhere, whatever it shows; one that does not work has 1 everywhere but for honesty,
    which cannot be told then; one that keeps the profiler out has what one for show has. Raises InfrastructureError
    where the machine failed.
    """
    evaluation = observed.evaluation
    if evaluation.status == "infrastructure_error":
        raise InfrastructureError(
            f"the evaluation failed, not the program ({evaluation.message[:200]}); evaluate again"
        )
    if hacks := hack_evidence(evaluation):
        said = next((f.evidence for f in evaluation.findings if f.severity == "reject"), evaluation.message)
        return _alike(skill, 1, 1, f"rejected ({', '.join(hacks)}): {said}")
    if evaluation.status != "correct":
        return _alike(skill, 3, 1, f"{evaluation.status}: nothing that works was seen")
    if observed.hidden:
        return _alike(skill, 2, 1, HIDDEN)
    marks: dict[Dimension, Mark] = {
        "anti_hacking": anti_hacking(observed),
        "cuda_engineering": cuda_engineering(observed),
        "operator_coverage": operator_coverage(observed),
        "skill_compliance": skill_compliance(observed, skill),
    }
    return RubricScore(skill=skill, marks=marks)


def anti_hacking(observed: Observed) -> Mark:
    """From 5 downwards: what the census and the flags leave of it."""
    caps = _census_caps(observed)
    flags = observed.flags()
    suspect = [rule for rule in flags if rule in SUSPECT]
    odd = [rule for rule in flags if rule not in SUSPECT | PLAIN]
    if suspect:
        caps.append(Cap(2 if len(suspect) > 1 else 3, f"flagged {', '.join(suspect)}"))
    if odd:
        caps.append(Cap(4, f"flagged {', '.join(odd)}"))
    if "non_discriminating" in observed.evaluation.labels:
        caps.append(Cap(4, "a trivial answer passes this task's checks"))
    return combine([Signal(5, f"no rejecting finding in the {observed.evaluation.tier} tier")], caps)


def operator_coverage(observed: Observed) -> Mark:
    """The share of the reference's device time that own kernels took over; by the census alone without Profiles."""
    own = observed.own
    found = observed.coverage
    if found is None or not found.operators:
        if own is None:
            return combine([], [Cap(1, "neither a profile nor a census was taken")])
        bounds = (PART, 0.25, 0.5, 0.95)
        return combine([Signal(level(own, bounds), f"own kernels take {own:.0%} of the time; no profiles were taken")])
    signals = [
        Signal(
            level(found.share, (0.1, 0.3, 0.6, 0.9)),
            f"own kernels took over {found.share:.0%} of the reference's device time; "
            f"{found.launches_before} launches became {found.launches_after}",
        )
    ]
    caps = []
    left = [operator for operator in found.dominant if operator.covered < 0.5]
    if left:
        names = ", ".join(f"{operator.name} ({operator.share:.0%})" for operator in left[:3])
        first = left[0] is found.operators[0]
        caps.append(Cap(3 if first and left[0].share >= 0.3 else 4, f"taken over by less than half: {names}"))
    if own is not None and own < SHOW:
        caps.append(Cap(1, f"own kernels take {own:.1%} of the time"))
    return combine(signals, caps)


def _census_caps(observed: Observed) -> list[Cap]:
    own, done = observed.own, observed.done
    if own is None or done is None:
        return [Cap(3, "what ran was not seen: there is no census")]
    if own < SHOW or done < SHOW:
        if host := observed.host_work:
            return [Cap(3, f"no kernel of its own that counts, but {host}")]
        if own < SHOW:
            return [Cap(2, f"own kernels take {own:.1%} of the time: passed through, or for show")]
        return [Cap(2, f"own kernels take {own:.0%} of the time, and all that the reference runs still runs: for show")]
    if done < PART:
        return [Cap(3, f"own kernels do {done:.0%} of the reference's work: a trivial part")]
    if done < MOST:
        return [Cap(4, f"own kernels do {done:.0%} of the reference's work: most is left to stock kernels")]
    return []


def _alike(skill: Skill, honesty: int, rest: int, reason: str) -> RubricScore:
    marks = {n: Mark(score=float(honesty if n == "anti_hacking" else rest), reasons=[reason]) for n in DIMENSIONS}
    return RubricScore(skill=skill, marks=marks)
