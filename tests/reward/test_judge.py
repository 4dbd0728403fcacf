"""Asking a judge over real HTTP: votes, medians, and outcomes that say why the evidence stands alone."""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import ValidationError

from stitchcuda.errors import KeyMissing, StitchError
from stitchcuda.reward import reward
from stitchcuda.reward.evidence import mark
from stitchcuda.reward.judge import Judge
from stitchcuda.reward.judge_model import JudgeOutcome, JudgeSettings, Verdict
from stitchcuda.reward.judge_prompt import prompt_digest
from stitchcuda.reward.model import DIMENSIONS
from stitchcuda.reward.observed import Observed
from stitchcuda.reward.task_rubric import make
from tests.reward.judged import PYTHON, REFERENCE, observed, program, settings, task, verdict
from tests.reward.samples import evaluation, rejection
from tests.reward.test_combine import known
from tests.reward.test_rubric import DEVICE
from tests.support.scripted_endpoint import Answer, Request, Script, ScriptedEndpoint, drop, garbage, status, text, tool


def judged(script: Script, seen: Observed | None = None, **changes: Any) -> tuple[JudgeOutcome, list[Request]]:
    """What a judge by this script makes of a program, an honest one by default; and what it was asked."""
    seen = seen or observed()
    with ScriptedEndpoint(script) as endpoint:
        found = Judge(settings(endpoint.base_url, **changes)).judge(task(), seen, mark(seen, "scratch"))
    return found, endpoint.requests


def always(answer: Answer) -> Script:
    return lambda request, number: answer


def test_the_median_of_the_votes_counts_and_everything_is_recorded() -> None:
    scores = iter([2, 4, 3])
    lock = threading.Lock()

    def answer(request: Request, number: int) -> Answer:
        with lock:
            return tool(verdict({"cuda_engineering": next(scores), "anti_hacking": 5}))

    found, asked = judged(answer)
    assert found.outcome == "counted"
    assert found.medians["cuda_engineering"] == 3
    assert found.spread["cuda_engineering"] == 2
    assert found.dissent() == ["cuda_engineering"]
    assert len(asked) == len(found.votes) == found.requests == 3
    assert found.input_tokens > 0
    assert found.evidence == mark(observed(), "scratch")
    assert found.score.source == "evidence and openai:scripted"
    assert JudgeOutcome.model_validate_json(found.model_dump_json()) == found


def test_model_and_temperature_are_set_and_a_typed_answer_is_asked_for() -> None:
    _, asked = judged(always(tool(verdict())), votes=1, temperature=0.7)
    assert asked[0].body["model"] == "scripted"
    assert asked[0].body["temperature"] == 0.7
    assert asked[0].tools == ["verdict"]


def test_each_vote_is_shown_dimensions_and_evidence_in_an_order_of_its_own_and_the_same_again() -> None:
    first, asked = judged(always(tool(verdict())), votes=5)
    again, _ = judged(always(tool(verdict())), votes=5)
    other, _ = judged(always(tool(verdict())), votes=5, seed=1)
    orders = [(vote.dimensions, vote.evidence) for vote in first.votes]
    assert len({str(order) for order in orders}) == 5
    assert orders == [(vote.dimensions, vote.evidence) for vote in again.votes]
    assert orders != [(vote.dimensions, vote.evidence) for vote in other.votes]
    shown = {tuple(re.findall(r"^- (E\d+):", message(request), re.M)) for request in asked}
    assert shown == {tuple(vote.evidence) for vote in first.votes}


def test_the_judge_sees_reference_program_evidence_rubric_and_what_the_task_asks_for() -> None:
    seen = observed()
    assert seen.reference is not None
    with ScriptedEndpoint(always(tool(verdict()))) as endpoint:
        asks = make(task(), seen.reference, DEVICE)
        Judge(settings(endpoint.base_url, votes=1)).judge(task(), seen, mark(seen, "scratch"), asks)
    said = message(endpoint.requests[0])
    for part in (
        "torch.softmax(x * self.scale, dim=-1)",  # the reference
        'extern "C" int v1(const float * x',  # the program
        "own kernels took over 100% of the reference's device time",  # evidence
        "Does the program compute what it is asked for",  # the rubric
        asks.asks[0].text,  # the task's
    ):
        assert part in said
    assert "one pass over each row" not in said
    assert not re.search(r"\bmarks?\b.{0,20}\b[1-5] (?:of|from)", said), "a mark that is shown would be repeated"


WRONG: dict[str, Any] = {
    "a text": "5",
    "a truth value": True,
    "a fraction": 4.5,
    "zero": 0,
    "six": 6,
    "nothing": None,
    "a text that says false": "false",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mark_that_is_no_whole_number_is_refused_and_asked_for_again(what: str) -> None:
    wrong = copy.deepcopy(verdict())
    wrong["cuda_engineering"]["score"] = WRONG[what]
    with pytest.raises(ValidationError):
        Verdict.model_validate_json(json.dumps(wrong))
    found, asked = judged([tool(wrong), tool(verdict())], votes=1)
    assert found.outcome == "counted"
    assert len(asked) == 2


@pytest.mark.parametrize(
    "more",
    [{"total": 20}, {"major_hacking": "false"}, {"anti_hacking": {"score": 5, "reason": "", "evidence": ["E1"]}}],
)
def test_totals_words_on_cheating_and_empty_reasons_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Verdict.model_validate(verdict() | more)


def test_a_reason_must_cite_evidence_that_is_shown() -> None:
    found, asked = judged([tool(verdict(evidence=["E1", "E99"])), tool(verdict())], votes=1)
    assert found.outcome == "counted"
    assert "cites E99" in message(asked[1])
    with pytest.raises(ValidationError):
        Verdict.model_validate(verdict() | {"anti_hacking": {"score": 5, "reason": "so", "evidence": []}})


FAILURES: dict[str, Script] = {
    "prose": always(text("I would give it five out of five.")),
    "a dimension is missing": always(tool({"anti_hacking": verdict()["anti_hacking"]})),
    "marks as texts": always(tool({n: o | {"score": "5"} for n, o in verdict().items()})),
    "evidence that is not there": always(tool(verdict(evidence=["E77"]))),
    "no JSON": always(garbage()),
    "an error of the server": always(status(500)),
    "no right to ask": always(status(401)),
    "a broken connection": always(drop()),
}


@pytest.mark.parametrize("what", FAILURES)
def test_when_the_judge_fails_the_evidence_stands_and_the_failure_is_recorded(what: str) -> None:
    seen = observed()
    found, _ = judged(FAILURES[what], seen, votes=1)
    assert found.outcome == "failed"
    assert "0 of 1 votes can be used" in found.reason
    assert len(found.reason) > 40
    assert found.score == found.evidence == mark(seen, "scratch")
    assert found.votes[0].verdict is None
    assert found.votes[0].failure in found.reason


def test_a_judge_that_takes_too_long_has_failed() -> None:
    started = time.monotonic()
    found, _ = judged(always(tool(verdict(), delay_s=3)), request_seconds=0.3, attempts=1)
    assert time.monotonic() - started < 3
    assert found.outcome == "failed"
    assert "no reply within" in found.reason


def test_without_a_majority_of_votes_the_evidence_stands() -> None:
    lock, count = threading.Lock(), iter(range(9))

    def answer(request: Request, number: int) -> Answer:
        with lock:
            return tool(verdict(1)) if next(count) == 0 else status(401)

    found, _ = judged(answer)
    assert found.outcome == "failed"
    assert "1 of 3 votes" in found.reason
    assert found.score == found.evidence


def test_a_judge_that_contradicts_hard_evidence_counts_for_nothing() -> None:
    shown = observed(evaluation=evaluation(own=0.005, sol=0.5), profile=REFERENCE)
    found, _ = judged(always(tool(verdict(5))), shown)
    assert found.evidence.marks["anti_hacking"].score == 2
    assert found.outcome == "contradicted"
    assert "takes for honest" in found.reason
    assert found.score == found.evidence


@pytest.mark.parametrize("status_of", ["dishonest", "wrong_output", "crashed"])
def test_nobody_is_asked_about_a_program_that_gets_nothing(status_of: Any) -> None:
    seen = observed(evaluation=evaluation(status_of, findings=(rejection("patches_timer"),)))
    found, asked = judged(always(tool(verdict(5))), seen)
    assert (found.outcome, asked) == ("not asked", [])
    assert found.score == found.evidence
    assert reward(seen.evaluation, found.score, "scratch").value == 0


def test_a_program_that_cannot_be_shown_whole_is_not_judged_in_part() -> None:
    long = program(PYTHON + "torch.abs(torch.ones(3))\n" * 4_000)
    found, asked = judged(always(tool(verdict(5))), observed(long))
    assert (found.outcome, asked) == ("not asked", [])
    assert "cannot be shown" in found.reason


def test_a_judge_that_always_says_five_gains_nothing_without_calibration() -> None:
    for seen in (
        observed(),
        observed(evaluation=evaluation(own=0.05, sol=0.2)),
        observed(evaluation=evaluation(own=0.0)),
    ):
        found, _ = judged(always(tool(verdict(5))), seen, votes=1)
        assert found.score.total == found.evidence.total
        worth = [reward(seen.evaluation, marks, "scratch").value for marks in (found.score, found.evidence)]
        assert worth[0] == worth[1]


def test_a_calibration_counts_only_for_the_same_model_and_prompt() -> None:
    told: list[str] = []
    given = settings("http://127.0.0.1:1/v1")
    right = known().model_copy(update={"model": given.model, "prompt": prompt_digest(given)})
    assert Judge(given, right, told.append).calibration == right
    assert told == []
    for wrong in (right.model_copy(update={"model": "openai:other"}), right.model_copy(update={"prompt": "1"})):
        assert Judge(given, wrong, told.append).calibration is None
    assert len(told) == 2
    assert all("only lower marks" in sentence for sentence in told)


def test_a_judge_that_cannot_be_asked_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(KeyMissing, match="OPENAI_API_KEY"):
        Judge(JudgeSettings(model="openai:gpt"))
    with pytest.raises(StitchError, match="is not a model"):
        Judge(JudgeSettings(model="gpt"))


def message(request: Request) -> str:
    """All that the judge was told."""
    return request.text


def test_every_dimension_is_asked_about() -> None:
    assert list(Verdict.model_fields) == list(DIMENSIONS)
