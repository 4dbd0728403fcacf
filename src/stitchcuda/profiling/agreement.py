"""Whether a Profile's calls are those that the evaluation timed: where they are not, its times and gains say little.

A profiling pass times its calls anew. A machine that was slower or faster meanwhile, or a subject that behaves
otherwise there, gives a Profile of another call than the one that counts.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.profiling.model import Profile
from stitchcuda.profiling.rules import milliseconds

APART = 1.25
"""Ratio of the two wall times, either way, from which the Profile is doubtful."""


class Agreement(BaseModel):
    """Wall seconds of a call in the Profile's own pass, and in the evaluation's timed calls."""

    model_config = ConfigDict(frozen=True)

    profiled_seconds: float = Field(gt=0)
    timed_seconds: float = Field(gt=0)

    @property
    def ratio(self) -> float:
        """Above 1: the profiled calls were slower."""
        return self.profiled_seconds / self.timed_seconds

    @property
    def doubtful(self) -> bool:
        """They are not of one call."""
        return not 1 / APART <= self.ratio <= APART

    @property
    def sentence(self) -> str:
        """What is not to be believed; '' where the two agree."""
        if not self.doubtful:
            return ""
        how = f"{self.ratio:.1f}x as long" if self.ratio > 1 else f"{self.ratio:.2f} of the time"
        return (
            f"this profile is doubtful: its calls took {milliseconds(self.profiled_seconds)}, the evaluation timed "
            f"{milliseconds(self.timed_seconds)} ({how}). Shares may hold; times and what follows from them do not"
        )


def agreement(profile: Profile, timed_seconds: float) -> Agreement | None:
    """``timed_seconds``: the median call of the same subject by the evaluation. None where either is not known."""
    profiled = profile.timeline.wall_seconds
    if profiled <= 0 or timed_seconds <= 0:
        return None
    return Agreement(profiled_seconds=profiled, timed_seconds=timed_seconds)
