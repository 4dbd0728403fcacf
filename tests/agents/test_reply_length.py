"""How long a reply is asked for, and what becomes of a request whose length the server refuses. Over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.agents import Mind
from stitchcuda.agents.llm import mind
from stitchcuda.agents.settings import MindSettings
from stitchcuda.errors import ModelAccessError, ProgramError
from tests.agents.support import CODER_REPLY, PLAN, MemoryLog, code_request, hasty, plan_request
from tests.support.scripted_endpoint import Answer, Request, ScriptedEndpoint, status, text, tool

MODEL = "openai:scripted"
Refusal = Callable[[int], str]
"""What a server says to a request for so many tokens."""

LONGEST_REPLY: dict[str, Refusal] = {
    "openai": lambda asked: f"max_tokens is too large: {asked}. This model supports at most 8192 completion tokens",
    "anthropic": lambda asked: (
        f"max_tokens: {asked} > 8192, which is the maximum allowed number of output tokens for model-20241022"
    ),
    "deepseek": lambda asked: "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "with commas": lambda asked: "max_completion_tokens may be 8,192 at most",
}
"""Of a server that gives 8,192 tokens at most."""

CONTEXT: dict[str, Refusal] = {
    "openai": lambda asked: (
        f"This model's maximum context length is 16384 tokens. However, you requested {9000 + asked} tokens "
        f"(9000 in the messages, {asked} in the completion)."
    ),
    "vllm": lambda asked: (
        f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is 16384 "
        f"tokens and your request has 9000 input tokens ({asked} > 16384 - 9000)."
    ),
    "vllm, later": lambda asked: (
        f"You passed 9000 input tokens and requested {asked} output tokens. However, the model's context length is "
        "only 16384 tokens, resulting in a maximum input length of 384 tokens."
    ),
    "sglang": lambda asked: (
        "Requested token count exceeds the model's maximum context length of 16384 tokens. You requested a total of "
        f"{9000 + asked} tokens: 9000 tokens from the input messages and {asked} tokens for the completion."
    ),
    "anthropic": lambda asked: (
        f"input length and `max_tokens` exceed context limit: 9000 + {asked} > 16384, decrease input length or "
        "`max_tokens` and try again"
    ),
    "tgi": lambda asked: (
        f"`inputs` tokens + `max_new_tokens` must be <= 16384. Given: 9000 `inputs` tokens and {asked} `max_new_tokens`"
    ),
}
"""Of a server with a context of 16,384 tokens, of which the prompt takes 9,000."""


@pytest.fixture(autouse=True)
def _unknown_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has taught the process of a server is not believed of the next one at its address."""
    monkeypatch.setattr("stitchcuda.agents.server._KNOWN", {})


def coder(endpoint: ScriptedEndpoint, log: MemoryLog | None = None, settings: MindSettings | None = None) -> Mind:
    return mind(MODEL, base_url=endpoint.base_url, log=log or MemoryLog(), settings=settings or hasty())


def giving(longest: int, refusal: Refusal, answer: Answer, *, code: int = 400) -> Callable[[Request, int], Answer]:
    """A server that answers where it is asked for at most ``longest`` tokens."""

    def script(request: Request, number: int) -> Answer:
        asked = request.body["max_tokens"]
        return answer if asked <= longest else status(code, {"error": {"message": refusal(asked), "code": code}})

    return script


def asked(endpoint: ScriptedEndpoint) -> list[int]:
    """Tokens that each request asked for at most."""
    return [request.body["max_tokens"] for request in endpoint.requests]


@pytest.mark.parametrize("refusal", LONGEST_REPLY.values(), ids=LONGEST_REPLY)
def test_a_servers_longest_reply_is_learned_once_from_its_refusal(refusal: Refusal) -> None:
    log = MemoryLog()
    with ScriptedEndpoint(giving(8_192, refusal, text(CODER_REPLY))) as endpoint:
        first = coder(endpoint, log).coder.code(code_request())
        coder(endpoint).coder.code(code_request())
        assert asked(endpoint) == [16_000, 8_192, 8_192]
        assert coder(endpoint, log).coder.code(code_request()) == first
        assert endpoint.count == 3, "what is paid is found again whatever length it was asked for in"


@pytest.mark.parametrize("code", [400, 422])
@pytest.mark.parametrize("refusal", CONTEXT.values(), ids=CONTEXT)
def test_a_reply_is_asked_for_that_fits_beside_the_prompt(refusal: Refusal, code: int) -> None:
    with ScriptedEndpoint(giving(7_384, refusal, text(CODER_REPLY), code=code)) as endpoint:
        coder(endpoint).coder.code(code_request())
        assert asked(endpoint) == [16_000, 7_384]


def test_half_is_asked_for_where_the_refusal_names_no_length() -> None:
    with ScriptedEndpoint(giving(5_000, lambda asked: "max_tokens is too large", text(CODER_REPLY))) as endpoint:
        coder(endpoint).coder.code(code_request())
        assert asked(endpoint) == [16_000, 8_000, 4_000]


def test_a_prompt_that_leaves_no_room_ends_the_run_in_words() -> None:
    def refusal(asked: int) -> str:
        return "the request exceeds the available context size (8192 tokens), try increasing it"

    with ScriptedEndpoint(giving(0, refusal, {})) as endpoint:
        with pytest.raises(ModelAccessError, match="no room for a reply"):
            coder(endpoint).coder.code(code_request())
        assert asked(endpoint)[-1] == 1_000


@pytest.mark.parametrize("words", ["max_tokens: at most 16000 completion tokens", "bad request"])
def test_a_doubled_length_that_is_refused_is_asked_for_as_it_was(words: str) -> None:
    def script(request: Request, number: int) -> Answer:
        if request.body["max_tokens"] > 16_000:
            return status(400, {"error": {"message": words}})
        return text("### program.py\n```python\nclass Mod", finish="length") if number == 0 else text(CODER_REPLY)

    with ScriptedEndpoint(script) as endpoint:
        coder(endpoint).coder.code(code_request())
        assert asked(endpoint) == [16_000, 32_000, 16_000]


def test_where_a_cut_off_reply_leaves_no_room_for_another_it_is_what_there_is() -> None:
    def script(request: Request, number: int) -> Answer:
        if len(request.body["messages"]) > 2:
            return status(400, {"error": {"message": "the request exceeds the available context size"}})
        return text("### program.py\n```python\nclass Mod", finish="length")

    with ScriptedEndpoint(script) as endpoint, pytest.raises(ProgramError, match="no usable program"):
        coder(endpoint).coder.code(code_request())


def test_a_refusal_of_something_else_is_not_asked_for_in_a_shorter_length() -> None:
    words = "Unsupported parameter: 'max_tokens' is not supported with this model"
    with ScriptedEndpoint([status(400, {"error": {"message": words}})]) as endpoint:
        with pytest.raises(ModelAccessError, match="Unsupported"):
            coder(endpoint).coder.code(code_request())
        assert endpoint.count == 1


def test_what_one_prompt_leaves_of_a_context_is_not_taken_for_the_servers_longest_reply() -> None:
    longest, context = LONGEST_REPLY["openai"], CONTEXT["vllm"]

    def script(request: Request, number: int) -> Answer:
        most = request.body["max_tokens"]
        if most > 8_192 or (number < 2 and most > 7_384):
            refusal = longest(most) if most > 8_192 else context(most)
            return status(400, {"error": {"message": refusal, "code": 400}})
        return text(CODER_REPLY)

    with ScriptedEndpoint(script) as endpoint:
        for _ in range(2):
            coder(endpoint).coder.code(code_request())
        assert asked(endpoint) == [16_000, 8_192, 7_384, 8_192]


def test_a_refusal_that_only_echoes_the_length_shortens_no_other_reply() -> None:
    def script(request: Request, number: int) -> Answer:
        if request.tools:
            return status(
                400, {"error": {"message": f"unknown field 'tools' in {{'max_tokens': {asked(endpoint)[-1]}}}"}}
            )
        return text(json.dumps(PLAN)) if "Planner" in request.text else text(CODER_REPLY)

    with ScriptedEndpoint(script) as endpoint:
        roles = coder(endpoint)
        roles.planner.plan(plan_request())
        roles.coder.code(code_request())
        assert asked(endpoint)[-2:] == [8_000, 16_000]


def test_the_users_length_is_asked_for_by_every_role_and_never_doubled() -> None:
    log = MemoryLog()
    cut_off = text("class Mod", finish="length")
    with ScriptedEndpoint([tool(PLAN), cut_off, text(CODER_REPLY)]) as endpoint:
        roles = coder(endpoint, log, hasty(max_output_tokens=5_000))
        roles.planner.plan(plan_request())
        first = roles.coder.code(code_request())
        assert asked(endpoint) == [5_000] * 3
        assert coder(endpoint, log).coder.code(code_request()) == first
        assert endpoint.count == 3, "another length does not make another question"
