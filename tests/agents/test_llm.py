"""The three roles played by a language model: typed answers, re-asking, and what happens when it never gets right."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.agents import CodeRequest, Feedback, Mind, Plan, TensorContract
from stitchcuda.agents.llm import mind
from stitchcuda.agents.references import Citation, References
from stitchcuda.agents.roles import NoPlan
from stitchcuda.errors import ProgramError
from stitchcuda.program.model import Program
from tests.agents.support import (
    CODER_REPLY,
    FEEDBACK,
    PLAN,
    PROGRAM_SOURCE,
    MemoryLog,
    code_request,
    evaluation,
    hasty,
    native_program,
    plan_request,
    program,
    verify_request,
)
from tests.support.scripted_endpoint import ScriptedEndpoint, text, tool


def scripted(endpoint: ScriptedEndpoint, log: MemoryLog | None = None, **settings: Any) -> Mind:
    return mind("openai:scripted", base_url=endpoint.base_url, log=log or MemoryLog(), settings=hasty(**settings))


def written(*answers: dict[str, Any], request: CodeRequest | None = None, asks: int) -> Program:
    with ScriptedEndpoint(list(answers)) as endpoint:
        result = scripted(endpoint).coder.code(request or code_request())
        assert endpoint.count == asks
    return result


def last_words(endpoint: ScriptedEndpoint) -> str:
    """What the model was told in the last request's last message."""
    return str(endpoint.requests[-1].body["messages"][-1])


def test_a_plan_is_asked_for_as_a_tool_call() -> None:
    with ScriptedEndpoint([tool(PLAN)]) as endpoint:
        assert scripted(endpoint).planner.plan(plan_request()) == Plan.model_validate(PLAN)
        body = endpoint.requests[0].body
    assert endpoint.requests[0].tools == ["plan"]
    assert body["tool_choice"] == "required"
    assert body["temperature"] == 0.8


@pytest.mark.parametrize(("written", "kept"), [(None, 0), ("k1, K7", 1), (["K1", "[K1]"], 1), (["a.md"], 0)])
def test_citations_come_in_the_forms_that_models_write(written: object, kept: int) -> None:
    citation = Citation(id="K1", reference="a.md#b", title="A > B", source="notes/a.md", version="1", sha256="0")
    request = verify_request(references=References(text="...", citations=[citation]))
    with ScriptedEndpoint([tool({**FEEDBACK, "citations": written})]) as endpoint:
        assert scripted(endpoint).verifier.verify(request).citations == [citation.words] * kept


@pytest.mark.parametrize(
    ("field", "written", "read"),
    [
        ("operators", "mul, softmax", ["mul", "softmax"]),
        ("operators", '["mul", "softmax"]', ["mul", "softmax"]),
        ("recipes", None, []),
        ("predicted_gain", "1.5x", 1.5),
        ("predicted_gain", "~1.2-1.5x", 1.2),
        ("predicted_gain", None, 1.0),
        ("host", None, ""),
        ("inputs", None, []),
    ],
)
def test_a_plan_comes_in_the_forms_that_models_write(field: str, written: object, read: object) -> None:
    plan = json.loads(json.dumps(PLAN))
    plan["ideas"][0]["steps"][0][field] = written
    plan["ideas"][0]["risk"] = None
    with ScriptedEndpoint([tool(plan)]) as endpoint:
        idea = scripted(endpoint).planner.plan(plan_request()).ideas[0]
    assert (getattr(idea.steps[0], field), idea.risk) == (read, "")


def test_a_shape_may_be_words_and_numbers() -> None:
    contract = TensorContract.model_validate({"name": "x", "shape": "(batch, 1024)", "dtype": None})
    assert (contract.shape, contract.dtype) == (["batch", 1024], "float32")


@pytest.mark.parametrize("mode", ["native", "prompted"])
def test_servers_without_tools_are_asked_for_json(mode: str) -> None:
    with ScriptedEndpoint([text("not json"), text(f"```json\n{json.dumps(PLAN)}\n```")]) as endpoint:
        assert scripted(endpoint, output_mode=mode).planner.plan(plan_request()) == Plan.model_validate(PLAN)
        assert endpoint.requests[0].tools == []


def test_a_plan_written_as_text_counts_where_the_tool_should_have_been_called() -> None:
    with ScriptedEndpoint([text(f"Here it is:\n```json\n{json.dumps(PLAN)}\n```")]) as endpoint:
        assert scripted(endpoint).planner.plan(plan_request()) == Plan.model_validate(PLAN)
        assert endpoint.count == 1


@pytest.mark.parametrize(
    ("unusable", "told"),
    [
        (tool({"summary": "s", "bottleneck": "b", "ideas": [{"name": "x"}]}), "rationale"),
        (tool('{"summary": "s", "bott', finish="length"), "JSON"),
        (text(""), "tool"),
        (text("I would fuse everything."), "tool"),
        (tool({**PLAN, "ideas": PLAN["ideas"] * 2}), "same name"),
        (tool({"summary": " ", "bottleneck": "b", "ideas": []}), "cannot be made faster"),
        (tool({}, name="no_such_tool"), "no_such_tool"),
    ],
    ids=["schema", "cut-off", "empty", "prose", "duplicate", "silent", "wrong-tool"],
)
def test_an_unusable_plan_is_sent_back_with_what_is_wrong(unusable: dict[str, Any], told: str) -> None:
    with ScriptedEndpoint([unusable, tool(PLAN)]) as endpoint:
        assert scripted(endpoint).planner.plan(plan_request()) == Plan.model_validate(PLAN)
        assert endpoint.count == 2
        assert told.lower() in last_words(endpoint).lower()


def test_recipes_in_a_models_plan_are_dropped() -> None:
    plan = json.loads(json.dumps(PLAN))
    plan["ideas"][0]["steps"][0]["recipes"] = ["pointwise"]
    with ScriptedEndpoint([tool(plan)]) as endpoint:
        assert scripted(endpoint).planner.plan(plan_request()).ideas[0].steps[0].recipes == []


@pytest.mark.parametrize(
    ("unusable", "told"),
    [
        (tool({**PLAN, "summary": 1}), "summary: Input should be a valid string, found 1"),
        (tool({"summary": "s", "bottleneck": "b", "ideas": [{"name": "x"}]}), "ideas.0.rationale: Field required"),
        (tool({**PLAN, "ideas": PLAN["ideas"] * 2}), "two ideas have the same name"),
        (text("I would fuse everything."), "empty or not in the form"),
    ],
    ids=["wrong", "missing", "duplicate", "prose"],
)
def test_a_planner_that_never_gets_right_says_what_was_wrong_and_resuming_asks_again(
    unusable: dict[str, Any], told: str
) -> None:
    log = MemoryLog()
    with ScriptedEndpoint(lambda request, number: unusable if number < 3 else tool(PLAN)) as endpoint:
        with pytest.raises(NoPlan, match=f"openai:scripted gave no usable plan in 3 replies: .*{told}"):
            scripted(endpoint, log).planner.plan(plan_request())
        assert endpoint.count == 3
        assert scripted(endpoint, log).planner.plan(plan_request()) == Plan.model_validate(PLAN)
        assert endpoint.count == 4


def test_a_draft_is_a_text_of_whole_files() -> None:
    assert written(text(CODER_REPLY), asks=1).files == {"program.py": PROGRAM_SOURCE}


@pytest.mark.parametrize(
    ("unusable", "told"),
    [
        (text(CODER_REPLY[: CODER_REPLY.index("def forward")]), "cut off"),
        (text(CODER_REPLY[: CODER_REPLY.index("def forward")], finish="length"), "length limit"),
        (text("", finish="length"), ""),
        (text(""), ""),
        (text("Use a fused kernel."), "no code"),
        (text(CODER_REPLY.replace("ModelNew", "Model")), "ModelNew"),
        (text(CODER_REPLY + "```cpp ../escape.h\nint x;\n```\n"), "leaves the program's folder"),
        (
            text(CODER_REPLY.replace("import torch\n", "import torch\nfrom bindings import softmax_rows\n", 1)),
            "manifest",
        ),
    ],
    ids=["half-a-block", "truncated", "all-thought", "empty", "prose", "no-class", "path", "no-manifest"],
)
def test_an_unusable_program_is_sent_back_with_what_is_wrong(unusable: dict[str, Any], told: str) -> None:
    with ScriptedEndpoint([unusable, text(CODER_REPLY)]) as endpoint:
        assert scripted(endpoint).coder.code(code_request()).files == {"program.py": PROGRAM_SOURCE}
        assert endpoint.count == 2
        assert told in last_words(endpoint)
        how = "Edits of the files as your last reply left them" if told == "manifest" else "whole reply"
        assert not told or how in last_words(endpoint)


def test_a_cut_off_reply_doubles_the_length_allowed_next() -> None:
    with ScriptedEndpoint([text("```python\nimport", finish="length"), text(CODER_REPLY)]) as endpoint:
        scripted(endpoint).coder.code(code_request())
        assert [request.body["max_tokens"] for request in endpoint.requests] == [16_000, 32_000]


def test_a_coder_that_never_gets_right_is_a_program_error_and_resuming_does_not_pay_again() -> None:
    log = MemoryLog()
    with ScriptedEndpoint(lambda request, number: text("no code today")) as endpoint:
        for _ in range(2):
            with pytest.raises(ProgramError, match=r"no usable program in 3 replies: .*no code"):
                scripted(endpoint, log).coder.code(code_request())
        assert endpoint.count == 3


def test_the_number_of_re_asks_is_a_setting() -> None:
    with ScriptedEndpoint(lambda request, number: text("no code")) as endpoint:
        with pytest.raises(ProgramError):
            scripted(endpoint, reasks=0).coder.code(code_request())
        assert endpoint.count == 1


EDIT = """The exponent was scaled twice.

### program.py
```
<<<<<<< SEARCH
        return torch.softmax(x * self.scale, dim=-1)
=======
        return torch.softmax(x, dim=-1)
>>>>>>> REPLACE
```
"""


def repair() -> CodeRequest:
    return code_request(
        failed=program(),
        evaluation=evaluation("wrong_output"),
        feedback=Feedback(route="retry", diagnosis="d", evidence="e", suggestion="s"),
    )


def test_a_repair_is_an_edit_of_the_failed_program() -> None:
    repaired = written(text(EDIT), request=repair(), asks=1)
    assert "softmax(x, dim=-1)" in repaired.files["program.py"]


def test_an_edit_that_matches_nothing_is_sent_back() -> None:
    wrong = text(EDIT.replace("x * self.scale, dim=-1", "y * self.scale, dim=-1"))
    assert "softmax(x, dim=-1)" in written(wrong, text(EDIT), request=repair(), asks=2).files["program.py"]


def test_a_repair_may_also_be_whole_files() -> None:
    assert written(text(CODER_REPLY), request=repair(), asks=1).files == {"program.py": PROGRAM_SOURCE}


def test_repairs_may_go_to_another_model() -> None:
    with ScriptedEndpoint([text(EDIT)]) as endpoint:
        scripted(endpoint, repair_model="openai:cheap").coder.code(repair())
        assert endpoint.requests[0].body["model"] == "cheap"


def test_a_correct_program_is_improved_where_it_stands() -> None:
    request = code_request(
        program=native_program(),
        evaluation=evaluation(),
        feedback=Feedback(route="optimise", diagnosis="d", evidence="e", suggestion="Keep the row in registers."),
    )
    edit = EDIT.replace("### program.py", "### kernels.cpp").replace(
        "        return torch.softmax(x * self.scale, dim=-1)\n=======\n        return torch.softmax(x, dim=-1)",
        "// line 3 of the kernel source, as long as such lines are\n=======\n// improved",
    )
    with ScriptedEndpoint([text(edit)]) as endpoint:
        improved = scripted(endpoint).coder.code(request)
        assert "Keep the row in registers." in endpoint.requests[0].text
    assert "// improved" in improved.files["kernels.cpp"]
    assert improved.manifest == native_program().manifest


def test_feedback_is_typed_and_its_fingerprint_is_made_by_code() -> None:
    answer = {**FEEDBACK, "route": "retry", "fingerprint": "made up"}
    with ScriptedEndpoint([tool(answer)]) as endpoint:
        feedback = scripted(endpoint).verifier.verify(verify_request(evaluation=evaluation("wrong_output")))
    assert feedback.route == "retry"
    assert len(feedback.fingerprint) == 12


@pytest.mark.parametrize(("status", "route"), [("correct", "retry"), ("wrong_output", "optimise"), ("crashed", "next")])
def test_a_route_that_contradicts_the_measurement_is_refused(status: str, route: str) -> None:
    fitting = {**FEEDBACK, "route": "replan"}
    with ScriptedEndpoint([tool({**FEEDBACK, "route": route}), tool(fitting)]) as endpoint:
        feedback = scripted(endpoint).verifier.verify(verify_request(evaluation=evaluation(status)))
        assert endpoint.count == 2
        assert "does not fit" in last_words(endpoint)
    assert feedback.route == "replan"


@pytest.mark.parametrize(("status", "route"), [("correct", "next"), ("crashed", "retry")])
def test_a_verifier_that_never_gets_right_is_replaced_by_plain_rules(status: str, route: str) -> None:
    with ScriptedEndpoint(lambda request, number: text("hm")) as endpoint:
        request = verify_request(evaluation=evaluation(status), last_step=True)
        feedback = scripted(endpoint).verifier.verify(request)
        assert endpoint.count == 3
    assert feedback.route == route


def test_a_compilers_words_need_no_explanation_unless_asked_for() -> None:
    broken = verify_request(evaluation=evaluation("build_failed", log="k.cpp:3: error: 'foo' was not declared"))
    with ScriptedEndpoint([tool({**FEEDBACK, "route": "retry"})]) as endpoint:
        feedback = scripted(endpoint).verifier.verify(broken)
        assert endpoint.count == 0
        assert feedback.route == "retry"
        assert "'foo' was not declared" in feedback.diagnosis
        assert feedback.fingerprint
        scripted(endpoint, explain_build_failures=True).verifier.verify(broken)
        assert endpoint.count == 1


def test_a_failure_of_the_machine_is_not_shown_to_the_model() -> None:
    with ScriptedEndpoint([]) as endpoint:
        feedback = scripted(endpoint).verifier.verify(verify_request(evaluation=evaluation("infrastructure_error")))
        assert endpoint.count == 0
    assert feedback.route == "retry"


def test_the_roles_also_work_inside_a_running_event_loop() -> None:
    async def inside() -> Plan:
        with ScriptedEndpoint([tool(PLAN)]) as endpoint:
            return scripted(endpoint).planner.plan(plan_request())

    assert asyncio.run(inside()) == Plan.model_validate(PLAN)


def test_only_the_first_message_is_a_system_message() -> None:
    """The chat templates of many open models refuse any other place."""
    answers = [text("no code"), text(""), text(CODER_REPLY), tool({}), tool(PLAN)]
    with ScriptedEndpoint(answers) as endpoint:
        roles = scripted(endpoint)
        roles.coder.code(code_request())
        roles.planner.plan(plan_request())
        for request in endpoint.requests:
            speakers = [message["role"] for message in request.body["messages"]]
            assert speakers.index("system") == 0
            assert speakers.count("system") == 1
