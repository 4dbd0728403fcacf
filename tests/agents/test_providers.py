"""Each provider's own protocol, spoken by its own client to a real HTTP endpoint."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.agents import Feedback, Plan
from stitchcuda.agents.llm import mind
from tests.agents.support import FEEDBACK, PLAN, MemoryLog, hasty, plan_request, verify_request
from tests.support.scripted_endpoint import ScriptedEndpoint, status, tool


@pytest.mark.parametrize("provider", ["openai", "anthropic", "google"])
def test_a_provider_gives_typed_answers_and_its_faults_are_retried(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if provider != "openai":
        pytest.importorskip("anthropic" if provider == "anthropic" else "google.genai")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    log = MemoryLog()
    answers = [status(503), tool(PLAN, tokens=[1200, 300]), tool({"route": "sideways"}), tool(FEEDBACK)]
    with ScriptedEndpoint(answers) as endpoint:
        url = endpoint.base_url if provider == "openai" else endpoint.root_url
        roles = mind(f"{provider}:scripted", base_url=url, log=log, settings=hasty())
        assert roles.planner.plan(plan_request()) == Plan.model_validate(PLAN)
        assert roles.verifier.verify(verify_request()) == Feedback.model_validate(FEEDBACK)
        assert endpoint.count == 4
    assert next(iter(log.records.values())).input_tokens == 1200


def test_roles_may_have_models_of_their_own() -> None:
    with ScriptedEndpoint([tool(PLAN), tool(FEEDBACK)]) as endpoint:
        settings = hasty(verifier_model="openai:small")
        roles = mind("openai:large", base_url=endpoint.base_url, log=MemoryLog(), settings=settings)
        roles.planner.plan(plan_request())
        roles.verifier.verify(verify_request())
        assert [request.body["model"] for request in endpoint.requests] == ["large", "small"]
