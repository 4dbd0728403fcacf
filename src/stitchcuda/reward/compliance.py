"""The mark for skill compliance: whether a Program does what the Coder was asked for.

From scratch: own kernels for the step's operators, within its contracts. Improving: the bottleneck that the Feedback
named has moved, and the call is faster by more than was measured as noise.
"""

from __future__ import annotations

import math
import re
from typing import get_args

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.plan import Step, TensorContract
from stitchcuda.profiling.diagnosis import short
from stitchcuda.profiling.model import Bottleneck, Profile
from stitchcuda.program.model import Manifest
from stitchcuda.reward.coverage import Coverage, cover
from stitchcuda.reward.formula import overlap
from stitchcuda.reward.model import Mark, Skill
from stitchcuda.reward.observed import MOST, PART, PLAIN, SHOW, Observed
from stitchcuda.reward.signals import Cap, Signal, combine, level

MOVED = (0.0, 0.1, 0.25, 0.5)
"""Shares of the bottleneck's time that must be gone for levels 2 to 5."""
FASTER = (0.98, 1.02, 1.05, 1.2)
"""Speedups over the program before for levels 2 to 5."""
KEPT = 0.5
"""An improvement whose own kernels do less than this share of what they did has given work back."""
DONE = (SHOW, SHOW, MOST, 0.9)
"""Shares of the reference's work that own kernels must do for levels 2 to 5, where no step was asked for: 2 is left to
what has none that counts and saves work on the host's side."""
LIMITS = {
    "compiler_wrap": 2,
    "copies_reference": 2,
    "foreign_library": 3,
    "silent_fallback": 3,
    "state_update": 3,
    "unlaunched_kernel": 4,
}
"""Flags that say the request was not, or not wholly, met: by rule, the most that is left."""


def skill_compliance(observed: Observed, skill: Skill) -> Mark:
    """By the skill's own question; a correct Program is presumed."""
    caps = [Cap(LIMITS[rule], f"flagged {rule}") for rule in observed.flags() if rule in LIMITS]
    signals = _scratch(observed) if skill == "scratch" else _improve(observed)
    if observed.step is not None:
        more, bounds = _step(observed, observed.step)
        signals += more
        caps += bounds
    if skill == "improve":
        if (back := _went_back(observed)) is not None:
            caps.append(back)
        if observed.before is None and observed.previous is None:
            caps.append(Cap(3, "what it was to improve was not measured"))
        if observed.previous is not None:
            earlier = {finding.rule for finding in observed.previous.findings}
            if new := [rule for rule in observed.flags() if rule not in earlier | PLAIN]:
                caps.append(Cap(4, f"newly flagged {', '.join(new)}"))
    return combine(signals, caps, start=3)


def moved(before: Profile, after: Profile, feedback: Feedback | None = None, ratio: float = 0.0) -> tuple[str, float]:
    """What the Feedback named, and the share of its time that is gone; negative where it grew.

    Without a bottleneck's name in the Feedback it is that of the Profile. Launches, waits and host work are judged by
    the device's idle time, copies by their own, and everything on the device by how much less the device is busy,
    relative to the kernel that is named (the longest one otherwise): so renaming that kernel gains nothing. A profile
    is of one call: with ``ratio``, the speedup of the whole call over many (0: not known), at least that is gone from
    the kernel which the call has lost beyond all that the rest of it took.
    """
    named = _named(feedback) or before.bottleneck
    first, second = before.timeline, after.timeline
    if named in ("launch_bound", "sync_bound", "host_bound"):
        return f"{named}: idle time", _gone(first.gap_seconds, second.gap_seconds)
    if named == "copy_bound":
        return f"{named}: copies", _gone(first.copy_seconds, second.copy_seconds)
    work = [kernel for kernel in before.kernels if kernel.origin != "copy"]
    text = _text(feedback)
    kernel = next((k for k in work if short(k.name) in text or (k.operator and k.operator in text)), None)
    kernel = kernel or (work[0] if work else None)
    if kernel is None or kernel.seconds <= 0:
        return f"{named}: busy time", _gone(first.busy_seconds, second.busy_seconds)
    less = (first.busy_seconds - second.busy_seconds) / kernel.seconds
    if ratio > 0 and first.wall_seconds > 0:
        share = min(kernel.seconds / first.wall_seconds, 1.0)
        less = max(less, 1 - 1 / (ratio * share))
    return f"{named}: {short(kernel.name)[:60]}", max(min(less, 1.0), -1.0)


def broken_contracts(step: Step, manifest: Manifest) -> list[str]:
    """Contracts of a Step that no launcher's argument keeps, in words; by name where one has it, else by type."""
    arguments = [a for launcher in manifest.launchers for a in launcher.arguments if a.kind == "tensor"]
    broken = []
    for contract, roles in [(c, ("input", "inout")) for c in step.inputs] + [
        (c, ("output", "inout")) for c in step.outputs
    ]:
        same = [a for a in arguments if a.name == contract.name] or [a for a in arguments if a.role in roles]
        if not any(a.dtype == contract.dtype.removeprefix("torch.") and _layout(contract, a.layout) for a in same):
            broken.append(f"{contract.name} as {contract.dtype}, {contract.layout}")
    return broken


def _layout(contract: TensorContract, layout: str) -> bool:
    return layout == "any" or contract.layout not in ("contiguous", "channels_last") or contract.layout == layout


def _scratch(observed: Observed) -> list[Signal]:
    census, done = observed.evaluation.census, observed.done
    if census is None or done is None:
        return [Signal(2, "what ran was not seen, so neither were kernels of its own")]
    if min(done, census.own) < SHOW:
        host = observed.host_work
        return [Signal(2 if host else 1, host or "no kernel of its own that counts")]
    if _of_step(observed) is not None:
        return []
    return [Signal(level(done, DONE), f"own kernels do {done:.0%} of the reference's work")]


def _went_back(observed: Observed) -> Cap | None:
    """Stock kernels do now what own ones did, which is not what was asked for, however fast it is."""
    own, done = observed.own, observed.done
    if own is None or done is None:
        return None
    if observed.reference is not None and observed.before is not None:
        earlier = cover(observed.reference, observed.before).share
        if done < KEPT * earlier:
            return Cap(
                2, f"own kernels do {done:.0%} of the reference's work and did {earlier:.0%}: it went back to stock"
            )
    elif done < PART:
        limit = 2 if min(own, done) < SHOW and not observed.host_work else 3
        return Cap(limit, f"own kernels do {done:.1%} of the reference's work: it went back to stock kernels")
    return None


def _ratio(observed: Observed) -> float | None:
    """Speedup over the program before; None where one of them has no usable time."""
    previous, program = observed.previous, observed.evaluation.timings.get("program")
    earlier = previous.timings.get("program") if previous is not None and previous.passed else None
    if program is None or earlier is None or not program.median > 0 or not earlier.median > 0:
        return None
    return earlier.median / program.median


def _improve(observed: Observed) -> list[Signal]:
    """The anchors' words: both for the lowest and the highest level, one of both for those between."""
    signals, previous, ratio = list[Signal](), observed.previous, _ratio(observed)
    faster = ""
    if previous is not None and not previous.passed:
        signals.append(Signal(5, f"the program before was {previous.status}, this one is correct"))
    elif previous is not None and ratio is not None:
        if overlap(observed.evaluation.timings["program"], previous.timings["program"]):
            return [Signal(2, f"{ratio:.2f}x the program before, within what was measured as noise")]
        faster = f"{ratio:.2f}x as fast as the program before"
        signals.append(Signal(level(ratio, FASTER), faster))
    if observed.before is not None and observed.profile is not None:
        what, gone = moved(observed.before, observed.profile, observed.feedback, ratio or 0.0 if faster else 0.0)
        signals.append(Signal(level(gone, MOVED), f"named bottleneck, {what}: {gone:+.0%} of its time gone"))
    if len(signals) < 2:
        return signals
    first, second = sorted(signal.level for signal in signals)
    found = first if first == second else min(max(second, 2), 4)
    return [Signal(found, signal.reason) for signal in signals]


def _step(observed: Observed, step: Step) -> tuple[list[Signal], list[Cap]]:
    signals, caps = [], []
    if (share := _of_step(observed)) is not None:
        found = level(share, (0.1, 0.3, 0.6, 0.9))
        signals.append(Signal(found, f"{share:.0%} of the time of the step's operators taken over", weight=2))
    ratio = _ratio(observed)
    if step.predicted_gain > 1.02 and ratio is not None:
        reached = math.log(ratio) / math.log(step.predicted_gain)
        found = level(reached, (0.0, 0.25, 0.5, 0.9))
        signals.append(Signal(found, f"{ratio:.2f}x where {step.predicted_gain:.2f}x was predicted"))
    manifest = observed.program.manifest if observed.program is not None else None
    if manifest is not None and (broken := broken_contracts(step, manifest)):
        caps.append(Cap(3, f"no launcher keeps the contract of {'; '.join(broken[:3])}"))
    asks_graph = re.search(r"\bcuda.?graph", step.host, re.I) is not None
    if asks_graph and observed.profile is not None and observed.profile.timeline.graph_launches == 0:
        caps.append(Cap(3, "the step asks for a CUDA graph, and none was launched"))
    return signals, caps


def _of_step(observed: Observed) -> float | None:
    """Covered share of the operators that the Step names; None without a Step or where no Profile shows them."""
    if observed.step is None or observed.coverage is None or not observed.step.operators:
        return None
    return _covered(observed.coverage, observed.step.operators)


def _covered(coverage: Coverage, names: list[str]) -> float | None:
    """Covered share of the operators that a Step names; None where the Profile has none of them."""
    wanted = {_plain(name) for name in names}
    found = [operator for operator in coverage.operators if _plain(operator.name) in wanted]
    seconds = sum(operator.seconds for operator in found)
    return sum(operator.seconds * operator.covered for operator in found) / seconds if seconds > 0 else None


def _plain(name: str) -> str:
    return name.lower().rsplit("::", 1)[-1].rsplit(".", 1)[-1].strip("_")


def _text(feedback: Feedback | None) -> str:
    return f"{feedback.diagnosis} {feedback.evidence} {feedback.suggestion}" if feedback is not None else ""


def _named(feedback: Feedback | None) -> str:
    """The first bottleneck that the Feedback speaks of; '' where it names none."""
    text = _text(feedback).lower()
    places = {}
    for name in get_args(Bottleneck):
        if name != "unknown" and (match := re.search(name.replace("_", "[ _-]"), text)):
            places[name] = match.start()
    return min(places, key=places.__getitem__, default="")


def _gone(before: float, after: float) -> float:
    return max(min((before - after) / before, 1.0), -1.0) if before > 0 else 0.0
