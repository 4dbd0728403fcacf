"""Prices, estimates and budget presets."""

from __future__ import annotations

import pytest

from stitchcuda.agents.budgets import PRESETS
from stitchcuda.agents.settings import Limits, MindSettings, Prices
from stitchcuda.agents.spending import estimate, price


def test_a_users_price_is_believed_over_the_list() -> None:
    own = {"openai:gpt-5": Prices(input_usd_per_mtok=1, output_usd_per_mtok=2)}
    assert price("openai:gpt-5", 1_000_000, 500_000, prices=own).usd == pytest.approx(2.0)


def test_known_models_have_prices_and_unknown_ones_say_so() -> None:
    pytest.importorskip("genai_prices")
    assert price("openai:gpt-5", 1_000_000, 0, prices={}).usd > 0
    unknown = price("openai:my-own-model", 1_000_000, 0, prices={})
    assert (unknown.usd, unknown.known) == (0.0, False)


def test_an_estimate_grows_with_the_budget_and_names_the_limit() -> None:
    prices = {"openai:m": Prices(input_usd_per_mtok=1, output_usd_per_mtok=4)}
    settings = MindSettings(prices=prices)
    quick, deep = (estimate("openai:m", PRESETS[name], settings=settings) for name in ("quick", "deep"))
    assert quick.usd is not None
    assert deep.usd is not None
    assert 0 < quick.usd < deep.usd
    assert quick.requests == 1 + 10 + 7 + 17
    assert "stops at $0.50" in quick.sentence


def test_many_requests_cost_what_they_cost_one_by_one_and_not_what_one_long_prompt_does() -> None:
    pytest.importorskip("genai_prices")
    model = "anthropic:claude-sonnet-4-5"
    long, short = (price(model, tokens, 0, prices={}).usd / tokens for tokens in (1_000_000, 1_000))
    assert long > short, "the price list knows a dearer tier"
    cost = estimate(model, PRESETS["standard"])
    replies = price(model, 0, 1_000, prices={}).usd / 1_000
    assert cost.usd == pytest.approx(cost.input_tokens * short + cost.output_tokens * replies)


def test_an_estimate_grows_with_the_task_as_far_as_it_is_shown() -> None:
    short, long, longer = (
        estimate("openai:m", PRESETS["quick"], source_characters=count).input_tokens
        for count in (4_000, 24_000, 400_000)
    )
    assert short < long == longer


def test_an_estimate_counts_what_is_looked_up() -> None:
    plain, more = (estimate("openai:m", PRESETS["quick"], reference_tokens=tokens) for tokens in (0, 1_500))
    assert more.input_tokens - plain.input_tokens == 1_500 * plain.requests


def test_an_estimate_without_a_price_says_which_model_has_none() -> None:
    cost = estimate("openai:my-own-model", PRESETS["quick"], limits=Limits(tokens=1000))
    assert cost.usd is None
    assert "price unknown for openai:my-own-model" in cost.sentence


def test_presets_grow() -> None:
    quick, standard, deep = PRESETS["quick"], PRESETS["standard"], PRESETS["deep"]
    for field in ("candidates", "seconds", "tokens", "usd", "rounds"):
        assert getattr(quick, field) < getattr(standard, field) < getattr(deep, field)
