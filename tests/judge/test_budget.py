"""Budgets in windows of time, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from e2e.programs import free_ports
from e2e.redis_server import serving
from rag_eval_otel.config import Limit, limits_of
from rag_eval_otel.errors import BudgetSpentError, ConfigError
from rag_eval_otel.judge.budget import Budget, RedisCounts, SlidingWindow
from rag_eval_otel.prices import Price, Prices
from rag_eval_otel.types import Usage
from support import ManualClock

PRICES = Prices(models={"m": Price(input=1.0, output=10.0), "e": Price(input=1.0)})


def budget(text: str, **options: object) -> Budget:
    limits = limits_of(text, where="budget")
    return Budget(limits, prices=PRICES, **options)  # type: ignore[arg-type]


def admitted(one: Budget, times: int, usage: Usage | None = None) -> int:
    async def requests() -> int:
        count = 0
        for _ in range(times):
            try:
                reservation = await one.reserve("m", size=300)
            except BudgetSpentError:
                continue
            one.settle(reservation, usage or Usage(judge_requests=1))
            count += 1
        return count

    return asyncio.run(requests())


def test_any_window_has_at_most_the_limit() -> None:
    """With requests at all times, no window has more than the limit, and few have less."""
    clock = ManualClock()
    one = budget("60 requests/minute", clock=clock)
    times: list[float] = []
    for _ in range(2_000):
        times += [clock()] * admitted(one, 1)
        clock.advance(0.1)
    most = max(sum(1 for at in times if start <= at < start + 60) for start in times)
    assert most <= 60
    assert sum(1 for at in times if 60 <= at < 180) >= 2 * 59


def test_amounts_leave_the_window() -> None:
    """The sum has what is younger than the window, and is corrected in the right cell."""
    window = SlidingWindow(60)
    cell = window.add(0.0, 5)
    window.add(30.0, 1)
    window.correct(cell, -2)
    assert [window.sum(now) for now in (30.0, 60.0, 60.4, 90.4)] == [4, 4, 1, 0]
    window.correct(cell, 10)
    assert window.sum(90.4) == 0
    counted = [window.add(now, 1) == int(now / 0.3) for now in map(float, range(100, 1_100))]
    assert (all(counted), len(window._cells)) == (True, 61), "one a second"  # noqa: SLF001


def test_an_error_names_the_limit_that_is_spent() -> None:
    """Of several limits, the one that is reached is named; none is charged by a refusal."""
    one = budget("5 requests/minute, 1 USD/day")
    assert admitted(one, 9) == 5
    with pytest.raises(BudgetSpentError, match="the budget of 5 requests/minute is spent"):
        asyncio.run(one.reserve("m", size=300))
    assert str(one.spent_limit) == "5 requests/minute"
    assert [(str(limit), left) for limit, left in one.left()] == [
        ("5 requests/minute", 0),
        ("1 USD/day", 1),
    ]


@pytest.mark.parametrize(
    ("part", "estimates", "taken"),
    [
        ("judge", "on", [1, 1, 101 + 256, 101 + 2_560]),
        ("judge", "off", [1, 1, 1, 1]),
        ("embedder", "on", [1, 0, 101, 101]),
        ("embedder", "off", [1, 0, 1, 1]),
    ],
)
def test_a_request_takes_its_estimate(part: str, estimates: Any, taken: list[int]) -> None:
    """For 301 characters and each attempt, until what its tokens cost replaces the estimate."""
    units = ("requests", "judge requests", "tokens", "USD")
    limits = [Limit(amount=10_000, unit=unit, seconds=60) for unit in units]
    one = Budget(limits, prices=PRICES, estimates=estimates)

    def used() -> object:
        *counts, money = (limit.amount - left for limit, left in one.left())
        return pytest.approx([*counts, money * 1e6])

    first, other = (asyncio.run(one.reserve("m", size=301, part=part)) for _ in range(2))
    assert used() == [2 * each for each in taken]
    one.settle(first, Usage(judge_requests=1, prompt_tokens=7, completion_tokens=2))
    one.settle(first, Usage(judge_requests=9))
    one.settle(other, None, requests=3)
    assert used() == [x + 3 * y for x, y in zip([1, 1, 9, 27], taken, strict=True)]


def test_a_budget_of_money_needs_prices_in_its_currency() -> None:
    """Another currency, or a model without a price, is an error that names the options."""
    with pytest.raises(ConfigError, match=r"5 EUR/day is in EUR, but prices are in USD"):
        budget("5 EUR/day")
    one = budget("5 USD/day")
    one.require_price("m", "judge")
    one.require_price("e", "embedder")
    with pytest.raises(ConfigError, match=r"judge 'e', whose price has no \"output\""):
        one.require_price("e", "judge")
    with pytest.raises(ConfigError, match=r"price of the judge 'x', .* install the extra prices"):
        one.require_price("x", "judge")
    budget("5 requests/day").require_price("x", "judge")


def test_what_is_at_or_above_a_limit() -> None:
    """A larger request is sent if nothing is used; money is counted to a billionth, exactly."""
    clock = ManualClock()
    one = budget("50 tokens/minute", clock=clock)
    for _ in range(2):
        assert admitted(one, 3, Usage(judge_requests=1, prompt_tokens=90)) == 1
        clock.advance(61)
    limits, prices = limits_of("0.0002248 USD/day", where=""), {"m": Price(input=0.1, output=0.4)}
    one = Budget(limits, prices=Prices(models=prices))
    used = Usage(judge_requests=1, prompt_tokens=100, completion_tokens=256)
    assert admitted(one, 3, used) == 2


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path) as server:
        yield server.address


LIMITS = "1 USD/day, 100 requests/day"
LONG = 60.0  # seconds to wait for Redis on a busy machine


def shared(url: str, text: str = LIMITS, **options: object) -> Budget:
    limits = limits_of(text, where="budget")
    counts = RedisCounts(url, limits, timeout=LONG, **options)  # type: ignore[arg-type]
    return Budget(limits, prices=PRICES, shared=counts)


def test_processes_share_a_budget_in_redis(redis_url: str) -> None:
    """Two budgets with one Redis admit together what one admits alone; another name is apart."""
    one, other = shared(redis_url), shared(redis_url)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: admitted(each, 80), (one, other)))
    assert sum(found) == 100
    assert str(one.spent_limit or other.spent_limit) == "100 requests/day"
    apart = asyncio.run(shared(f"{redis_url}#other").reserve("m", size=300))
    assert [0 <= time.time() / 432 - cell < 2 for cell in apart.shared or ()] == [True, True]


def test_without_redis_the_process_counts_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The outage is logged once and counted, and Redis is not asked again for a while."""
    caplog.set_level("DEBUG", "rag_eval_otel")
    clock, errors = ManualClock(), list[str]()
    one = shared(
        f"redis://127.0.0.1:{free_ports(1)[0]}/0",
        "3 requests/minute",
        clock=clock,
        on_error=lambda: errors.append("redis"),
    )
    assert admitted(one, 5) == 3
    assert len(errors) == 1
    clock.advance(6)
    assert admitted(one, 1) == 0
    assert len(errors) == 2
    told = [one for one in caplog.records if "Redis cannot be reached" in one.getMessage()]
    assert "WARNING" in {one.levelname for one in told}  # perhaps also of another test's budget
    assert [one.levelname for one in told].count("DEBUG") == 1


@pytest.mark.parametrize(
    "url",
    [
        "topsecret",
        5,
        "rediss//:topsecret@there:6379/0",
        "redis://:topsecret@there:port/0",
        "redis://:top#secret@there:6379/0",
        "redis://:topsecret@there/0?foo=bar",
        "redis://:topsecret@there/0?protocol=topsecret",
        "rediss://:topsecret@there/0?ssl_cert_reqs=topsecret",
    ],
)
def test_a_wrong_address_of_redis_is_refused(url: Any) -> None:
    """The error comes at the start, names the option, and nowhere quotes a part of the password."""
    with pytest.raises(ConfigError, match=r"redis must be a URL such as redis://host") as e:
        RedisCounts(url, [Limit(amount=1, unit="requests", seconds=60)])
    told = "".join(traceback.format_exception(e.type, e.value, e.tb, chain=True, limit=0))
    assert "secret" not in told
    assert (e.value.__cause__, e.value.__context__) == (None, None)
