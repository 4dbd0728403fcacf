"""Whether a Profile's calls are those that the evaluation timed: where they are not, its times and gains say little.

A profiling pass times its calls anew. A machine that was slower or faster meanwhile, or a subject that behaves
otherwise there, gives a Profile of another call than the one that counts. On cuda a timed call takes longer than a
profiled one where launches decide: it has fresh inputs and what the exchange of a call left in the caches. That is
no reason to doubt the Profile.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.profiling.model import Profile
from stitchcuda.profiling.rules import milliseconds

APART = 1.25
"""Ratio of the two wall times from which they are told apart; on cuda the Profile is doubtful only above it."""


class Agreement(BaseModel):
    """Wall seconds of a call in the Profile's own pass, and in the evaluation's timed calls."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["cuda", "cpu"]
    profiled_seconds: float = Field(gt=0)
    busy_seconds: float = Field(ge=0)
    timed_seconds: float = Field(gt=0)

    @property
    def ratio(self) -> float:
        """Above 1: the profiled calls were slower."""
        return self.profiled_seconds / self.timed_seconds

    @property
    def doubtful(self) -> bool:
        """They are not of one call: the profiled ones were slower or, on cpu, faster."""
        if self.kind == "cpu":
            return not 1 / APART <= self.ratio <= APART
        return max(self.profiled_seconds, self.busy_seconds) > APART * self.timed_seconds

    @property
    def sentence(self) -> str:
        """What is not to be believed; '' where the two agree."""
        if not self.doubtful:
            return ""
        if self.profiled_seconds <= APART * self.timed_seconds and self.ratio >= 1 / APART:
            what = f"the device was busy for {milliseconds(self.busy_seconds)} of each of its calls"
            how = f"{self.busy_seconds / self.timed_seconds:.1f}x as long"
        else:
            what = f"its calls took {milliseconds(self.profiled_seconds)}"
            how = f"{self.ratio:.1f}x as long" if self.ratio > 1 else f"{self.ratio:.2f} of the time"
        return (
            f"this profile is doubtful: {what}, the evaluation timed {milliseconds(self.timed_seconds)} ({how}). "
            "Shares may hold; times and what follows from them do not"
        )

    @property
    def overhead(self) -> str:
        """What a timed call has on top of a profiled one that is not doubted; '' where that is little."""
        if self.doubtful or self.ratio >= 1 / APART:
            return ""
        more = milliseconds(self.timed_seconds - self.profiled_seconds)
        return (
            f"the evaluation's timed call took {milliseconds(self.timed_seconds)}, {more} more than a profiled one: "
            "its inputs are fresh and the caches cold. Predicted gains are of the profiled call"
        )


def agreement(profile: Profile, timed_seconds: float, kind: Literal["cuda", "cpu"]) -> Agreement | None:
    """``timed_seconds``: the median call of the same subject by the evaluation; ``kind``: what it ran on.

    None where either time is not known.
    """
    profiled = profile.timeline.wall_seconds
    if profiled <= 0 or timed_seconds <= 0:
        return None
    busy = max(0.0, profile.timeline.busy_seconds)
    return Agreement(kind=kind, profiled_seconds=profiled, busy_seconds=busy, timed_seconds=timed_seconds)
