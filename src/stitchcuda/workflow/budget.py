"""What a run may use and what it has used. Pure data and arithmetic; prices and presets are the agents' business."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.roles import ReplyRecord, Room


class Limits(BaseModel):
    """The bounds of a run; 0 means no bound."""

    model_config = ConfigDict(frozen=True)

    iterations: int = Field(ge=0, description="candidate programs, repairs not counted")
    seconds: float = Field(ge=0, description="wall time of all effects, seconds")
    tokens: int = Field(ge=0, description="input plus output tokens of all model requests")
    usd: float = Field(ge=0, description="dollars for model requests, where the price is known")


class Spent(BaseModel):
    """What a run has used so far."""

    model_config = ConfigDict(frozen=True)

    iterations: int = 0
    seconds: float = 0.0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    @classmethod
    def of(cls, replies: Iterable[ReplyRecord], *, iterations: int, seconds: float) -> Spent:
        """Add up the journaled replies."""
        kept = list(replies)
        return cls(
            iterations=iterations,
            seconds=round(seconds, 3),
            requests=len(kept),
            input_tokens=sum(r.input_tokens for r in kept),
            output_tokens=sum(r.output_tokens for r in kept),
            usd=round(sum(r.usd for r in kept), 6),
        )

    def room(self, limits: Limits, *, plans: int | None = None) -> Room:
        """What ``limits`` leave; ``plans``: how often the Planner may be asked again."""
        tokens = self.input_tokens + self.output_tokens
        return Room(
            candidates=max(0, limits.iterations - self.iterations) if limits.iterations else None,
            seconds=max(0.0, limits.seconds - self.seconds) if limits.seconds else None,
            tokens=max(0, limits.tokens - tokens) if limits.tokens else None,
            usd=max(0.0, limits.usd - self.usd) if limits.usd else None,
            plans=plans,
        )

    def exhausted(self, limits: Limits) -> str | None:
        """The first limit that is reached, as a sentence part; None while there is room."""
        if limits.iterations and self.iterations >= limits.iterations:
            return f"all {limits.iterations} candidates used" if limits.iterations > 1 else "the one candidate is used"
        if limits.seconds and self.seconds >= limits.seconds:
            return f"{limits.seconds:.0f} s of wall time used"
        tokens = self.input_tokens + self.output_tokens
        if limits.tokens and tokens >= limits.tokens:
            return f"{tokens:,} of {limits.tokens:,} tokens used"
        if limits.usd and self.usd >= limits.usd:
            return f"${self.usd:.2f} of ${limits.usd:.2f} used"
        return None
