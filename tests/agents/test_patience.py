"""How long a server that is busy is waited for, by one request and by those beside it. Over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.agents.llm import mind
from stitchcuda.agents.settings import Limits, MindSettings, Patience
from stitchcuda.errors import BudgetExceeded, ModelAccessError
from tests.agents.support import PLAN, MemoryLog, plan_request
from tests.support.scripted_endpoint import Answer, Request, ScriptedEndpoint, status, tool


def ask(endpoint: ScriptedEndpoint, limits: Limits | None = None, **patience: float) -> None:
    """For a plan, with a journal of its own."""
    given = {"attempts": 2, "first_wait_seconds": 0.01, "longest_wait_seconds": 0.05, **patience}
    settings = MindSettings(patience=Patience.model_validate(given))
    roles = mind("openai:scripted", base_url=endpoint.base_url, log=MemoryLog(), settings=settings, limits=limits)
    roles.planner.plan(plan_request())


def timed(*answers: Answer) -> tuple[Callable[[Request, int], Answer], list[float]]:
    """A script that ends with plans, and when each request came, seconds."""
    came: list[float] = []

    def script(request: Request, number: int) -> Answer:
        came.append(time.monotonic())
        return answers[number] if number < len(answers) else tool(PLAN)

    return script, came


@pytest.mark.parametrize("code", [429, 503, 529])
def test_a_busy_server_is_asked_for_a_time_and_not_a_number_of_times(code: int) -> None:
    with ScriptedEndpoint([*[status(code)] * 7, tool(PLAN)]) as endpoint:
        ask(endpoint)
        assert endpoint.count == 8


def test_the_time_is_bounded() -> None:
    with ScriptedEndpoint(lambda request, number: status(429)) as endpoint:
        with pytest.raises(ModelAccessError, match="HTTP 429"):
            ask(endpoint, busy_seconds=0.5)
        assert endpoint.count > 2


def test_what_the_server_asks_for_is_waited_for() -> None:
    script, came = timed(status(429, headers={"Retry-After": "1"}))
    with ScriptedEndpoint(script) as endpoint:
        ask(endpoint)
    assert came[1] - came[0] >= 1.0


@pytest.mark.parametrize("hint", ["0", "1"])
def test_a_shorter_wait_than_the_own_is_not_taken(hint: str) -> None:
    script, came = timed(status(429, headers={"Retry-After": hint}))
    with ScriptedEndpoint(script) as endpoint:
        ask(endpoint, first_wait_seconds=1.5, longest_wait_seconds=2)
    assert came[1] - came[0] >= 1.5


def test_a_wait_longer_than_the_user_allows_ends_the_run_at_once() -> None:
    with ScriptedEndpoint([status(429, headers={"Retry-After": "86400"})]) as endpoint:
        with pytest.raises(ModelAccessError, match="wait 86400 s"):
            ask(endpoint)
        assert endpoint.count == 1


def test_those_beside_and_after_it_leave_a_busy_server_alone_too() -> None:
    script, came = timed(status(429, headers={"Retry-After": "2"}))
    with ScriptedEndpoint(script) as endpoint, ThreadPoolExecutor() as pool:
        refused = pool.submit(ask, endpoint)
        while not came:
            time.sleep(0.01)
        time.sleep(0.5)
        others = [pool.submit(ask, endpoint) for _ in range(3)]
        for one in (refused, *others):
            one.result()
    first, *later = came
    assert len(later) == 4
    assert min(later) - first >= 2.0
    assert max(later) - min(later) > 0.02, "they come one after the other"


@pytest.mark.parametrize(
    "answer",
    [tool(PLAN, delay_s=20), status(500), status(429, headers={"Retry-After": "20"})],
    ids=["hangs", "fails", "is busy"],
)
def test_no_server_is_waited_for_beyond_the_time_of_the_run(answer: Answer) -> None:
    begun = time.monotonic()
    with ScriptedEndpoint(lambda request, number: answer) as endpoint:
        with pytest.raises(BudgetExceeded, match="limit of wall time is 1 s"):
            ask(endpoint, Limits(seconds=1), attempts=1_000)
        assert endpoint.count > 0
    assert time.monotonic() - begun < 15
