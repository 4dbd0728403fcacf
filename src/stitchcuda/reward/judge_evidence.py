"""What was measured of a Program, as numbered items that the Judge's reasons must cite.

Made of numbers and of words of our own: what a program can put into a message, a kernel's name or a quoted line does
not come through, nor what was said about it by someone who had read it. No mark is shown: a judge that has seen one
repeats it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from stitchcuda.evaluation.integrity.rules import RULES
from stitchcuda.profiling.diagnosis import short
from stitchcuda.profiling.families import family
from stitchcuda.profiling.model import KernelTime, Profile
from stitchcuda.profiling.ncu import function_name
from stitchcuda.reward.compliance import broken_contracts, moved
from stitchcuda.reward.engineering import TECHNIQUES, headroom, ran
from stitchcuda.reward.judge_names import Names
from stitchcuda.reward.model import Skill
from stitchcuda.reward.observed import PLAIN, Observed

KERNELS = 12
"""So many kernels of a profile are shown."""


@dataclass(frozen=True)
class Item:
    """One thing that was measured; ``id`` is E1, E2, ... in the order of measuring, whatever order it is shown in."""

    id: str
    text: str


def items(observed: Observed, skill: Skill, names: Names) -> list[Item]:
    """All items. ``names`` are those of the Program's view, so that its kernels can be found there."""
    said = [*_measured(observed), *_honesty(observed), *_profiles(observed, names), *_code(observed, names)]
    if observed.step is not None:
        said += _step(observed)
    if skill == "improve":
        said += _improved(observed)
    return [Item(f"E{number}", text) for number, text in enumerate(said, start=1)]


def _measured(observed: Observed) -> list[str]:
    found = observed.evaluation
    said = [f"status {found.status} in the {found.tier} tier, precision class {found.precision}"]
    if (checks := found.correctness) is not None:
        nearest = max((o.relative_norm / o.budget for o in checks.outputs if o.budget > 0), default=None)
        error = f", largest error {nearest:.0%} of what is allowed" if nearest is not None else ""
        said.append(f"outputs of {checks.calls_checked} calls with fresh inputs were compared{error}")
    program = found.timings.get("program")
    if program is not None:
        others = "; ".join(
            f"{name} {_ms(time.median)} ({found.speedup[name]:.2f}x)"
            for name, time in sorted(found.timings.items())
            if name != "program" and name in found.speedup
        )
        said.append(f"{_ms(program.median)} a call{f'; stock: {others}' if others else ''}")
    if "over_best" in found.speedup:
        said.append(f"{found.speedup['over_best']:.2f}x the best stock option of the precision class")
    if found.sol is not None and found.sol.binds != "unknown":
        gained = ""
        over = found.speedup.get("over_best", 0.0)
        if program is not None and math.isfinite(over) and over > 0:
            share = headroom(over * program.median, program.median, found.sol.bound_seconds)
            gained = f"; {share:.0%} of the headroom over the best stock option gained"
        said.append(f"{found.sol.fraction:.1%} of speed of light, bound by {found.sol.binds}{gained}")
    else:
        said.append("how near the hardware's bound it runs is not known")
    return said


def _honesty(observed: Observed) -> list[str]:
    found = observed.evaluation
    said = []
    if (census := found.census) is not None:
        said.append(
            f"of the device time {census.own:.1%} is in its own kernels, {census.library:.1%} in vendor libraries, "
            f"{census.framework:.1%} in the framework"
        )
    else:
        said.append("what ran was not seen: no census was taken")
    for severity, verb in (("reject", "rejected"), ("flag", "flagged")):
        for rule in sorted({f.rule for f in found.findings if f.severity == severity}):
            meaning = f": {RULES[rule].says}" if rule in RULES else ""
            plain = severity == "flag" and rule in PLAIN
            said.append(f"{'noted, and no doubt of its honesty:' if plain else verb} {_word(rule)}{meaning}")
    if not found.findings:
        said.append("no integrity check found anything")
    said += [f"the task is marked {_word(label)}" for label in found.labels]
    return said


def _profiles(observed: Observed, names: Names) -> list[str]:
    said = []
    if observed.reference is not None:
        said += _profile("the reference", observed.reference, names, known=None)
    if observed.profile is not None:
        known = {short(k.name) for k in observed.reference.kernels} if observed.reference else set()
        said += _profile("the program", observed.profile, names, known=known)
    else:
        said.append("the program was not profiled")
    if (coverage := observed.coverage) is not None:
        said.append(
            f"own kernels took over {coverage.share:.0%} of the reference's device time; "
            f"{coverage.launches_before} launches became {coverage.launches_after}"
        )
        said += [
            f"operator {_word(o.name)} of the reference ({o.share:.0%} of its device time): {o.covered:.0%} taken over"
            for o in coverage.dominant
        ]
    if host := observed.host_work:
        said.append(host)
    return said


def _profile(what: str, profile: Profile, names: Names, known: set[str] | None) -> list[str]:
    line = profile.timeline
    said = [
        f"{what}, profiled: {_ms(line.wall_seconds)} a call, {_ms(line.busy_seconds)} busy, "
        f"{_ms(line.gap_seconds)} idle, {_ms(line.copy_seconds)} in copies, {line.launches} launches, "
        f"{line.graph_launches} graph launches; {profile.bottleneck.replace('_', ' ')}"
    ]
    rows = "; ".join(
        f"{kernel.share:.0%} {_kernel(kernel, names, known)} ({kernel.calls} a call)"
        for kernel in profile.kernels[:KERNELS]
        if kernel.share >= 0.002
    )
    return [*said, f"{what}, by falling time: {rows}"]


def _kernel(kernel: KernelTime, names: Names, known: set[str] | None) -> str:
    """A kernel's name where nobody who is judged chose it; else whose it is, and its name in the program's text."""
    if known is None:
        return f"{kernel.origin} {_word(kernel.operator or short(kernel.name))}"
    if kernel.origin != "own" and short(kernel.name) in known:
        return f"{kernel.origin} {_word(short(kernel.name))}, as in the reference"
    if kernel.origin == "own":
        seen = names.of(function_name(kernel.name))
        return f"own kernel {seen}" if seen is not None else "own kernel"
    return f"{kernel.origin} kernel of kind {family(kernel.name, kernel.operator)}, not in the reference"


def _code(observed: Observed, names: Names) -> list[str]:
    said = []
    for kernel in ran(observed)[:KERNELS]:
        shown = [t.replace("_", " ") for t in TECHNIQUES if kernel.shows(t)]
        if kernel.shared_bytes or any(space.startswith("shared") for space in kernel.accesses):
            shown.append("shared memory")
        name = names.of(kernel.function) or "an own kernel"
        said.append(
            f"machine code of {name}: {', '.join(shown) or 'none of the usual techniques'}; "
            f"{kernel.registers} registers, {kernel.local_accesses} of {kernel.instructions} instructions "
            "access local memory"
        )
    if observed.profile is not None:
        own = {short(k.name) for k in observed.profile.kernels if k.origin == "own"}
        for diagnosis in [d for d in observed.profile.diagnoses if short(d.kernel) in own][:3]:
            numbers = ", ".join(f"{_word(name)} {value:.4g}" for name, value in list(diagnosis.counters.items())[:6])
            said.append(
                f"counters of {names.of(function_name(diagnosis.kernel)) or 'an own kernel'}: "
                f"{diagnosis.cause.replace('_', ' ')}, could be {diagnosis.kernel_gain:.2f}x as fast ({numbers})"
            )
    return said


def _step(observed: Observed) -> list[str]:
    step = observed.step
    assert step is not None
    operators = ", ".join(map(_word, step.operators[:12]))
    said = [f"the step asked for own kernels for: {operators}; predicted gain {step.predicted_gain:.2f}x"]
    if re.search(r"\bcuda.?graph", step.host, re.I):
        said.append("the step asked for a CUDA graph")
    manifest = observed.program.manifest if observed.program is not None else None
    if manifest is not None:
        broken = len(broken_contracts(step, manifest))
        said.append(f"{broken} of {len(step.inputs) + len(step.outputs)} tensor contracts of the step are not kept")
    return said


def _improved(observed: Observed) -> list[str]:
    said = []
    previous, program = observed.previous, observed.evaluation.timings.get("program")
    if previous is None:
        said.append("what it was to improve was not measured")
    elif not previous.passed:
        said.append(f"the program before was {previous.status}")
    elif program is not None and (before := previous.timings.get("program")) is not None and program.median > 0:
        said.append(f"{before.median / program.median:.2f}x as fast as the program before")
    if observed.before is not None and observed.profile is not None:
        what, gone = moved(observed.before, observed.profile, observed.feedback)
        said.append(
            f"bottleneck that the feedback named, {_word(what.partition(':')[0])}: {gone:+.0%} of its time gone"
        )
    return said


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _word(text: str) -> str:
    """A name of ours, of an operator or of a counter, as one line of plain characters."""
    return re.sub(r"[^\w:.<>,&*()\- ]", "", text.replace("_", " " if "::" not in text else "_"), flags=re.A)[
        :80
    ].strip()
