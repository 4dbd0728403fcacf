"""Requests that several threads make at the same time: together they are held to the run's limits. Over real HTTP."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pydantic_ai")

from stitchcuda.agents import Mind, ReplyRecord, RequestKey
from stitchcuda.agents.llm import mind
from stitchcuda.agents.settings import Limits, Prices
from stitchcuda.agents.spending import Meter
from stitchcuda.errors import BudgetExceeded, ModelAccessError
from tests.agents.support import PLAN, MemoryLog, hasty, plan_request
from tests.support.scripted_endpoint import ScriptedEndpoint, status, tool

MODEL = "openai:scripted"
REPLY = [2_000, 4_000]
"""Tokens of each reply: half as many as a Planner may write."""


def planner(endpoint: ScriptedEndpoint, log: MemoryLog, limits: Limits) -> Mind:
    """A mind whose replies cost a dollar each."""
    settings = hasty(prices={MODEL: Prices(input_usd_per_mtok=0, output_usd_per_mtok=250)})
    return mind(MODEL, base_url=endpoint.base_url, log=log, settings=settings, limits=limits)


def ends(roles: Mind, count: int) -> list[str]:
    """What came of so many questions at the same time: 'planned', or the kind of error."""

    def ask(number: int) -> str:
        try:
            roles.planner.plan(plan_request(baselines={"eager": 1e-3 * (1 + number)}))
        except (BudgetExceeded, ModelAccessError) as error:
            return type(error).__name__
        return "planned"

    with ThreadPoolExecutor(max_workers=count) as pool:
        return list(pool.map(ask, range(count)))


@pytest.mark.parametrize("limits", [Limits(usd=5), Limits(tokens=30_000)], ids=["dollars", "tokens"])
def test_together_they_stay_within_a_limit(limits: Limits) -> None:
    log = MemoryLog()
    with ScriptedEndpoint(lambda request, number: tool(PLAN, tokens=REPLY, delay_s=0.3)) as endpoint:
        told = ends(planner(endpoint, log, limits), 8)
        assert (told.count("planned"), told.count("BudgetExceeded"), endpoint.count) == (5, 3, 5)
    assert sum(record.usd for record in log.records.values()) == pytest.approx(5)


def test_a_limit_that_holds_them_all_keeps_none_waiting() -> None:
    under_way: list[int] = []

    class Watching(MemoryLog):
        def append(self, record: ReplyRecord) -> None:
            under_way.append(endpoint.count)
            super().append(record)

    with ScriptedEndpoint(lambda request, number: tool(PLAN, tokens=REPLY, delay_s=2)) as endpoint:
        assert ends(planner(endpoint, Watching(), Limits(usd=8)), 4) == ["planned"] * 4
    assert under_way[0] == 4


def test_one_that_may_cost_more_than_is_left_goes_alone() -> None:
    with ScriptedEndpoint(lambda request, number: tool(PLAN, tokens=REPLY, delay_s=0.3)) as endpoint:
        assert sorted(ends(planner(endpoint, MemoryLog(), Limits(usd=0.5)), 3)) == ["BudgetExceeded"] * 2 + ["planned"]
        assert endpoint.count == 1


def test_what_a_failed_request_might_have_cost_is_free_again() -> None:
    with ScriptedEndpoint(lambda request, number: status(401)) as endpoint:
        assert ends(planner(endpoint, MemoryLog(), Limits(usd=0.5)), 3) == ["ModelAccessError"] * 3
        assert endpoint.count == 3


def test_what_is_spent_can_be_asked_while_replies_come_in() -> None:
    meter = Meter(Limits())
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            _ = meter.spend

    with ThreadPoolExecutor(max_workers=2) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        for number in range(3_000):
            key = RequestKey(node="n", role="coder", ordinal=number, request_hash="h")
            meter.add(ReplyRecord(key=key, reply={}, input_tokens=1, output_tokens=1), priced=True)
        over.set()
        for one in looking:
            one.result()
    assert meter.spend.tokens == 6_000
