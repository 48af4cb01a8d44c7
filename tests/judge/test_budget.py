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
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from rag_eval_otel.config import Limit, limits_of
from rag_eval_otel.errors import (
    BudgetSpentError,
    ConfigError,
    JudgeRateLimitError,
    JudgeTimeoutError,
    JudgeTransportError,
    UnparsableReplyError,
)
from rag_eval_otel.judge.budget import Budget, RedisCounts, SlidingWindow
from rag_eval_otel.judge.usage import Ledger, Meter, attempt, scope, shares
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


@pytest.mark.slow
def test_any_window_has_at_most_the_limit() -> None:
    """With requests at all times, no window has more than the limit, and few have less."""
    clock = ManualClock()
    one = budget("600 requests/minute", clock=clock)
    times: list[float] = []
    for _ in range(20_000):
        if admitted_now(one):
            times.append(clock())
        clock.advance(0.01)
    most = max(sum(1 for at in times if start <= at < start + 60) for start in times[::7])
    assert most <= 600
    assert sum(1 for at in times if 60 <= at < 180) >= 2 * 594


def admitted_now(one: Budget) -> bool:
    coroutine = one.reserve("m", size=300)
    try:
        coroutine.send(None)
    except StopIteration as done:
        one.settle(done.value, Usage(judge_requests=1))
        return True
    except BudgetSpentError:
        return False
    pytest.fail("a budget without Redis must not wait")


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


def test_64_threads_get_exactly_the_limit() -> None:
    """However many threads ask at once, a limit of requests is met, and never exceeded."""
    one = budget("1000 requests/minute", clock=ManualClock())
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda _: admitted(one, 40), range(64)))
    assert sum(found) == 1000


async def metered(one: Budget | None, *attempts: Usage | BaseException) -> Meter:
    async with Meter(one, model="m", size=300, part="judge") as meter:
        for result in attempts:
            with suppress(JudgeTimeoutError, OSError):
                async with attempt() as made:
                    if isinstance(result, BaseException):
                        raise result
                    made.usage = result
    return meter


def test_each_attempt_counts() -> None:
    """Three HTTP attempts of one request are three requests, for the budget as well."""
    one = budget("10 requests/minute")
    tokens = Usage(prompt_tokens=7, completion_tokens=2)
    meter = asyncio.run(metered(one, OSError(), OSError(), tokens))
    assert meter.usage == Usage(judge_requests=3, prompt_tokens=7, completion_tokens=2)
    assert dict(one.left()) == {one.limits[0]: 7}


def test_an_attempt_beyond_the_budget_is_not_made() -> None:
    """A retry needs the budget, too."""
    one = budget("2 requests/minute")
    with pytest.raises(BudgetSpentError):
        asyncio.run(metered(one, OSError(), OSError(), Usage()))
    assert dict(one.left()) == {one.limits[0]: 0}


def test_a_judge_that_counts_no_attempts_is_believed() -> None:
    """The usage in its replies counts; a request that it does not send costs nothing."""
    one = budget("10 requests/minute")

    async def asked(usage: Usage | None) -> Usage:
        async with Meter(one, model="m", size=300, part="judge") as meter:
            if usage is not None:
                meter.tell(usage)
        return meter.usage

    assert asyncio.run(asked(Usage(judge_requests=2))) == Usage(judge_requests=2)
    assert asyncio.run(asked(None)) == Usage()
    assert dict(one.left()) == {one.limits[0]: 8}


@pytest.mark.parametrize("named", [Usage(), Usage(judge_requests=1)])
def test_a_judge_that_names_no_tokens_is_estimated(named: Usage) -> None:
    """A reply without usage is a request, and takes the estimated tokens and money."""
    one = budget("10 requests/minute, 10k tokens/minute, 1 USD/minute")

    async def asked(*, counts: bool) -> Usage:
        async with Meter(one, model="m", size=300, part="judge") as meter:
            if counts:
                async with attempt():
                    pass
            meter.tell(named)
        return meter.usage

    for number, counts in enumerate((False, True), start=1):
        assert asyncio.run(asked(counts=counts)) == Usage(judge_requests=1)
        assert [left for _, left in one.left()] == pytest.approx(
            [10 - number, 10_000 - 356 * number, 1 - (100 + 2_560) / 1e6 * number]
        )


@pytest.mark.parametrize(
    ("error", "tokens"),
    [
        (JudgeRateLimitError("slow down"), 0),
        (JudgeTransportError("down"), 0),
        (UnparsableReplyError("the reply is not JSON"), 356),
        (JudgeTimeoutError("no reply in time"), 356),
        (ValueError("a defect in the judge"), 356),
    ],
)
@pytest.mark.parametrize("calls", ["attempt", "nothing"])
def test_failed_requests_without_a_reply_are_free(
    error: Exception, tokens: int, calls: str
) -> None:
    """A refusal takes no tokens; if a reply may have been paid for, the estimate counts."""
    one = budget("10k tokens/minute")

    async def asked() -> None:
        meter = Meter(one, model="m", size=300, part="judge")
        async with meter, attempt() if calls == "attempt" else nullcontext():
            raise error

    with pytest.raises(type(error)):
        asyncio.run(asked())
    assert [left for _, left in one.left()] == [10_000 - tokens]


def test_a_request_that_was_given_up_counts_once() -> None:
    """Its client may have sent it, so that a cancelled request without attempts counts as one."""
    one = budget("3 requests/day")
    seen: list[Usage] = []

    async def waiting() -> None:
        meter = Meter(one, model="m", size=300, part="judge")
        try:
            async with meter:
                seen.append(meter.close())
                raise asyncio.CancelledError
        finally:
            seen.append(meter.usage)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(waiting())
    assert seen == [Usage(judge_requests=1)] * 2
    assert [left for _, left in one.left()] == [2]


def test_shares_add_up_exactly() -> None:
    """Tokens are divided by weight into whole numbers that lose nothing."""
    usage = Usage(judge_requests=1, prompt_tokens=100, cached_tokens=64, completion_tokens=7)
    for weights in ([1, 1, 1], [5, 0, 3], [0, 0], [997, 1]):
        found = shares(usage, weights)
        assert sum(found, Usage()) == usage
    assert shares(usage, []) == []


def test_a_question_of_two_metrics_is_divided_among_them() -> None:
    """A shared question costs each of its metrics half, and a question of one metric all."""
    ledger = Ledger()
    for metric, question in (("a", "both"), ("b", "both"), ("b", "own")):
        with scope(metric=metric):
            ledger.ask(question)
    ledger.ask("nobody's")
    ledger.spend({"both": 30, "own": 10}, Usage(prompt_tokens=400))
    ledger.spend({"nobody's": 1}, Usage(prompt_tokens=9))
    found = ledger.shares(["a", "b", "c"])
    assert {name: each.prompt_tokens for name, each in found.items()} == {
        "a": 150,
        "b": 250,
        "c": 0,
    }


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


def test_estimates_are_settled_in_redis(redis_url: str) -> None:
    """A second process sees the real tokens of requests, not their estimates."""
    one = shared(redis_url, "1000 tokens/day")
    assert admitted(one, 1, Usage(judge_requests=1, prompt_tokens=600)) == 1
    client = redis.Redis.from_url(redis_url)
    for _ in range(6_000):
        (key,) = client.keys()  # type: ignore[misc]
        if b"600" in client.hvals(key):  # type: ignore[operator]
            break
        threading.Event().wait(0.01)
    assert b"600" in client.hvals(key)  # type: ignore[operator]
    client.close()


def test_without_redis_the_process_counts_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The outage is logged once and counted, and Redis is not asked again for a while."""
    clock, errors = ManualClock(), list[str]()
    limits = limits_of("3 requests/minute", where="budget")
    counts = RedisCounts(
        f"redis://127.0.0.1:{free_port()}/0",
        limits,
        clock=clock,
        timeout=LONG,
        on_error=lambda: errors.append("redis"),
    )
    one = Budget(limits, shared=counts)
    assert admitted(one, 5) == 3
    assert len(errors) == 1
    clock.advance(6)
    assert admitted(one, 1) == 0
    assert len(errors) == 2
    assert caplog.text.count("the budget's Redis cannot be reached (ConnectionError)") == 1


def test_with_a_wrong_argument_of_redis_the_process_counts_alone() -> None:
    """An argument that fails on connecting costs no score."""
    limits = limits_of("3 requests/minute", where="budget")
    counts = RedisCounts(f"redis://127.0.0.1:{free_port()}/0?retry=x", limits, timeout=LONG)
    assert admitted(Budget(limits, shared=counts), 5) == 3


@pytest.mark.slow
def test_the_url_may_say_how_long_to_wait(redis_url: str) -> None:
    """``socket_timeout`` in the URL replaces the time that a call waits for Redis."""
    limits = limits_of("1 requests/day", where="budget")
    counts = RedisCounts(f"{redis_url}?socket_timeout=60&socket_connect_timeout=60", limits)
    client = redis.Redis.from_url(redis_url)
    client.client_pause(2_000, all=False)  # type: ignore[no-untyped-call]
    assert asyncio.run(counts.take([1])) is not None
    client.close()


@pytest.mark.parametrize(
    "url",
    [
        "topsecret",
        5,
        "rediss//:topsecret@there:6379/0",
        "redis:/:topsecret@there",
        "redis://:topsecret@there:port/0",
        "redis://:top#secret@there:6379/0",
        "redis://user:#topsecret@there:6379/0",
        "redis://:topsecret@there/0?foo=bar",
        "redis://:topsecret@there/0?protocol=topsecret",
        "redis://:topsecret@there/0?encoding=topsecret",
        "rediss://:topsecret@there/0?ssl_cert_reqs=topsecret",
        "redis://:topsecret@there/0?max_connections=topsecret",
    ],
)
def test_a_wrong_address_of_redis_is_refused(url: Any) -> None:
    """The error comes at the start, names the option, and nowhere quotes a part of the password."""
    with pytest.raises(ConfigError, match=r"redis must be a URL such as redis://host") as e:
        RedisCounts(url, [Limit(amount=1, unit="requests", seconds=60)])
    told = "".join(traceback.format_exception(e.type, e.value, e.tb, chain=True, limit=0))
    assert "secret" not in told
    assert (e.value.__cause__, e.value.__context__) == (None, None)
