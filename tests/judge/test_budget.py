"""Budgets in windows of time, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.config import Limit, limits_of
from rag_eval_otel.errors import BudgetSpentError, ConfigError
from rag_eval_otel.judge.budget import Budget, RedisCounts, SlidingWindow
from rag_eval_otel.prices import Price, Prices
from rag_eval_otel.types import Usage
from support import ManualClock

PRICES = Prices(models={"m": Price(input=1.0, output=10.0)})


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


def test_money_is_settled_with_the_real_tokens() -> None:
    """A million prompt tokens for one dollar use up one dollar, whatever the estimate was."""
    one = budget("3.001 USD/hour")
    assert admitted(one, 9, Usage(judge_requests=1, prompt_tokens=1_000_000)) == 3


def test_a_budget_of_money_needs_prices_in_its_currency() -> None:
    """Another currency, or a model without a price, is an error that names the options."""
    with pytest.raises(ConfigError, match=r"5 EUR/day is in EUR, but prices are in USD"):
        budget("5 EUR/day")
    one = budget("5 USD/day")
    one.require_price("m", "judge")
    with pytest.raises(ConfigError, match=r"needs the price of the judge 'x'.*option prices"):
        one.require_price("x", "judge")
    budget("5 requests/day").require_price("x", "judge")


def test_a_request_above_a_limit_passes_if_nothing_is_used() -> None:
    """It would otherwise never be sent; a second one waits until the window is empty again."""
    clock = ManualClock()
    one = budget("50 tokens/minute", clock=clock)
    assert admitted(one, 3, Usage(judge_requests=1, prompt_tokens=90)) == 1
    clock.advance(61)
    assert admitted(one, 3, Usage(judge_requests=1, prompt_tokens=90)) == 1


SERVER = shutil.which("redis-server") or shutil.which("valkey-server")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    if SERVER is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    port = free_port()
    command = [SERVER, "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if "eady to accept connections" in line:
                break
        threading.Thread(target=server.stdout.read, daemon=True).start()
        yield f"redis://127.0.0.1:{port}/0"
        server.kill()


LIMITS = "100 requests/day, 1 USD/day"
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
    assert admitted(shared(f"{redis_url}#other"), 3) == 3


def test_without_redis_the_process_counts_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The outage is logged once and counted, and Redis is not asked again for a while."""
    caplog.set_level("DEBUG", "rag_eval_otel")
    clock, errors = ManualClock(), list[str]()
    one = shared(
        f"redis://127.0.0.1:{free_port()}/0",
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
