"""What happens to one provider request: faults, retries, limits, the journal. Against a real HTTP endpoint."""

from __future__ import annotations

import json
import socket

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.agents import Mind, Plan, ReplyRecord, RequestKey
from stitchcuda.agents.llm import mind
from stitchcuda.agents.settings import Limits, MindSettings, Patience, Prices
from stitchcuda.agents.spending import Spend
from stitchcuda.errors import BudgetExceeded, KeyMissing, ModelAccessError, StitchError
from tests.agents.support import FEEDBACK, PLAN, MemoryLog, hasty, plan_request, verify_request
from tests.support.scripted_endpoint import Answer, Request, ScriptedEndpoint, drop, garbage, status, text, tool

MODEL = "openai:scripted"


def scripted(endpoint: ScriptedEndpoint, log: MemoryLog | None = None, **options: object) -> Mind:
    options.setdefault("settings", hasty())
    return mind(MODEL, base_url=endpoint.base_url, log=log or MemoryLog(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fault",
    [
        status(429, headers={"Retry-After": "0"}),
        status(500),
        status(503, "<html>overloaded</html>"),
        garbage(),
        garbage("hello", content_type="text/plain"),
        garbage('{"choices": []}'),
        garbage('{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [{'),
        drop(),
    ],
    ids=["429", "500", "503", "no-json", "plain-text", "no-choices", "half-a-body", "reset"],
)
def test_a_passing_fault_is_retried_and_paid_once(fault: Answer) -> None:
    log = MemoryLog()
    waits: list[str] = []
    with ScriptedEndpoint([fault, tool(PLAN)]) as endpoint:
        plan = scripted(endpoint, log, notify=waits.append).planner.plan(plan_request())
        assert plan == Plan.model_validate(PLAN)
        assert endpoint.count == 2
    assert len(log.records) == 1
    assert len(waits) == 1
    assert "trying again" in waits[0]


def test_a_lasting_fault_names_server_status_and_body_after_the_bounded_tries() -> None:
    body = {"error": {"message": "the queue is full " + "x" * 500}}
    with ScriptedEndpoint(lambda request, number: status(500, body)) as endpoint:
        with pytest.raises(ModelAccessError) as caught:
            scripted(endpoint).planner.plan(plan_request())
        assert endpoint.count == 4
        assert endpoint.base_url in str(caught.value)
    words = str(caught.value)
    assert "HTTP 500" in words
    assert "the queue is full" in words
    assert "resume" in words
    assert len(words) < 700


def test_a_server_that_is_down_is_said_to_be_down() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ModelAccessError, match="tried 4 times") as caught:
        mind(MODEL, base_url=url, log=MemoryLog(), settings=hasty()).planner.plan(plan_request())
    assert url in str(caught.value)


def test_a_slow_reply_times_out() -> None:
    patience = Patience(request_seconds=0.3, attempts=2, first_wait_seconds=0.01)
    with (
        ScriptedEndpoint(lambda request, number: tool(PLAN, delay_s=1.0)) as endpoint,
        pytest.raises(ModelAccessError, match="tried 2 times"),
    ):
        scripted(endpoint, settings=MindSettings(patience=patience)).planner.plan(plan_request())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(401, {"error": {"message": "bad key"}}), "OPENAI_API_KEY"),
        (status(404, {"error": {"message": "no such model"}}), "--base-url"),
        (status(429, {"error": {"code": "insufficient_quota", "message": "no credit"}}), "credit"),
    ],
    ids=["key", "name", "quota"],
)
def test_a_refusal_is_not_retried_and_says_what_to_change(answer: Answer, words: str) -> None:
    with ScriptedEndpoint([answer]) as endpoint:
        with pytest.raises(ModelAccessError, match=words):
            scripted(endpoint).planner.plan(plan_request())
        assert endpoint.count == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (400, "this model does not support tools"),
        (404, "No endpoints found that support tool use."),
        (500, "tools param requires --jinja flag"),
        (501, "tool calls are not implemented"),
    ],
)
def test_a_server_that_refuses_tools_is_asked_for_json_as_text_from_then_on(code: int, words: str) -> None:
    log = MemoryLog()
    said: list[str] = []

    def answer(request: Request, number: int) -> Answer:
        if request.tools:
            return status(code, {"error": {"message": words}})
        return text(json.dumps(PLAN))

    with ScriptedEndpoint(answer) as endpoint:
        roles = scripted(endpoint, log, notify=said.append)
        first = roles.planner.plan(plan_request())
        assert first == Plan.model_validate(PLAN)
        log.node = "node#1"
        roles.planner.plan(plan_request())
        assert [bool(request.tools) for request in endpoint.requests] == [True, False, False]
        assert scripted(endpoint, MemoryLog(_through_json(log))).planner.plan(plan_request()) == first
        assert len(endpoint.requests) == 4, "a resumed run learns it again by a refusal, which costs nothing"
    assert len(log.records) == 2
    assert len(said) == 1
    assert words in said[0]


def test_a_model_without_temperature_is_asked_without_it() -> None:
    refusal = status(400, {"error": {"message": "Unsupported parameter: 'temperature'"}})
    with ScriptedEndpoint([refusal, tool(PLAN)]) as endpoint:
        scripted(endpoint).planner.plan(plan_request())
        assert "temperature" in endpoint.requests[0].body
        assert "temperature" not in endpoint.requests[1].body


def test_a_resumed_run_asks_nothing_again_wherever_its_server_is_now() -> None:
    log = MemoryLog()
    with ScriptedEndpoint([tool({"summary": 3}), tool(PLAN)]) as endpoint:
        first = scripted(endpoint, log).planner.plan(plan_request())
    assert len(log.records) == 2
    with ScriptedEndpoint([]) as endpoint:
        again = scripted(endpoint, MemoryLog(_through_json(log))).planner.plan(plan_request())
        assert endpoint.count == 0
    assert again == first


def test_a_run_killed_between_two_requests_goes_on_with_the_second() -> None:
    log = MemoryLog()
    with ScriptedEndpoint([tool({"summary": 3}), tool(PLAN)]) as endpoint:
        first = scripted(endpoint, log).planner.plan(plan_request())
        second_body = endpoint.requests[1].body
    kept = {key: record for key, record in _through_json(log).items() if key.ordinal == 0}
    with ScriptedEndpoint([tool(PLAN)]) as endpoint:
        again = scripted(endpoint, MemoryLog(kept)).planner.plan(plan_request())
        assert [request.body for request in endpoint.requests] == [second_body]
    assert again == first


def test_asking_again_for_an_unusable_reply_is_said_and_a_replayed_one_is_not() -> None:
    log = MemoryLog()
    said: list[str] = []
    with ScriptedEndpoint([tool({"summary": 3}), tool(PLAN)]) as endpoint:
        scripted(endpoint, log, notify=said.append).planner.plan(plan_request())
        scripted(endpoint, log, notify=said.append).planner.plan(plan_request())
        assert endpoint.count == 2
    assert said == [f"{MODEL}: the planner's reply could not be used; asking again (2 of 3)"]


def test_another_question_in_the_same_place_is_another_request() -> None:
    log = MemoryLog()
    with ScriptedEndpoint([tool(PLAN), tool(PLAN)]) as endpoint:
        coder = scripted(endpoint, log).planner
        coder.plan(plan_request())
        coder.plan(plan_request(baselines={"eager": 5e-3}))
        assert endpoint.count == 2


def test_records_carry_node_role_ordinal_tokens_and_dollars() -> None:
    log = MemoryLog()
    log.node = "plan#0"
    settings = hasty(prices={MODEL: Prices(input_usd_per_mtok=2, output_usd_per_mtok=10)})
    with ScriptedEndpoint([tool({}, tokens=[1000, 10]), tool(PLAN, tokens=[2000, 100])]) as endpoint:
        scripted(endpoint, log, settings=settings).planner.plan(plan_request())
    keys = [(r.key.node, r.key.role, r.key.ordinal, r.input_tokens, r.output_tokens) for r in log.records.values()]
    assert keys == [("plan#0", "planner", 0, 1000, 10), ("plan#0", "planner", 1, 2000, 100)]
    assert [round(r.usd, 6) for r in log.records.values()] == [0.0021, 0.005]


def test_the_token_limit_is_checked_before_each_request() -> None:
    with ScriptedEndpoint([tool(PLAN, tokens=[9_000, 1_000]), tool(FEEDBACK)]) as endpoint:
        roles = scripted(endpoint, limits=Limits(tokens=10_500))
        roles.planner.plan(plan_request())
        with pytest.raises(BudgetExceeded, match="10,500"):
            roles.verifier.verify(verify_request())
        assert endpoint.count == 1


def test_the_dollar_limit_is_checked_before_each_request_and_replays_are_free() -> None:
    log = MemoryLog()
    settings = hasty(prices={MODEL: Prices(input_usd_per_mtok=100, output_usd_per_mtok=100)})
    with ScriptedEndpoint([tool(PLAN, tokens=[9_000, 1_000]), tool(FEEDBACK)]) as endpoint:
        for _ in range(2):
            roles = scripted(endpoint, log, settings=settings, limits=Limits(usd=1.0))
            roles.planner.plan(plan_request())
            with pytest.raises(BudgetExceeded, match=r"\$1\.00"):
                roles.verifier.verify(verify_request())
        assert endpoint.count == 1


def test_what_a_resumed_run_spent_before_counts_towards_its_limits() -> None:
    class ResumedLog(MemoryLog):
        def spent(self) -> Spend:
            return Spend(requests=3, input_tokens=9_000, output_tokens=1_000, usd=0.5)

    with ScriptedEndpoint([tool(PLAN)]) as endpoint:
        with pytest.raises(BudgetExceeded, match="10,000 are used"):
            scripted(endpoint, ResumedLog(), limits=Limits(tokens=10_500)).planner.plan(plan_request())
        assert endpoint.count == 0


def test_keys_reach_the_server_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "planted-key-6f1c0a2b9d"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    log = MemoryLog()
    waits: list[str] = []
    answers = [
        status(500, {"error": {"message": f"you sent {key}"}}),
        text(f"I saw {key}"),
        tool(PLAN),
        status(403, {"error": {"message": f"wrong key {key}"}}),
    ]
    with ScriptedEndpoint(answers) as endpoint:
        roles = scripted(endpoint, log, notify=waits.append)
        roles.planner.plan(plan_request())
        with pytest.raises(ModelAccessError) as caught:
            roles.verifier.verify(verify_request())
        assert endpoint.requests[0].headers["authorization"] == f"Bearer {key}"
    written = json.dumps([record.model_dump() for record in log.records.values()])
    assert key not in written + str(caught.value) + "".join(waits)
    assert "[OPENAI_API_KEY]" in written
    assert caught.value.__cause__ is None


def test_a_missing_key_names_its_variable_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider, variable in (("openai", "OPENAI"), ("anthropic", "ANTHROPIC"), ("google", "GOOGLE")):
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(KeyMissing, match=f"{variable}_API_KEY") as caught:
            mind(f"{provider}:some-model", log=MemoryLog())
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["gpt-5", "openai:", "nobody:model", ""])
def test_a_name_that_is_no_model_says_what_one_is(name: str) -> None:
    with pytest.raises(StitchError, match="PROVIDER:NAME"):
        mind(name, base_url="http://127.0.0.1:1/v1", log=MemoryLog())


def test_an_address_that_is_no_url_is_refused() -> None:
    with pytest.raises(StitchError, match="--base-url"):
        mind(MODEL, base_url="localhost:8000", log=MemoryLog())


def _through_json(log: MemoryLog) -> dict[RequestKey, ReplyRecord]:
    """The records as another process would read them from a file."""
    records = [ReplyRecord.model_validate_json(record.model_dump_json()) for record in log.records.values()]
    return {record.key: record for record in records}
