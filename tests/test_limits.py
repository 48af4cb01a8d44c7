"""The text of a budget."""

from __future__ import annotations

import pytest

from rag_eval_otel.config import Limit, limits_of
from rag_eval_otel.errors import ConfigError


def test_limits_are_read_from_a_text() -> None:
    """Amounts, units and periods of a budget may be written in several forms."""
    found = limits_of(
        "5 USD/day, 600 requests per minute, 2M tokens/h, 1_500.5 USD/hour", where="b"
    )
    assert found == (
        Limit(amount=5, unit="USD", seconds=86400),
        Limit(amount=600, unit="requests", seconds=60),
        Limit(amount=2_000_000, unit="tokens", seconds=3600),
        Limit(amount=1500.5, unit="USD", seconds=3600),
    )
    assert [str(one) for one in found[:3]] == [
        "5 USD/day",
        "600 requests/minute",
        "2000000 tokens/hour",
    ]
    assert limits_of(None, where="budget") == ()
    assert len(limits_of("5 USD/day,600 requests/minute ,9 tokens/h", where="budget")) == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("5 dollars/day", r"budget must be limits such as '5 USD/day.*not '5 dollars/day'"),
        ("5 USD", "must be limits such as"),
        ("5 USD/week", "must be limits such as"),
        ("", "must be limits such as"),
        (5, "must be limits such as"),
        ("0 USD/day", "the limit of USD must be a number above 0"),
        ("1.5 requests/minute", "the limit of requests must be a whole number above 0"),
        (
            "1,000 tokens/day",
            "not '1,000 tokens/day'; write a number without a comma, such as 1000",
        ),
        ("9 requests/day,1,000 tokens/day", "not '1,000 tokens/day'"),
        ("1,5 USD/day", "not '1,5 USD/day'"),
        ("1 USD/day, 2 USD/day", "two limits of USD/day"),
        ("1 USD/day, 2 EUR/hour", "EUR and USD"),
    ],
)
def test_a_wrong_budget_is_refused(given: object, told: str) -> None:
    """The error names the part that cannot be read, and the form of a limit."""
    with pytest.raises(ConfigError, match=told):
        limits_of(given, where="budget")
