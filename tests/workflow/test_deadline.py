"""A model that does not answer, and a run whose wall time ends: over real HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")

from tests.support.scripted_endpoint import Answer, Request
from tests.workflow.model_run import go, judged, plan, role_of, step, wrote
from tests.workflow.world import config, new_folder


def test_a_run_whose_model_hangs_ends_in_time_with_what_it_has(tmp_path: Path) -> None:
    settings = config(model="openai:scripted", parallel=1, beam=1, replans=0, seconds=6)
    folder = new_folder(tmp_path, settings)
    programs = iter([wrote("correct 1.5"), {**wrote("correct 2"), "delay_s": 60}])

    def script(request: Request, number: int) -> Answer:
        match role_of(request):
            case "planner":
                return plan(a=[step("x", ["mul"]), step("y", ["add"])])
            case "verifier":
                return judged("next")
            case _:
                return next(programs)

    begun = time.monotonic()
    result, _ = go(folder, script, settings=settings)
    assert time.monotonic() - begun < 30
    assert (result.status, result.over_best) == ("correct", 1.5)
    assert "limit of wall time is 6 s" in result.stopped
    assert 6 <= result.spent.seconds < 15
    again, asked = go(folder, script, settings=settings)
    assert (again, asked) == (result, [])
