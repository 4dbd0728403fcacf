"""How language models are asked: which model plays which role, its sampling, patience and limits.

Keys are not settings: they come from the environment and are never written anywhere.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["planner", "coder", "repair", "verifier", "judge", "rubric"]
"""``judge`` marks programs, ``rubric`` drafts what a task asks for: neither takes part in a run."""
OutputMode = Literal["tool", "native", "prompted"]


class Prices(BaseModel):
    """What a model costs, where the price list does not know it or is wrong."""

    model_config = ConfigDict(frozen=True)

    input_usd_per_mtok: float = Field(ge=0, description="US dollars per million input tokens")
    output_usd_per_mtok: float = Field(ge=0, description="US dollars per million output tokens")


class Limits(BaseModel):
    """Held for each request that would be paid; None is no limit."""

    model_config = ConfigDict(frozen=True)

    tokens: int | None = Field(default=None, ge=0, description="input plus output tokens of the whole run")
    usd: float | None = Field(default=None, ge=0, description="US dollars of the whole run")
    seconds: float | None = Field(default=None, gt=0, description="wall time of the whole run, seconds")


class Patience(BaseModel):
    """Waiting and retrying when an endpoint fails. None of it changes what is asked."""

    model_config = ConfigDict(frozen=True)

    request_seconds: float = Field(default=1800.0, gt=0, description="for one reply, start to end")
    connect_seconds: float = Field(default=15.0, gt=0, description="for opening the connection")
    attempts: int = Field(default=6, gt=0, description="tries of one request while the endpoint fails")
    busy_seconds: float = Field(
        default=600.0, ge=0, description="for one request, while the server says that it is busy (HTTP 429, 503, 529)"
    )
    first_wait_seconds: float = Field(default=1.0, ge=0, description="before the second try; doubles each time")
    longest_wait_seconds: float = Field(
        default=60.0, ge=0, description="between two tries, unless the server asks for more"
    )
    longest_retry_after_seconds: float = Field(
        default=300.0, ge=0, description="a server that asks for a longer wait ends the run instead"
    )


class MindSettings(BaseModel):
    """Everything about a language-model mind but its default model, address and keys."""

    model_config = ConfigDict(frozen=True)

    planner_model: str | None = Field(default=None, description="PROVIDER:NAME; None: the default model")
    coder_model: str | None = Field(default=None, description="for drafts and improvements")
    repair_model: str | None = Field(
        default=None, description="for repairs; a cheaper one of the Coder's family will do"
    )
    verifier_model: str | None = None

    planner_temperature: float | None = Field(default=0.8, description="None: the provider's default")
    coder_temperature: float | None = 0.2
    repair_temperature: float | None = 0.1
    verifier_temperature: float | None = 0.1
    judge_temperature: float | None = 0.3
    rubric_temperature: float | None = 0.2

    max_output_tokens: int | None = Field(
        default=None, gt=0, description="longest reply of every role, in place of the following ones; never doubled"
    )
    planner_output_tokens: int = Field(default=8_000, gt=0, description="longest reply; doubled after a cut-off one")
    coder_output_tokens: int = Field(default=16_000, gt=0)
    repair_output_tokens: int = Field(default=16_000, gt=0)
    verifier_output_tokens: int = Field(default=4_000, gt=0)
    judge_output_tokens: int = Field(default=3_000, gt=0)
    rubric_output_tokens: int = Field(default=4_000, gt=0)

    output_mode: OutputMode = Field(
        default="tool",
        description="how Plans and Feedback are asked for: a tool call, the server's JSON schema mode (native), "
        "or a schema in the prompt (prompted: for servers without tools)",
    )
    explain_build_failures: bool = Field(
        default=False, description="ask the Verifier about them too; the compiler's own words are enough for most"
    )
    reasks: int = Field(default=2, ge=0, description="times an unusable reply is sent back with what is wrong")
    patience: Patience = Field(default_factory=Patience)
    prices: dict[str, Prices] = Field(default_factory=dict, description="by PROVIDER:NAME; over the price list")

    def model_for(self, role: Role, default: str) -> str:
        """The PROVIDER:NAME that plays ``role``; repairs fall back to the Coder's model."""
        if role in ("judge", "rubric"):
            return default
        if role == "planner":
            return self.planner_model or default
        if role == "verifier":
            return self.verifier_model or default
        if role == "repair" and self.repair_model:
            return self.repair_model
        return self.coder_model or default

    def temperature_for(self, role: Role) -> float | None:
        """Sampling temperature of ``role``."""
        return {
            "planner": self.planner_temperature,
            "coder": self.coder_temperature,
            "repair": self.repair_temperature,
            "verifier": self.verifier_temperature,
            "judge": self.judge_temperature,
            "rubric": self.rubric_temperature,
        }[role]

    def output_tokens_for(self, role: Role) -> int:
        """Longest reply of ``role``, tokens."""
        return {
            "planner": self.planner_output_tokens,
            "coder": self.coder_output_tokens,
            "repair": self.repair_output_tokens,
            "verifier": self.verifier_output_tokens,
            "judge": self.judge_output_tokens,
            "rubric": self.rubric_output_tokens,
        }[role]
