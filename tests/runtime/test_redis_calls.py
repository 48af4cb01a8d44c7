"""Calls to a Redis that is slow or away, without a server."""

from __future__ import annotations

import asyncio
import threading

from rag_eval_otel.runtime.redis_calls import RedisCalls

URL = "redis://127.0.0.1:9/0"


def test_many_calls_at_once_are_not_an_outage() -> None:
    """A server that answers each call in 30 ms is there, however many calls wait for a thread."""
    calls = RedisCalls(URL, option="redis", told="away: %s", timeout=0.25)

    def answer() -> str:
        threading.Event().wait(0.03)
        return "PONG"

    async def use() -> list[str | None]:
        return await asyncio.gather(*(calls.result_of(calls.submit(answer)) for _ in range(100)))

    assert asyncio.run(use()) == ["PONG"] * 100
    assert (calls.failures, calls.is_away) == (0, False)


def test_calls_that_are_not_answered_are_given_up() -> None:
    """Calls that wait for a thread meanwhile are dropped."""
    calls = RedisCalls(URL, option="redis", told="away: %s", timeout=0.05)
    hangs, begun = threading.Event(), list[int]()

    def hang() -> None:
        begun.append(1)
        hangs.wait(60)

    async def use() -> list[None]:
        return await asyncio.gather(*(calls.result_of(calls.submit(hang)) for _ in range(9)))

    assert asyncio.run(use()) == [None] * 9
    assert calls.is_away
    hangs.set()
    assert len(begun) <= 4
