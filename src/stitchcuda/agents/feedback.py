"""The Verifier's data: Feedback, with the route the loop takes next."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Route = Literal["retry", "optimise", "next", "replan", "stop"]


def _names(value: object) -> object:
    """A list from what models write for one: nothing, or words with commas."""
    if value is None:
        return []
    return [name for name in value.split(",") if name.strip()] if isinstance(value, str) else value


class Feedback(BaseModel):
    """The Verifier's word on one Evaluation (and Profile).

    retry: repair this program; optimise: correct, improve it; next: this step is done;
    replan: the idea is refuted; stop: nothing more to gain.
    """

    model_config = ConfigDict(frozen=True)

    route: Route
    diagnosis: str = Field(description="the one thing that matters, in a sentence")
    evidence: str = Field(description="the figures or messages it rests on")
    suggestion: str = Field(description="one concrete change")
    fingerprint: str = Field(default="", description="of the error, equal for equal causes; empty when correct")
    citations: Annotated[list[str], BeforeValidator(_names)] = Field(
        default_factory=list, description="the looked-up passages that this rests on, such as K1; none if on none"
    )
