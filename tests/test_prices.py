"""Prices of tokens: a table of the user, and a library of list prices."""

import sys

import pytest

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.prices import Price, Prices, _list_price, load_prices
from rag_eval_otel.types import Usage


def test_replies_without_a_price_have_no_cost(caplog: pytest.LogCaptureFixture) -> None:
    """A price without ``output`` is that of an embedder: replies are not free, but unknown."""
    prices = load_prices({"models": {"half": {"input": 1.0}}})
    replied = Usage(prompt_tokens=1_000_000, completion_tokens=1_000_000)
    assert prices.cost("half", replied) is None
    assert prices.cost_of(replied, judge=("half",), embedder="half") is None
    assert "no price is known for half" in caplog.text
    read = Usage(prompt_tokens=1_000_000, embedding_tokens=500_000)
    assert prices.cost_of(read, judge=("own", "half"), embedder="half") == 1.5
    assert prices.cost_of(Usage(), judge=("own",), embedder="own") == 0.0


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("Llama-3.1", 1),
        ("meta-llama/Llama-3.1", 2),
        ("together/meta-llama/Llama-3.1", 2),
        ("meta-llama/Llama-3.1-2026-01-31", 2),
        ("together/Llama-3.1", 1),
        ("qwen/Llama-3.1", 1),
        ("meta-llama/Llama", None),
        ("/", None),
    ],
)
def test_the_price_of_the_longest_part_of_a_name_counts(model: str, price: float | None) -> None:
    """A table may name a model with its providers, or without them."""
    table = {"Llama-3.1": {"input": 1}, "meta-llama/Llama-3.1": {"input": 2}}
    found = load_prices({"models": table}).price_of(model)
    assert (found and found.input) == price


@pytest.mark.parametrize(
    ("cached", "prices", "cost"),
    [
        (8, {}, 60),
        (8, {"cached_input": 0.5, "output": 8.0}, 88),
        (8, {"cached_input": 0.0, "output": 0.0}, 44),
        (99, {"cached_input": 0.5}, 30),
    ],
)
def test_what_tokens_cost(cached: int, prices: dict[str, float], cost: float) -> None:
    """Tokens in a cache are those of the prompt at most, and may have a price of their own."""
    usage = Usage(prompt_tokens=20, cached_tokens=cached, completion_tokens=5, embedding_tokens=10)
    assert Price(input=2.0, **prices).of(usage) * 1e6 == pytest.approx(cost)


def test_prices_are_read_from_a_mapping() -> None:
    """The option takes a table as well as a file; embedders need no price of replies."""
    found = load_prices({"currency": "EUR", "models": {"e": {"input": 2}}})
    assert found == Prices(models={"e": Price(input=2)}, currency="EUR")
    for wrong in (
        *({"models": {"e": {"input": number}}} for number in (-1, float("inf"), "2", True)),
        {"models": {"e": {"output": 2}}},
        {"models": {5: {"input": 2}}},
        {"models": {"e": {"input": 2}}, "currency": None},
        {"models": {"e": {"input": 2}}, "currency": "dollars"},
    ):
        with pytest.raises(ConfigError, match=r"prices \(RAG_EVAL_PRICES\): the price table must"):
            load_prices(wrong)


def test_other_models_have_list_prices() -> None:
    """The library of prices knows models of providers, but no embedders and no private names."""
    prices = load_prices({"models": {"mine": {"input": 2}}})
    assert prices.price_of("mine") == Price(input=2)
    listed = prices.price_of("openai/gpt-4o-mini-2024-07-18")
    assert listed == Price(input=0.15, cached_input=0.075, output=0.6)
    assert load_prices().price_of("gpt-4o-mini") == listed
    assert load_prices().price_of("text-embedding-3-small") is None
    for currency in ("EUR", "ZAR"):
        assert load_prices({"currency": currency, "models": {}}).price_of("gpt-4o-mini") is None


def test_without_the_library_of_prices_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is what the option names."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    _list_price.cache_clear()
    assert Prices().price_of("gpt-4o-mini") is None
    _list_price.cache_clear()
