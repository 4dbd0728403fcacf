"""The second role of the coder-judge scheme: one critical issue of a program that fails, else one bottleneck.

The scheme is CudaForge's (arXiv 2511.01884); its words are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.feedback import Feedback
from stitchcuda.agents.fingerprint import fingerprint
from stitchcuda.agents.prompting import judge_prompt
from stitchcuda.agents.roles import VerifyRequest

if TYPE_CHECKING:
    from stitchcuda.agents.asking import Conversation


class Issue(BaseModel):
    """Of a program that fails."""

    model_config = ConfigDict(frozen=True)

    critical_issue: str = Field(min_length=1)
    why_it_matters: str
    minimal_fix_hint: str = Field(min_length=1)


class Limit(BaseModel):
    """Of a program that works."""

    model_config = ConfigDict(frozen=True)

    bottleneck: str = Field(min_length=1)
    method: str = Field(min_length=1)
    plan: str


class LlmJudge:
    """A Verifier that only ever says 'retry' or 'optimise'; by plain rules where the model gives nothing usable."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def verify(self, request: VerifyRequest) -> Feedback:
        """One issue or one bottleneck."""
        from stitchcuda.agents.asking import NoUsableAnswer
        from stitchcuda.agents.llm import plain_feedback

        correct = request.evaluation.passed
        prompt = judge_prompt(request)
        try:
            if correct:
                limit = self._conversation.typed("verifier", prompt, Limit, lambda _: None)
                return Feedback(
                    route="optimise",
                    diagnosis=limit.bottleneck,
                    evidence=request.evaluation.message,
                    suggestion=f"{limit.method} {limit.plan}".strip(),
                )
            issue = self._conversation.typed("verifier", prompt, Issue, lambda _: None)
        except NoUsableAnswer:
            plain = plain_feedback(request)
            return plain.model_copy(update={"route": "optimise"}) if correct else plain
        return Feedback(
            route="retry",
            diagnosis=issue.critical_issue,
            evidence=issue.why_it_matters,
            suggestion=issue.minimal_fix_hint,
            fingerprint=fingerprint(request.evaluation),
        )
