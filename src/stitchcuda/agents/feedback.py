"""The Verifier's data: Feedback, with the route the loop takes next."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stitchcuda.agents.forms import Form, Words

Route = Literal["retry", "optimise", "next", "replan", "stop"]


class Feedback(Form):
    """The Verifier's word on one Evaluation (and Profile).

    retry: repair this program; optimise: correct, improve it; next: this step is done;
    replan: the idea is refuted; stop: nothing more to gain.
    """

    route: Route
    diagnosis: str = Field(description="the one thing that matters, in a sentence")
    evidence: str = Field(description="the figures or messages it rests on")
    suggestion: str = Field(description="one concrete change")
    fingerprint: str = Field(default="", description="of the error, equal for equal causes; empty when correct")
    citations: Words = Field(
        default_factory=list, description="the looked-up passages that this rests on, such as K1; none if on none"
    )
