"""A model's rubric for a task is held to what was measured; where it fails the rules' one is kept with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.agents.settings import MindSettings, Patience
from stitchcuda.errors import KeyMissing
from stitchcuda.reward.rubric_draft import Draft, check, draft
from stitchcuda.reward.task_rubric import TaskRubric, make, place, store, stored
from tests.reward.test_evidence import REFERENCE
from tests.reward.test_rubric import BOUND, DEVICE, TASK
from tests.support.scripted_endpoint import Request, Script, ScriptedEndpoint, status, text, tool

HASTY = MindSettings(reasks=1, patience=Patience(request_seconds=10, attempts=1, first_wait_seconds=0.01))
RULED = make(TASK, REFERENCE, DEVICE, BOUND)


def ask(**changes: Any) -> dict[str, Any]:
    return {
        "text": "Keep the product at cuBLAS's speed and put bias and relu into its epilogue.",
        "operators": ["aten::addmm", "aten::relu"],
        "weight": 5,
        "gain": 1.5,
        **changes,
    }


GRAPH = ask(text="Replay the eight launches as one graph.", operators=["host"], weight=2, gain=1.1)
GOOD = {"asks": [GRAPH, ask()]}


def drafted(script: Script) -> tuple[TaskRubric, list[Request]]:
    with ScriptedEndpoint(script) as endpoint:
        found = draft(
            TASK, REFERENCE, DEVICE, BOUND, model="openai:scripted", base_url=endpoint.base_url, settings=HASTY
        )
    return found, endpoint.requests


def test_a_good_draft_is_kept_under_its_models_name_by_weight() -> None:
    found, asked = drafted([tool(GOOD)])
    assert found.author == "openai:scripted"
    assert [a.weight for a in found.asks] == [5, 2]
    assert found.asks[0].operators == ["aten::addmm", "aten::relu"]
    assert found.note == ""
    assert found.model_copy(update={"asks": RULED.asks, "author": "rules"}) == RULED, "what was measured is not drafted"
    said = asked[0].text
    for part in ("| aten::addmm | matrix | 6 | 50.0 % |", "| host |", "1 ms a call (memory)", "NVIDIA H200"):
        assert part in said


def test_it_is_kept_by_the_tasks_hash(tmp_path: Path) -> None:
    found, _ = drafted([tool(GOOD)])
    path = place(tmp_path, TASK, DEVICE)
    store(found, path)
    assert stored(path, TASK) == found


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an operator that is not in the profile": (ask(operators=["aten::conv2d"]), "aten::conv2d is not in the profile"),
    "a gain beyond its share": (ask(operators=["aten::relu"], gain=3.0), "a gain of 3 is more than 1.2"),
    "a gain beyond the bound": (ask(operators=["aten::addmm", "aten::relu", "aten::softmax", "host"], gain=40.0), "12"),
    "the same text twice": (ask(text=GRAPH["text"]), "the same text"),
    "a weight as a text": (ask(weight="5"), "weight"),
    "a truth value as a weight": (ask(weight=True), "weight"),
    "a weight of none": (ask(weight=0), "weight"),
    "a gain below one": (ask(gain=0.5), "gain"),
    "no operators": (ask(operators=[]), "operators"),
    "more than is asked for": (ask(note="x"), "note"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_was_measured_does_not_allow_is_sent_back_once_with_the_reason(what: str) -> None:
    wrong, says = WRONG[what]
    found, asked = drafted([tool({"asks": [GRAPH, ask(), wrong]}), tool(GOOD)])
    assert found.author == "openai:scripted"
    assert len(asked) == 2
    assert says in asked[1].text


def test_a_draft_must_speak_of_every_dominant_operator() -> None:
    with pytest.raises(ValueError, match="no ask is about aten::addmm, aten::relu"):
        check(
            Draft.model_validate({"asks": [GRAPH, {**GRAPH, "text": "Do not wait for the device in between."}]}),
            REFERENCE,
        )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (tool({"asks": [ask(operators=["aten::conv2d"]), GRAPH]}), "aten::conv2d is not in the profile"),
        (text("I would fuse it all."), "gave no usable rubric"),
        (status(500), "could not be asked"),
    ],
)
def test_without_a_usable_draft_the_rules_write_it_and_say_why(answer: dict[str, Any], why: str) -> None:
    found, _ = drafted(lambda request, number: answer)
    assert found.author == "rules"
    assert why in found.note
    assert found.model_copy(update={"note": ""}) == RULED


def test_a_model_that_cannot_be_asked_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(KeyMissing):
        draft(TASK, REFERENCE, DEVICE, model="openai:gpt")
