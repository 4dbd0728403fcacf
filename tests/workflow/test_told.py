"""What a model is told of the run that it takes part in, read from the requests of small runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.workflow.folder import RunFolder
from stitchcuda.workflow.records import NAME
from tests.support.scripted_endpoint import Answer, Request
from tests.workflow.model_run import Sent, go, judged, plan, role_of, run, step, wrote
from tests.workflow.world import config


def of(sent: list[Sent], role: str) -> list[str]:
    """The messages to one role, in order."""
    return [one.message for one in sent if one.role == role]


def improving(message: str) -> Answer:
    """1.2x, then 1.5x from that."""
    return wrote("correct 1.5" if "correct 1.2" in message else "correct 1.2")


def test_every_role_knows_what_to_beat_the_best_so_far_and_the_budget_that_is_left(tmp_path: Path) -> None:
    _, sent, _ = run(
        tmp_path,
        plans=[plan(one=[step("rows", ["mul"]), step("more rows", ["add"])]), plan(two=[step("other", ["mul"])])],
        programs=improving,
        iterations=4,
        tokens=200_000,
        usd=2.0,
    )
    for message in of(sent, "planner") + of(sent, "coder") + of(sent, "verifier"):
        assert "to beat: compile, 8 ms a call, the fastest stock option (eager 10 ms)" in message
    first, second = of(sent, "coder")[:2]
    assert "best program so far: none yet" in first
    assert "best program so far: program 1, 6.67 ms a call, 1.20x over the fastest stock option" in second
    assert "best program so far: program 2, 5.33 ms a call, 1.50x over" in of(sent, "planner")[1]
    first_plan, again = of(sent, "planner")
    assert "Left of the budget: 4 programs (repairs apart), 60 min, 200k tokens, $2.00, 1 further plan." in first_plan
    assert "Left of the budget: 2 programs (repairs apart)" in again
    assert "0 further plans" in again
    assert "Left of the budget: 3 programs (repairs apart)" in of(sent, "verifier")[0]
    assert not any("Left of the budget" in message for message in of(sent, "coder"))


def test_a_run_that_is_cut_after_any_reply_asks_nothing_twice(tmp_path: Path) -> None:
    plans = [plan(one=[step("rows", ["mul"]), step("more rows", ["add"])])]
    _, sent, folder = run(tmp_path / "whole", plans=plans, programs=improving)
    lines = (folder.path / NAME).read_bytes().splitlines(keepends=True)
    settings = config(model="openai:scripted", parallel=1, replans=0)

    def script(request: Request, _: int) -> Answer:
        answers = {"planner": plans[0], "verifier": judged("next")}
        return answers.get(role_of(request)) or improving(request.text)

    replies = [number for number, line in enumerate(lines, 1) if json.loads(line)["kind"] == "reply"]
    assert len(replies) == len(sent)
    for asked, cut in enumerate(replies, 1):
        copy = tmp_path / f"cut-{cut}"
        copy.mkdir()
        for part in ("config.toml", "task.py"):
            (copy / part).write_bytes((folder.path / part).read_bytes())
        for part in ("programs", "profiles"):
            (copy / part).mkdir()
        (copy / NAME).write_bytes(b"".join(lines[:cut]))
        _, more = go(RunFolder(copy), script, settings=settings)
        assert len(more) == len(sent) - asked
