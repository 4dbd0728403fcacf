"""Two Profiles of the same task kernel by kernel: what disappeared, what is new, what became faster."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.profiling.diagnosis import spelling
from stitchcuda.profiling.families import family
from stitchcuda.profiling.model import KernelTime, Profile

Fate = Literal["gone", "new", "kept", "fused"]

NOTICED = 0.01
"""Share of the slower call's wall time below which a change of a kernel is not worth a line."""


class Change(BaseModel):
    """One kernel (or operator) before and after, seconds per call."""

    model_config = ConfigDict(frozen=True)

    name: str
    fate: Fate = Field(description="fused: gone, while a new own kernel does work of several that are gone")
    before_seconds: float
    after_seconds: float
    before_calls: int
    after_calls: int
    origin: str

    @property
    def saved_seconds(self) -> float:
        """What the call gained by it; negative where it lost."""
        return self.before_seconds - self.after_seconds


class Comparison(BaseModel):
    """Before and after as a whole, and by kernel: largest change first."""

    model_config = ConfigDict(frozen=True)

    before_seconds: float = Field(description="wall time per call")
    after_seconds: float
    before_launches: int
    after_launches: int
    before_gap_seconds: float
    after_gap_seconds: float
    changes: list[Change]
    fused_into: list[str] = Field(description="new kernels that took over work of several others")
    remarks: list[str] = Field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Wall time before over after; 0.0 where one was not measured."""
        return self.before_seconds / self.after_seconds if self.after_seconds > 0 else 0.0


def compare(before: Profile, after: Profile) -> Comparison:
    """Match kernels by name (as two tools agree on it) and by the operator that launched them.

    A new kernel of the Program's own, with two or more kernels gone for each launch of it, is taken to have fused
    them. Which kernel went into which no timeline tells: only that there are fewer, and whose time took the place.
    """
    old, new = _by_name(before.kernels), _by_name(after.kernels)
    gone = [name for name in old if name not in new]
    come = [name for name in new if name not in old]
    own = [name for name in come if new[name].origin == "own"]
    gone_calls = sum(old[name].calls for name in gone if old[name].origin != "copy")
    fused = bool(own) and gone_calls >= 2 * sum(new[name].calls for name in own)
    changes = []
    for name in {**old, **new}:
        first, second = old.get(name), new.get(name)
        kernel = first or second
        if kernel is None:
            continue
        fate: Fate = "kept" if first and second else "new" if second else "gone"
        if fate == "gone" and fused and kernel.origin != "copy" and not _matrix(kernel):
            fate = "fused"
        changes.append(
            Change(
                name=kernel.name,
                fate=fate,
                before_seconds=first.seconds if first else 0.0,
                after_seconds=second.seconds if second else 0.0,
                before_calls=first.calls if first else 0,
                after_calls=second.calls if second else 0,
                origin=kernel.origin,
            )
        )
    remarks = []
    if before.source != after.source:
        remarks.append(f"measured by different tools: {before.source} before, {after.source} after")
    if before.device and after.device and before.device != after.device:
        remarks.append(
            f"measured on different devices, so that no time tells what changed: {before.device} before,"
            f" {after.device} after"
        )
    if len(before.kernels) >= 20 or len(after.kernels) >= 20:
        remarks.append("only the 20 longest kernels of each profile are compared")
    return Comparison(
        before_seconds=before.timeline.wall_seconds,
        after_seconds=after.timeline.wall_seconds,
        before_launches=before.timeline.launches,
        after_launches=after.timeline.launches,
        before_gap_seconds=before.timeline.gap_seconds,
        after_gap_seconds=after.timeline.gap_seconds,
        changes=sorted(changes, key=lambda change: -abs(change.saved_seconds)),
        fused_into=[new[name].name for name in own] if fused else [],
        remarks=remarks,
    )


def noticed(comparison: Comparison) -> list[Change]:
    """The changes worth a line."""
    least = NOTICED * max(comparison.before_seconds, comparison.after_seconds)
    return [change for change in comparison.changes if abs(change.saved_seconds) >= least or change.fate == "new"]


def _matrix(kernel: KernelTime) -> bool:
    return family(kernel.name, kernel.operator) == "matrix"


def _by_name(kernels: list[KernelTime]) -> dict[str, KernelTime]:
    """By name, kernels of one name under several operators summed."""
    found: dict[str, KernelTime] = {}
    for kernel in kernels:
        key = spelling(kernel.name)
        if key in found:
            known = found[key]
            sums = {
                "seconds": known.seconds + kernel.seconds,
                "share": known.share + kernel.share,
                "calls": known.calls + kernel.calls,
            }
            kernel = known.model_copy(update=sums)
        found[key] = kernel
    return found
