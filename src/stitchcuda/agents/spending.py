"""What model requests cost: prices, the meter of a run, and an estimate before paid work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pydantic import BaseModel, ConfigDict, Field

from stitchcuda.agents.budgets import Budget
from stitchcuda.agents.roles import ReplyRecord, RequestKey
from stitchcuda.agents.settings import Limits, MindSettings, Prices, Role
from stitchcuda.errors import BudgetExceeded, StitchError

CHARACTERS_PER_TOKEN = 3.3
"""Source code under common tokenizers; prose is nearer 4, so that estimates err upwards."""
LOOK_AGAIN_SECONDS = 0.05
"""How often a request that waits for room in the budget looks for it."""


class Spend(BaseModel):
    """Sums over replies."""

    model_config = ConfigDict(frozen=True)

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced: int = Field(default=0, description="replies whose price is unknown; they count as 0 dollars")

    @property
    def tokens(self) -> int:
        """Input plus output."""
        return self.input_tokens + self.output_tokens


class Price(BaseModel):
    """Dollars for one reply, or not known."""

    model_config = ConfigDict(frozen=True)

    usd: float
    known: bool


def split_model(model: str) -> tuple[str, str]:
    """('openai', 'gpt-5') of 'openai:gpt-5'; StitchError when it is no PROVIDER:NAME."""
    provider, colon, name = model.partition(":")
    if not colon or not name or provider not in ("openai", "anthropic", "google"):
        raise StitchError(
            f"'{model}' is not a model. Expected 'recipes', or PROVIDER:NAME with PROVIDER one of openai, anthropic, "
            "google; any OpenAI-compatible server is openai:NAME with --base-url."
        )
    return provider, name


def price(
    model: str, input_tokens: int, output_tokens: int, *, prices: dict[str, Prices], cached_tokens: int = 0
) -> Price:
    """Dollars for one reply of ``model`` (PROVIDER:NAME): the user's price first, then the packaged price list."""
    if own := prices.get(model):
        dollars = input_tokens * own.input_usd_per_mtok + output_tokens * own.output_usd_per_mtok
        return Price(usd=dollars / 1e6, known=True)
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return Price(usd=0.0, known=False)
    provider, name = split_model(model)
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens, cache_read_tokens=cached_tokens or None)
    try:
        return Price(usd=float(calc_price(usage, name, provider_id=provider).total_price), known=True)
    except (LookupError, ValueError):
        return Price(usd=0.0, known=False)


class Meter:
    """Adds up the replies of a run, replayed ones included, each once, and keeps requests within its limits.

    Safe to use from several threads.
    """

    def __init__(self, limits: Limits, worked: Callable[[], float] | None = None) -> None:
        """``worked`` gives the seconds that the run has worked by now; without it those since here count."""
        self.limits = limits
        made = time.monotonic()
        self._worked = worked or (lambda: time.monotonic() - made)
        self._lock = threading.Lock()
        self._records: dict[RequestKey, tuple[ReplyRecord, bool]] = {}
        self._under_way: list[Spend] = []
        """The most that each request which is not answered yet may take."""
        self._before = Spend()

    def start_from(self, spend: Spend) -> None:
        """Count what this meter will not see: replies to requests that a resumed run does not make again."""
        self._before = spend

    def add(self, record: ReplyRecord, *, priced: bool) -> None:
        """Count one reply, new or replayed; an equal key counts once."""
        with self._lock:
            self._records[record.key] = (record, priced)

    @property
    def spend(self) -> Spend:
        """Everything so far."""
        with self._lock:
            return self._spend()

    def _spend(self) -> Spend:
        records = self._records.values()
        return Spend(
            requests=self._before.requests + len(self._records),
            input_tokens=self._before.input_tokens + sum(r.input_tokens for r, _ in records),
            output_tokens=self._before.output_tokens + sum(r.output_tokens for r, _ in records),
            usd=self._before.usd + sum(r.usd for r, _ in records),
            unpriced=self._before.unpriced + sum(not priced for _, priced in records),
        )

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Within, all waiting ends with BudgetExceeded when the run's wall time is used."""
        limit = self.limits.seconds
        timeout = asyncio.timeout(None if limit is None else limit - self._worked())
        try:
            async with timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise BudgetExceeded(
                f"The limit of wall time is {limit:.0f} s, and it passed before the model had answered. "
                "Raise the limit and resume the run to go on."
            ) from None

    @asynccontextmanager
    async def room_for(self, most: Spend) -> AsyncIterator[None]:
        """Within, a request that takes ``most`` at most may be made; what it took is added before leaving.

        Waits while the request and those under way might together pass a limit. One alone may go as long as there is
        anything left, since replies are much shorter than they might be: it can pass a limit by itself. Raises
        BudgetExceeded when even an empty answer would.
        """
        while not self._taken(most):
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.remove(most)

    def _taken(self, most: Spend) -> bool:
        """Set ``most`` aside, unless the request has to wait."""
        with self._lock:
            spend = self._spend()
            self._check(spend, most)
            together = [*self._under_way, most]
            tokens = spend.tokens + sum(one.tokens for one in together)
            usd = spend.usd + sum(one.usd for one in together)
            fits = (self.limits.tokens is None or tokens <= self.limits.tokens) and (
                self.limits.usd is None or usd <= self.limits.usd
            )
            if self._under_way and not fits:
                return False
            self._under_way.append(most)
            return True

    def _check(self, spend: Spend, most: Spend) -> None:
        if self.limits.tokens is not None and spend.tokens + most.input_tokens > self.limits.tokens:
            raise BudgetExceeded(
                f"The token limit is {self.limits.tokens:,}; {spend.tokens:,} are used and the next request needs "
                f"about {most.input_tokens:,} more. Raise the limit and resume the run to go on."
            )
        if self.limits.usd is not None and spend.usd >= self.limits.usd and (spend.usd > 0 or self.limits.usd == 0):
            raise BudgetExceeded(
                f"The dollar limit is ${self.limits.usd:.2f} and ${spend.usd:.2f} are spent. "
                "Raise the limit and resume the run to go on."
            )


class Estimate(BaseModel):
    """What a run is expected to cost, before anything is paid."""

    model_config = ConfigDict(frozen=True)

    requests: int
    input_tokens: int
    output_tokens: int
    usd: float | None = Field(description="None: the price of a model is unknown")
    capped_usd: float | None = Field(description="the budget's limit, which ends the run; None without one")
    sentence: str


_TYPICAL: dict[Role, tuple[int, int]] = {
    "planner": (9_000, 2_500),
    "coder": (9_000, 5_000),
    "repair": (10_000, 2_500),
    "verifier": (5_000, 500),
}
"""Tokens in and out of one request by role, for a task of 100 lines."""


def estimate(
    model: str,
    budget: Budget,
    *,
    settings: MindSettings | None = None,
    limits: Limits | None = None,
    source_characters: int = 4_000,
    reference_tokens: int = 0,
) -> Estimate:
    """What a run that uses all of ``budget`` costs, by usual prompt sizes times planned requests; re-asks not counted.

    Planned: a Plan and a replan for every 12 candidates, one Coder and one Verifier request for each candidate,
    and a repair with its Verifier request for seven of ten. ``source_characters`` is the task's length, of
    which long ones are shown in part, ``reference_tokens`` what each request shows of what was looked up.
    """
    from stitchcuda.agents.prompting import SOURCE_LIMIT

    settings = settings or MindSettings()
    repairs = round(0.7 * budget.candidates) if budget.repairs else 0
    planned: dict[Role, int] = {
        "planner": 1 + budget.candidates // 12,
        "coder": budget.candidates,
        "repair": repairs,
        "verifier": budget.candidates + repairs,
    }
    more = int(max(0, min(source_characters, SOURCE_LIMIT) - 4_000) / CHARACTERS_PER_TOKEN)
    shown = more + reference_tokens
    tokens_in = tokens_out = 0
    dollars, unknown = 0.0, set[str]()
    for role, count in planned.items():
        typical_in, typical_out = _TYPICAL[role]
        one_in, one_out = typical_in + shown, typical_out + (more if role == "coder" else 0)
        tokens_in, tokens_out = tokens_in + count * one_in, tokens_out + count * one_out
        name = settings.model_for(role, model)
        cost = price(name, one_in, one_out, prices=settings.prices)  # of one: long prompts have a price of their own
        dollars += count * cost.usd
        if not cost.known:
            unknown.add(name)
    requests = sum(planned.values())
    cap = limits.usd if limits else budget.usd
    usd = None if unknown else dollars
    money = f"price unknown for {', '.join(sorted(unknown))}" if unknown else f"about ${dollars:.2f}"
    bound = "" if cap is None else f"; the run stops at ${cap:.2f}"
    if unknown:
        bound = "; dollars cannot be limited, tokens are"
    return Estimate(
        requests=requests,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        usd=usd,
        capped_usd=cap,
        sentence=f"about {requests} model requests, {tokens_in / 1e6:.2f} M tokens in and {tokens_out / 1e6:.2f} M "
        f"out, {money}{bound}",
    )
