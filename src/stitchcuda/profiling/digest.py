"""A Profile in a few hundred tokens for an agent: every number with its unit, the most telling first."""

from __future__ import annotations

import re
from typing import Literal

from stitchcuda.profiling.agreement import agreement
from stitchcuda.profiling.compare import Comparison, noticed
from stitchcuda.profiling.diagnosis import spelling
from stitchcuda.profiling.model import KernelDiagnosis, KernelTime, Profile
from stitchcuda.profiling.remedies import NOTHING, SPLIT, WORTH_NAMING
from stitchcuda.profiling.rules import milliseconds
from stitchcuda.profiling.table import IDLE_TOLD, SLOWED, loops_told, processor_told, short_name

KERNELS, PARTS, OPERATORS, DIAGNOSES, WHOLE, LOOPS = 4, 2, 3, 3, 2, 3
"""Most of each that are told; of the diagnoses, those of the largest gains with evidence and what to do."""
TELLING = 0.05
"""Shares below this are left out where there are larger ones."""
USUAL_WAITS = 2
"""Waits for the device that every recorded call has."""
LONGEST_NAME = 36
UNJUDGED = "Note: fusion, fewer launches or copies promise less than 2%; the kernels' own code is not judged by that"
"""In place of a suggestion where the rules have none: they see operators and their times, not code."""


def digest(profile: Profile, *, timed_seconds: float = 0.0, kind: Literal["cuda", "cpu"] = "cuda") -> str:
    """At most about 20 lines; what was not measured, or does not tell, is left out.

    ``timed_seconds``: the median call by the evaluation, where it is known, on a ``kind`` of device. A profile of
    other calls is said to be doubtful, and its predicted gains are left out.
    """
    agreed = agreement(profile, timed_seconds, kind)
    doubtful = agreed is not None and agreed.doubtful
    remark = (agreed.sentence or agreed.overhead) if agreed is not None else ""
    line = profile.timeline
    wall = line.wall_seconds
    label = profile.bottleneck + (f" ({profile.cause})" if profile.cause != "none" else "")
    parts = [
        f"Profile of the {profile.subject} by {f'{profile.source} {profile.version}'.strip()}, per call:",
        *([f"- {remark}"] if remark else []),
        f"- bottleneck: {label}. {profile.evidence}",
        f"- wall {milliseconds(wall)}, busy {milliseconds(line.busy_seconds)} ({_share(line.busy_seconds, wall)}),"
        f" idle {milliseconds(line.gap_seconds)}, {_counts(profile)}",
    ]
    told = sorted(line.idle_seconds.items(), key=lambda item: -item[1])
    if line.gap_seconds >= TELLING * wall:
        told = [(kind, seconds) for kind, seconds in told if seconds >= TELLING * line.gap_seconds > 0]
        if told:
            causes = ", ".join(f"{IDLE_TOLD[kind]} {milliseconds(seconds)}" for kind, seconds in told)
            parts.append(f"- while idle the host was {causes}")
    if line.copy_seconds > 0:
        pageable = f", {_share(line.pageable_seconds, line.copy_seconds)} pageable" if line.pageable_seconds > 0 else ""
        parts.append(f"- copies {milliseconds(line.copy_seconds)}{pageable}")
    parts += _path(profile)
    operators = [one for one in profile.operators[:OPERATORS] if one.share >= TELLING]
    if operators:
        each = ", ".join(f"{o.name} {milliseconds(o.seconds)} ({o.share:.0%})" for o in operators)
        parts.append(f"- device time by operator: {each}")
    if profile.processor is not None:
        parts.append(f"- processor: {processor_told(profile.processor)}")
    if profile.loops:
        parts.append(f"- loops: {loops_told(profile.loops, LOOPS)}")
    parts += _kernels(profile, gains=not doubtful)
    if profile.suggestion:
        first = without_gain(profile.suggestion) if doubtful else profile.suggestion
        parts.append(UNJUDGED if profile.suggestion == NOTHING else f"First: {first}")
    # What nsys says of every recording tells an agent nothing.
    remarks = [each for each in profile.remarks if not each.startswith("nsys says")]
    parts += [f"Note: {each}" for each in remarks[:2]]
    return "\n".join(parts) + "\n"


def _counts(profile: Profile) -> str:
    line = profile.timeline
    # Only the timeline of a device tells the sum over its operations.
    counts = [f"{line.launches} {'launches' if line.device_seconds > 0 else 'kernels or operators'}"]
    for number, what in (
        (line.graph_launches, "CUDA graphs"),
        (line.synchronisations if line.synchronisations > USUAL_WAITS else 0, "waits for the device"),
        (line.allocations, "allocations or frees"),
        (line.streams if line.streams > 1 else 0, "streams"),
    ):
        if number:
            counts.append(f"{number} {what}")
    if line.peak_bytes:
        counts.append(f"peak device memory {line.peak_bytes / 2**20:.0f} MiB")
    return ", ".join(counts)


def _path(profile: Profile) -> list[str]:
    """What of the host is on the critical path: the rest are the kernels below."""
    host = [p for p in profile.critical_path if p.where == "host" and p.share >= TELLING][:PARTS]
    if not host:
        return []
    slowed = f" (of a recorded call, {profile.slowed:.1f}x as long)" if profile.slowed >= SLOWED else ""
    told = ", ".join(f"{_name(p.what)} {milliseconds(p.seconds)} ({p.share:.0%})" for p in host)
    return [f"- host on the critical path{slowed}: {told}"]


def without_gain(suggestion: str) -> str:
    """A suggestion without the gain that is predicted for it."""
    return re.sub(r"\s*\((?:predicted )?\d[^()]*\)$", "", suggestion)


def _kernels(profile: Profile, *, gains: bool) -> list[str]:
    """The longest kernels, each with its diagnosis where it has one; then diagnosed ones that are not among them."""
    waiting = profile.diagnoses[:DIAGNOSES]
    said, told = [profile.suggestion], {}
    for number, one in enumerate(waiting):
        told[id(one)] = _diagnosis(one, said, whole=number < WHOLE, gains=gains)
        said.append(one.suggestion)
    parts = []
    rows = [kernel for kernel in profile.kernels[:KERNELS] if kernel.share >= TELLING] or profile.kernels[:1]
    for kernel in rows:
        found = next((d for d in waiting if spelling(d.kernel) == spelling(kernel.name)), None)
        waiting = [one for one in waiting if one is not found]
        parts.append(f"- {_row(kernel)}" + (f": {told[id(found)]}" if found is not None else ""))
    return parts + [f"- {_name(one.kernel)}: {told[id(one)]}" for one in waiting]


def _row(kernel: KernelTime) -> str:
    times = f", {kernel.calls} times" if kernel.calls > 1 else ""
    return f"{_name(kernel.name)} {milliseconds(kernel.seconds)} ({kernel.share:.0%}){times}, {kernel.origin}"


def _diagnosis(found: KernelDiagnosis, said: list[str], *, whole: bool, gains: bool) -> str:
    """Label and gains; of a ``whole`` one with something to gain the evidence, and what to do unless it was ``said``
    before."""
    told = str(found.cause)
    if gains:
        told += f", at most {found.kernel_gain:.2f}x, {found.program_gain:.2f}x of the call"
    if found.cause == "none":
        return f"{told}; {found.evidence}"
    if not whole or found.program_gain < WORTH_NAMING:
        return told
    known = any(found.suggestion in one or (SPLIT in found.suggestion and SPLIT in one) for one in said)
    return f"{told}; {found.evidence}" + ("" if known else f". Do: {found.suggestion}")


def changes(comparison: Comparison, limit: int = 8, *, unit: str = "launches") -> str:
    """Before and after in a few lines. ``unit``: what kernels or operators are counted in."""
    parts = [
        f"Wall {milliseconds(comparison.before_seconds)} to {milliseconds(comparison.after_seconds)} per call"
        f" ({comparison.speedup:.2f}x), {unit} {comparison.before_launches} to {comparison.after_launches},"
        f" idle {milliseconds(comparison.before_gap_seconds)} to {milliseconds(comparison.after_gap_seconds)}"
    ]
    told = noticed(comparison)[:limit]
    # Beside a new own kernel nobody knows whether what has gone was dropped or is computed in there.
    replaced = any(change.fate == "new" and change.origin == "own" for change in comparison.changes)
    off = "not launched any more" if unit == "launches" else "not called any more"
    ended = off if replaced else "gone"
    for change in told:
        before, after = milliseconds(change.before_seconds), milliseconds(change.after_seconds)
        times = {
            "gone": f"{ended}, was {before} in {change.before_calls} {unit}",
            "fused": f"fused away, was {before} in {change.before_calls} {unit}",
            "new": f"new, {after} in {change.after_calls} {unit} ({change.origin})",
            "kept": f"{before} to {after}, {unit} {change.before_calls} to {change.after_calls}",
        }
        parts.append(f"- {_name(change.name)}: {times[change.fate]}")
    if comparison.fused_into:
        parts.append(f"- fused into {', '.join(_name(name) for name in comparison.fused_into[:4])}")
    if replaced and any(change.fate == "gone" for change in told):
        parts.append(
            f"- what is {off} is done by a new own kernel, whatever its name, or was not needed: no timeline tells"
            " which"
        )
    parts += [f"Note: {remark}" for remark in comparison.remarks]
    return "\n".join(parts) + "\n"


def _name(name: str) -> str:
    short = short_name(name).replace("at::native::", "")
    return (short if len(short) <= LONGEST_NAME else short[: LONGEST_NAME - 1] + "…").replace("|", "/")


def _share(part: float, whole: float) -> str:
    return f"{min(part / whole, 1.0):.0%}" if whole > 0 else "0%"
