"""A Profile in a few hundred tokens for an agent: every number with its unit, the most telling first."""

from __future__ import annotations

from stitchcuda.profiling.compare import Comparison, noticed
from stitchcuda.profiling.model import Profile
from stitchcuda.profiling.rules import milliseconds
from stitchcuda.profiling.table import IDLE_TOLD, path_note, short_name

KERNELS, PARTS, OPERATORS, DIAGNOSES = 6, 4, 4, 3
LONGEST_NAME = 60


def digest(profile: Profile) -> str:
    """At most about 40 lines of Markdown; what was not measured is left out."""
    line = profile.timeline
    parts = [
        f"Profile of the {profile.subject} by {profile.source}{' ' + profile.version if profile.version else ''},"
        " per call:",
        f"- bottleneck: {profile.bottleneck}"
        + (f" ({profile.cause})" if profile.cause != "none" else "")
        + f". {profile.evidence}",
    ]
    wall = line.wall_seconds
    parts.append(
        f"- wall {milliseconds(wall)}, busy {milliseconds(line.busy_seconds)} ({_share(line.busy_seconds, wall)}),"
        f" idle {milliseconds(line.gap_seconds)}, {line.launches} launches"
        + (f" in {line.graph_launches} CUDA graphs" if line.graph_launches else "")
    )
    if line.idle_seconds:
        told = sorted(line.idle_seconds.items(), key=lambda item: -item[1])
        parts.append(
            "- while idle the host was "
            + ", ".join(f"{IDLE_TOLD[kind]} {milliseconds(seconds)}" for kind, seconds in told[:3] if seconds > 0)
        )
    if line.copy_seconds > 0:
        pageable = f", {_share(line.pageable_seconds, line.copy_seconds)} pageable" if line.pageable_seconds > 0 else ""
        parts.append(f"- copies between host and device {milliseconds(line.copy_seconds)}{pageable}")
    counts = [
        f"{number} {what}"
        for number, what in (
            (line.synchronisations, "waits for the device"),
            (line.allocations, "allocations or frees"),
            (line.streams if line.streams > 1 else 0, "streams"),
        )
        if number
    ]
    if line.peak_bytes:
        counts.append(f"peak device memory {line.peak_bytes / 2**20:.0f} MiB")
    if counts:
        parts.append("- " + ", ".join(counts))
    if profile.critical_path:
        path = profile.critical_path[:PARTS]
        parts.append(
            f"- critical path{path_note(profile)}: "
            + "; ".join(f"{_name(p.what)} {milliseconds(p.seconds)} ({p.share:.0%}, {p.where})" for p in path)
        )
    if profile.operators:
        parts.append(
            "- device time by operator: "
            + ", ".join(f"{o.name} {milliseconds(o.seconds)} ({o.share:.0%})" for o in profile.operators[:OPERATORS])
        )
    parts += ["", "| kernel | time | of busy | launches | whose |", "|---|---|---|---|---|"]
    parts += [
        f"| {_name(k.name)} | {milliseconds(k.seconds)} | {k.share:.0%} | {k.calls} | {k.origin} |"
        for k in profile.kernels[:KERNELS]
    ]
    if profile.diagnoses:
        parts.append("")
    parts += [
        f"- {_name(d.kernel)}: {d.cause}; {d.evidence}. Do: {d.suggestion}."
        f" At most {d.kernel_gain:.2f}x for it, {d.program_gain:.2f}x for the call"
        for d in profile.diagnoses[:DIAGNOSES]
    ]
    if profile.suggestion:
        parts += ["", f"First: {profile.suggestion}"]
    # What the tool itself says of every recording comes last: it must not crowd out why something was not measured.
    parts += [f"Note: {remark}" for remark in sorted(profile.remarks, key=lambda r: r.startswith("nsys says"))[:2]]
    return "\n".join(parts) + "\n"


def changes(comparison: Comparison, limit: int = 8) -> str:
    """Before and after in a few lines."""
    parts = [
        f"Wall {milliseconds(comparison.before_seconds)} to {milliseconds(comparison.after_seconds)} per call"
        f" ({comparison.speedup:.2f}x), launches {comparison.before_launches} to {comparison.after_launches},"
        f" idle {milliseconds(comparison.before_gap_seconds)} to {milliseconds(comparison.after_gap_seconds)}"
    ]
    for change in noticed(comparison)[:limit]:
        before, after = milliseconds(change.before_seconds), milliseconds(change.after_seconds)
        times = {
            "gone": f"gone, was {before} in {change.before_calls} launches",
            "fused": f"fused away, was {before} in {change.before_calls} launches",
            "new": f"new, {after} in {change.after_calls} launches ({change.origin})",
            "kept": f"{before} to {after}, launches {change.before_calls} to {change.after_calls}",
        }
        parts.append(f"- {_name(change.name)}: {times[change.fate]}")
    if comparison.fused_into:
        parts.append(f"- fused into {', '.join(_name(name) for name in comparison.fused_into[:4])}")
    parts += [f"Note: {remark}" for remark in comparison.remarks]
    return "\n".join(parts) + "\n"


def _name(name: str) -> str:
    short = short_name(name)
    return (short if len(short) <= LONGEST_NAME else short[: LONGEST_NAME - 1] + "…").replace("|", "/")


def _share(part: float, whole: float) -> str:
    return f"{min(part / whole, 1.0):.0%}" if whole > 0 else "0%"
