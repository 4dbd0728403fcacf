"""Planner, Coder and Verifier as typed roles. Language-model clients are imported only when one is asked for."""

from stitchcuda.agents.feedback import Feedback, Route
from stitchcuda.agents.plan import Idea, Plan, Step, TensorContract
from stitchcuda.agents.roles import (
    Attempt,
    Coder,
    CodeRequest,
    Mind,
    Planner,
    PlanRequest,
    ReplyLog,
    ReplyRecord,
    RequestKey,
    Verifier,
    VerifyRequest,
)

__all__ = [
    "Attempt",
    "CodeRequest",
    "Coder",
    "Feedback",
    "Idea",
    "Mind",
    "Plan",
    "PlanRequest",
    "Planner",
    "ReplyLog",
    "ReplyRecord",
    "RequestKey",
    "Route",
    "Step",
    "TensorContract",
    "Verifier",
    "VerifyRequest",
]
