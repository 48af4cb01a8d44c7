"""Limits a minute that several processes share: divided, or in counts that all of them reach."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from e2e.redis_server import serving
from live import attached
from rag_eval_otel.config import Config
from rag_eval_otel.embed import OpenAIEmbedder
from rag_eval_otel.errors import ConfigError, JudgeRateLimitError
from rag_eval_otel.judge.budget import SlidingWindow, Taken, first_exceeded
from rag_eval_otel.judge.models import build_judge, build_live_embedder
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.protection import Endpoint
from rag_eval_otel.judge.redis_counts import RedisCounts
from rag_eval_otel.judge.throttling import Limits, RateLimiter
from rag_eval_otel.limits import Limit
from rag_eval_otel.testing import ManualClock
from virtual_time import run_virtually

WORKERS = 4
MINUTE = [Limit(amount=600, unit="requests", seconds=60)]


def most_in_a_minute(times: Sequence[float]) -> int:
    """Return the largest number of ``times`` in any window of 60 seconds."""
    found = sorted(times)
    return max(sum(at <= one < at + 60 for one in found) for at in found)


class Store:
    """Counts of several processes in memory, which may be away; it loses no counts."""

    def __init__(self, limits: Sequence[int], clock: Callable[[], float]) -> None:
        """Begin with windows of a minute, in which nothing is used."""
        self.limits, self.clock = limits, clock
        self.windows = [SlidingWindow(60) for _ in limits]
        self.is_away, self.asked, self.owed = False, 0, 0

    async def take(self, amounts: Sequence[int], used: Sequence[int]) -> Taken | None:
        """Take ``amounts`` if the limits allow it, after a round trip."""
        self.asked += 1
        await asyncio.sleep(0.001)
        if self.is_away:
            return None
        now = self.clock()
        refused = first_exceeded([w.sum(now) for w in self.windows], amounts, limits=self.limits)
        pairs = zip(self.windows, amounts, strict=True)
        cells = () if refused is not None else tuple(w.add(now, n) for w, n in pairs)
        return Taken(refused=refused, cells=cells)

    def correct(self, cells: Sequence[int], differences: Sequence[int]) -> None:
        """Correct the amounts in ``cells``."""
        for window, cell, each in zip(self.windows, cells, differences, strict=True):
            window.correct(cell, each)

    def add(self, amounts: Sequence[int]) -> None:
        """Note the requests that were not counted here."""
        self.owed += amounts[0]


class Group:
    """Workers with an endpoint each, of whose requests ``at`` has the times."""

    def __init__(self, clock: Callable[[], float], **limits: Any) -> None:
        """Let each worker have ``limits``."""
        self.clock, self.at = clock, list[float]()
        given = Limits(**{"patience": 300.0, "concurrency": 64, "workers": WORKERS, **limits})
        self.endpoints = [Endpoint("judge m", given, clock=clock) for _ in range(WORKERS)]

    async def _send(self) -> int:
        self.at.append(self.clock())
        await asyncio.sleep(0.1)
        return 40

    async def ask(self, each: int, tokens: int = 0) -> None:
        """Let each worker ask ``each`` times at once."""
        calls = [
            endpoint.call(self._send, tokens=tokens, tokens_of=int)
            for endpoint in self.endpoints
            for _ in range(each)
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in found} <= {int, JudgeRateLimitError}


# --- limits that are divided ----------------------------------------------------------------------


@pytest.mark.slow
def test_workers_divide_the_limit_of_a_minute() -> None:
    """Four workers that know their number send together what one may send, in any minute."""

    async def use(clock: Callable[[], float]) -> Group:
        group = Group(clock, requests_per_minute=600)
        await group.ask(400)
        return group

    group = run_virtually(use)
    assert len(group.at) == 4 * 400
    assert most_in_a_minute(group.at) == 600


def test_the_part_of_a_worker_follows_the_size_of_the_group() -> None:
    """After a worker has joined or left, each keeps to its new part, and a part is never zero."""
    limiter = RateLimiter(12, None)
    assert [limiter.reserve(0, 1, most=1) is not None for _ in range(7)] == [True] * 7
    limiter.share(3)
    assert [limiter.reserve(61, 1, most=1) is not None for _ in range(6)] == [True] * 4 + [
        False
    ] * 2
    limiter.share(2)
    assert [limiter.reserve(62, 1, most=1) is not None for _ in range(3)] == [True] * 2 + [False]
    limiter.share(100)
    assert [limiter.reserve(200, 1, most=1) is not None for _ in range(2)] == [True, False]


def test_a_worker_may_have_more_than_an_equal_part() -> None:
    """With four of six partitions, a worker has two thirds of the limit."""
    limiter = RateLimiter(12, None)
    limiter.share(6 / 4)
    assert [limiter.reserve(0, 1, most=1) is not None for _ in range(9)] == [True] * 8 + [False]


def test_tokens_are_divided_too() -> None:
    """A worker keeps to its part of the tokens of a minute."""
    limiter = RateLimiter(None, 1000, workers=4)
    assert [limiter.reserve(0, 100, most=1) is not None for _ in range(3)] == [True, True, False]


def test_a_pipeline_is_told_the_size_of_the_group() -> None:
    """`TurnScorer.share` divides the limits of judge and embedder."""
    judge = OpenAIJudge("m", base_url="http://127.0.0.1:9", api_key="k")
    embedder = OpenAIEmbedder("e", base_url="http://127.0.0.1:9", api_key="k")
    with attached(
        judge=judge,
        embedder=embedder,
        max_requests_per_minute=12,
        embedder_max_requests_per_minute=8,
        workers=2,
    ) as app:
        scorer = app.pipeline.scorer
        (measurement,) = scorer.measurements
        scorer.share(4)

        async def admitted(endpoint: Endpoint) -> int:
            until = time.monotonic() + 1
            places = [await endpoint._limiter.reserve(1, until) for _ in range(12)]  # noqa: SLF001
            return sum(place is not None for place in places)

        parts = (measurement.judge.endpoint, measurement.embedder.endpoint)  # type: ignore[attr-defined]
        assert [asyncio.run(admitted(part)) for part in parts] == [3, 2]


# --- limits in shared counts ----------------------------------------------------------------------


@pytest.mark.slow
def test_workers_share_the_limit_of_a_minute() -> None:
    """What one worker leaves, another may send; all together keep to the limit exactly."""

    async def use(clock: Callable[[], float]) -> tuple[Group, Store]:
        store = Store([600], clock)
        group = Group(clock, requests_per_minute=600, shared=store)
        group.endpoints = group.endpoints[:1]
        await group.ask(600)
        group.endpoints *= WORKERS
        await group.ask(300)
        return group, store

    group, store = run_virtually(use)
    assert len(group.at) == 600 + 4 * 300
    assert most_in_a_minute(group.at) <= 600
    assert sum(at < 60 for at in group.at) == 600
    # A request that waits asks again every 0.3 s, and the requests behind it do not.
    assert store.asked < 1800 + max(group.at) / 0.3 * 2


def test_shared_tokens_count_as_the_replies_say() -> None:
    """An estimate of 100 tokens that turns out as 40 leaves room for further requests."""

    async def use(clock: Callable[[], float]) -> Group:
        group = Group(clock, tokens_per_minute=1000, shared=Store([1000], clock), patience=5.0)
        for _ in range(10):
            await group.ask(2, tokens=100)
        return group

    group = run_virtually(use)
    assert 20 <= len(group.at) <= 25
    assert most_in_a_minute(group.at) == len(group.at)


def test_workers_keep_to_their_part_while_the_counts_are_away() -> None:
    """Requests that were sent meanwhile are told to the counts afterwards."""

    async def use(clock: Callable[[], float]) -> tuple[Group, Store]:
        store = Store([600], clock)
        group = Group(clock, requests_per_minute=600, shared=store)
        store.is_away = True
        await group.ask(200)
        return group, store

    group, store = run_virtually(use)
    assert len(group.at) == store.owed == 800
    assert most_in_a_minute(group.at) == 600


def test_a_request_that_is_not_sent_gives_its_shared_place_back() -> None:
    """A request that finds a pause of the server waits, and counts once."""

    async def use(clock: Callable[[], float]) -> Store:
        store = Store([600], clock)
        endpoint = Group(clock, requests_per_minute=600, shared=store).endpoints[0]

        async def send() -> None:
            if store.asked == 1:
                refusal = JudgeRateLimitError("HTTP 429")
                refusal.retry_after = 10.0
                raise refusal

        first = asyncio.ensure_future(endpoint.call(send))
        await asyncio.sleep(0)
        await asyncio.gather(first, *(endpoint.call(send) for _ in range(3)))
        return store

    store = run_virtually(use)
    assert store.windows[0].sum(store.clock()) == 5  # four requests, and the refused one again


def test_a_blocked_event_loop_does_not_keep_the_others_waiting() -> None:
    """Requests of a new loop pass, though the old one was stopped while it asked the counts."""
    clock = ManualClock()
    store = Store([600], clock)
    endpoint = Endpoint("judge m", Limits(requests_per_minute=600, shared=store), clock=clock)

    async def send() -> str:
        return "fine"

    stopped = asyncio.new_event_loop()
    task = stopped.create_task(endpoint.call(send))
    stopped.call_later(0, stopped.stop)
    stopped.run_forever()
    endpoint._abandon()  # noqa: SLF001  # the watchdog calls it
    assert asyncio.run(endpoint.call(send)) == "fine"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        stopped.run_until_complete(task)
    stopped.close()


# --- in Redis -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_threads_share_the_limit_in_redis(tmp_path: Path) -> None:
    """Four endpoints with one Redis send together what the limit allows."""
    with serving(tmp_path) as server:
        sent, lock = [0], threading.Lock()

        async def send() -> None:
            with lock:
                sent[0] += 1

        def work(_: int) -> None:
            counts = RedisCounts(server.url(), MINUTE, of="minute:judge m", option="redis")
            limits = Limits(requests_per_minute=600, shared=counts, patience=60.0)
            clock = ManualClock()

            async def sleep(seconds: float) -> None:
                clock.advance(seconds)

            endpoint = Endpoint("judge m", limits, clock=clock, sleep=sleep)

            async def ask() -> None:
                calls = [endpoint.call(send) for _ in range(200)]
                await asyncio.gather(*calls, return_exceptions=True)

            asyncio.run(ask())

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(work, range(WORKERS)))
        with server.client() as client:
            keys = [key.decode() for key in client.scan_iter()]
        assert sent[0] == server.counted() == 600
        assert keys == ["{rag_eval_otel:minute:judge m:test}:requests:60"]


@pytest.mark.parametrize("unit", ["requests", "tokens"])
def test_models_are_made_with_limits_in_redis(unit: str, tmp_path: Path) -> None:
    """`max_requests_per_minute` and the others are kept in the Redis of the option ``redis``."""
    with serving(tmp_path) as server:
        names = [f"{part}max_{unit}_per_minute" for part in ("", "embedder_")]
        options: dict[str, Any] = {**dict.fromkeys(names, 60), "redis": server.url()}
        keys = {"judge_api_key": "k", "embedder_api_key": "k"}
        config = Config(judge="openai/j", embedder="openai/e", **keys, **options)
        endpoints = [build_judge(config).endpoint, build_live_embedder(config).endpoint]  # type: ignore[attr-defined]

        async def send() -> int:
            return 7

        for endpoint in endpoints:
            assert asyncio.run(endpoint.call(send, tokens=7, tokens_of=int)) == 7
        with server.client() as client:
            found = sorted(key.decode() for key in client.scan_iter())
    places = ("embedder e", "judge j")
    assert found == [f"{{rag_eval_otel:minute:{place}:test}}:{unit}:60" for place in places]


@pytest.mark.slow
def test_a_redis_that_is_away_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The worker keeps to its part, and asks Redis again after five seconds."""
    clock, errors = ManualClock(), list[str]()
    counts = RedisCounts(
        "redis://127.0.0.1:9/0",
        MINUTE,
        of="minute:judge m",
        option="redis",
        timeout=60.0,
        clock=clock,
        on_error=lambda: errors.append("redis"),
    )
    limits = Limits(requests_per_minute=600, shared=counts, workers=WORKERS, patience=60.0)
    endpoint = Endpoint("judge m", limits, clock=clock)

    async def ask() -> list[object]:
        calls = [endpoint.call(lambda: asyncio.sleep(0)) for _ in range(200)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with caplog.at_level(logging.WARNING, "rag_eval_otel"):
        found = asyncio.run(ask())
    assert [type(one) for one in found].count(JudgeRateLimitError) == 50
    assert errors == ["redis"]
    assert caplog.text.count("the Redis with the limits a minute cannot be reached (Conn") == 1
    clock.advance(61)
    asyncio.run(ask())
    assert counts.failures == 2


def test_a_wrong_address_names_the_option() -> None:
    """The error comes before the first turn, and does not quote the address."""
    config = Config(judge="openai/j", redis="topsecret", max_requests_per_minute=9)
    with pytest.raises(ConfigError, match=r"^redis must be a URL such as redis://host") as error:
        build_judge(config)
    assert "secret" not in str(error.value)
