"""An endpoint: retries, shared pauses, the breaker and its log, on a virtual clock."""

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from rag_eval_otel import errors
from rag_eval_otel.judge.endpoint import Breaker, Endpoint, Limits, Outcome, outcome_of, retry_after
from rag_eval_otel.judge.usage import deadline_after, scope
from virtual_time import run_virtually

T = TypeVar("T")
LIVE = Limits(failures=5, patience=10.0, concurrency=16)
OPENING = Limits(failures=3)


def refusal(after: float | None = None) -> errors.JudgeRateLimitError:
    error = errors.JudgeRateLimitError("HTTP 429")
    error.retry_after = after
    return error


class Server:
    """A server that takes 0.1 s for a reply, or for the error that ``outcome(time)`` returns."""

    def __init__(
        self,
        clock: Callable[[], float],
        outcome: Callable[[float], BaseException | None] = lambda _: None,
        limits: Limits = LIVE,
        draw: float | None = None,
    ) -> None:
        self.clock = clock
        self.outcome = outcome
        self.at: list[float] = []
        self.seconds = 0.1
        drawn = random.Random(3).random if draw is None else lambda: draw
        self.endpoint = Endpoint("judge m", limits, clock=clock, draw=drawn)
        self.ended = Counter[str]()
        self.endpoint.observers.append(lambda outcome, _: self.ended.update([outcome]))

    async def reply(self) -> str:
        self.at.append(self.clock())
        error = self.outcome(self.clock())
        await asyncio.sleep(self.seconds)
        if error is not None:
            raise error
        return "fine"

    async def ask(self, **options: Any) -> str | Exception:
        try:
            return await self.endpoint.call(self.reply, **options)
        except (errors.JudgeError, RuntimeError) as error:
            return error

    async def ask_many(self, number: int, every: float = 0.0) -> list[str | Exception]:
        asked = []
        for _ in range(number):
            asked.append(asyncio.ensure_future(self.ask()))
            await asyncio.sleep(every)
        return await asyncio.gather(*asked)


def run(use: Callable[[Server], Awaitable[T]], *settings: Any, **more: Any) -> tuple[T, Server]:
    servers: list[Server] = []

    async def main(clock: Callable[[], float]) -> T:
        servers.append(Server(clock, *settings, **more))
        return await use(servers[0])

    return run_virtually(main), servers[0]


def kinds(results: list[str | Exception]) -> set[str]:
    return {one if isinstance(one, str) else type(one).__name__ for one in results}


@pytest.mark.parametrize(
    "kind",
    [errors.JudgeAuthError, errors.JudgeRequestError, errors.UnparsableReplyError, RuntimeError],
)
def test_other_failures_are_not_retried(kind: type[Exception]) -> None:
    """The same request would fail again."""
    result, server = run(lambda s: s.ask(), lambda _: kind(""))
    assert (type(result), len(server.at)) == (kind, 1)


@pytest.mark.parametrize(
    ("good", "at"),
    [
        (0, [0, 0.6, 1.7, 3.8, 63.9, 72.0]),
        (4, [0, 0.1, 0.2, 0.3, 0.4, 1.0, 2.1, 4.2, 8.3, 16.4, 64.5, 72.6]),
    ],
)
def test_retries_are_as_many_as_first_attempts_or_three(good: int, at: list[float]) -> None:
    """In a minute; a request has twelve back-offs of 0.5, 1, 2, 4 and then 8 s."""

    async def use(server: Server) -> list[str | Exception]:
        return [await server.ask() for _ in range(good + 1)]

    error = errors.JudgeTransportError("500")
    fails = lambda now: error if now > good / 10 - 0.05 else None  # noqa: E731
    results, server = run(use, fails, Limits(retries=12), draw=1.0)
    assert results == ["fine"] * good + [error]
    assert server.at == pytest.approx(at)


def test_no_retry_sleeps_past_the_deadline() -> None:
    """A request with little time left fails with its error, at once."""

    async def use(server: Server) -> tuple[object, float]:
        with scope(deadline=deadline_after(0.11, clock=server.clock)):
            return await server.ask(), server.clock()

    (result, now), server = run(use, lambda _: errors.JudgeTransportError("500"))
    assert (str(result), len(server.at), now) == ("500", 1, pytest.approx(0.1))


async def turns(server: Server, number: int, at_once: int) -> list[bool]:
    places = asyncio.Semaphore(at_once)

    async def turn() -> bool:
        async with places:
            with scope(deadline=deadline_after(30, clock=server.clock)):
                return kinds(await asyncio.gather(server.ask(), server.ask())) == {"fine"}

    return await asyncio.gather(*(turn() for _ in range(number)))


@pytest.mark.parametrize(("at_once", "number"), [(1, 25), (16, 64)])
def test_an_outage_costs_one_probe_at_a_time(at_once: int, number: int) -> None:
    """Twenty minutes of it cost a probe every half minute; the first good probe ends it for all."""
    before, probes = list[float](), list[float]()

    async def use(server: Server) -> list[bool]:
        def outcome(now: float) -> BaseException | None:
            if now >= 1200:
                return None
            (probes if server.endpoint.breaker.is_open else before).append(now)
            return errors.JudgeTransportError("500")

        server.outcome = outcome
        found = await turns(server, number, at_once)
        await asyncio.sleep(max(0.0, 1200 - server.clock()))
        return found + await turns(server, at_once, at_once)

    found, _ = run(use)
    assert found == [False] * number + [True] * at_once
    assert len(before) <= 5 + min(LIVE.concurrency, 2 * at_once)
    pauses = [later - at - 0.1 for at, later in pairwise(probes)]
    least = [0.9 * min(30.0, 2.0**n) - 1e-6 for n in range(len(pauses))]
    assert all(pause >= wanted for pause, wanted in zip(pauses, least, strict=True))
    assert max(pauses) < 31, "recovery is not waited for any longer"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [60, 600])
def test_for_datasets_a_busy_server_loses_no_row(rows: int) -> None:
    """The server refuses more than eight requests at a time, and does not say for how long."""
    under_way = [0]

    async def use(server: Server) -> list[str | Exception]:
        async def send() -> str:
            under_way[0] += 1
            is_too_much = under_way[0] > 8
            try:
                await asyncio.sleep(0.1)
            finally:
                under_way[0] -= 1
            if is_too_much:
                raise refusal()
            return "fine"

        calls = (server.endpoint.call(send) for _ in range(rows))
        return list(await asyncio.gather(*calls, return_exceptions=True))  # type: ignore[arg-type]

    results, _ = run(use, limits=Limits())
    assert kinds(results) == {"fine"}


def test_for_datasets_a_server_that_refuses_everything_is_given_up() -> None:
    """The number of requests is bounded, though refusals of many at a time use up no retry."""
    results, server = run(lambda s: s.ask_many(64), lambda _: refusal(), Limits())
    assert kinds(results) == {"JudgeRateLimitError"}
    assert len(server.at) <= 64 * 4 + 2 * 64


def test_nobody_waits_for_a_probe_with_a_wrong_key() -> None:
    """Requests fail at once; a probe after half a minute finds out that the key is right now."""

    async def use(server: Server) -> list[str | Exception]:
        found = []
        with scope(deadline=deadline_after(90, clock=server.clock)):
            for pause in (0, 1, 30):
                await asyncio.sleep(pause)
                found.append(await server.ask())
        return found

    error = errors.JudgeAuthError("401")
    (refused, unsent, after), server = run(use, lambda now: error if now < 20 else None)
    assert (refused, after, server.at) == (error, "fine", pytest.approx([0, 31.1]))
    assert str(unsent).startswith("not asked: 1 requests failed in a row; next try in 2")


def test_a_request_that_waits_for_a_probe_in_vain_says_so() -> None:
    """It has the reason circuit_open shortly before the deadline of its turn, not a timeout."""

    async def use(server: Server) -> tuple[str | Exception, float]:
        await server.ask_many(5)
        server.seconds = 1000.0
        probe = asyncio.ensure_future(server.ask())
        await asyncio.sleep(1)
        with scope(deadline=deadline_after(20, clock=server.clock)):
            found = await server.ask(), server.clock()
        probe.cancel()
        return found

    limits = Limits(retries=0, failures=5, timeout=None)
    error = errors.JudgeTransportError("down")
    (result, now), _ = run(use, lambda now: error if now < 1 else None, limits)
    assert (type(result), now) == (errors.JudgeUnavailableError, pytest.approx(20.95, abs=0.051))


def test_unusable_replies_open_the_breaker() -> None:
    """A judge that answers in prose costs five requests; its replies are still returned."""

    async def use(server: Server) -> list[str | Exception]:
        return [await server.ask(is_usable=lambda _: False) for _ in range(20)]

    results, server = run(use)
    assert (results.count("fine"), len(server.at)) == (5, 5)
    assert server.ended == {"unparsable": 5}


@pytest.mark.parametrize("seconds", [0.5, 5])
def test_requests_that_run_out_of_time_open_the_breaker(seconds: float) -> None:
    """A judge that hangs is found out by the deadlines of turns, even if they are short."""

    async def use(server: Server) -> None:
        server.seconds = 1e6
        for _ in range(20):
            with scope(deadline=deadline_after(seconds, clock=server.clock)):
                await server.ask()

    _, server = run(use)
    assert len(server.at) <= 5 + 4, "the probes after 0.5, 1, 2 and 4 s"
    assert (server.endpoint.breaker.is_open, set(server.ended)) == (True, {"timeout"})


def test_a_slow_server_whose_turns_run_out_of_time_is_not_taken_for_a_broken_one() -> None:
    """Sixteen turns at once send requests until their deadline, which cuts off all last ones."""

    async def turn(server: Server, begin: float) -> list[str | Exception]:
        found = list[str | Exception]()
        await asyncio.sleep(begin)
        with scope(deadline=deadline_after(8.0, clock=server.clock)):
            while not found or not isinstance(found[-1], Exception):
                found.append(await server.ask())
        return found

    async def use(server: Server) -> list[str | Exception]:
        server.seconds = 3.0
        found = list[str | Exception]()
        for _ in range(3):
            for of_turn in await asyncio.gather(*[turn(server, i / 16) for i in range(16)]):
                found += of_turn
        return found

    results, server = run(use)
    assert kinds(results) == {"fine", "JudgeTimeoutError"}
    assert (server.endpoint.breaker.failures, server.ended["timeout"]) == (0, 48)


def test_each_outage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Two outages an hour apart give two lines each, without what the server said."""

    async def use(server: Server) -> None:
        for _ in range(2):
            server.outcome = lambda _: errors.JudgeTransportError("HTTP 500: sk-secret")
            await server.ask_many(10)
            await asyncio.sleep(40)
            server.outcome = lambda _: None
            await server.ask()
            await asyncio.sleep(3600)

    with caplog.at_level(logging.WARNING, "rag_eval_otel"):
        run(use, limits=Limits(failures=5, retries=0))
    told = [record.getMessage() for record in caplog.records]
    fails = "rag_eval_otel: the judge m fails (transport, 5 in a row)"
    assert [line.startswith(fails) for line in told] == [True, False] * 2
    assert told[1] == "rag_eval_otel: the judge m answers again"
    assert "sk-secret" not in caplog.text


def test_no_more_requests_than_slots_are_under_way() -> None:
    """Those that wait are sent in order, and the number that waits is no loss."""
    results, server = run(lambda s: s.ask_many(64))
    assert kinds(results) == {"fine"}
    assert max(server.at.count(at) for at in server.at) == 16


def test_a_request_that_gets_no_slot_in_time_is_not_sent() -> None:
    """It says so, and gives its place in the queue up, as one that is cancelled does."""

    async def use(server: Server) -> tuple[str | Exception, str | Exception]:
        server.seconds = 25.0
        running = asyncio.ensure_future(server.ask())
        await asyncio.sleep(0)
        cancelled = asyncio.ensure_future(server.ask())
        late = await server.ask()
        cancelled.cancel()
        await running
        return late, await server.ask()

    (late, after), _ = run(use, limits=Limits(concurrency=1, patience=10.0))
    assert str(late) == "not sent: 1 other requests were under way"
    assert (type(late), late.requests, after) == (errors.JudgeTimeoutError, 0, "fine")


def test_closed_event_loops_are_forgotten() -> None:
    """A program may call an endpoint in any number of event loops, one after the other."""
    endpoint = Endpoint("judge m")
    for _ in range(3):
        asyncio.run(endpoint.call(lambda: asyncio.sleep(0)))
    assert len(endpoint._slots) == 1  # noqa: SLF001


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_anew() -> None:
    """The parent's open breaker is not the child's."""
    _, server = run(lambda s: s.ask_many(20), lambda _: errors.JudgeTransportError("down"))
    assert server.endpoint.breaker.is_open
    pid = os.fork()
    if pid == 0:
        os._exit(server.endpoint.breaker.is_open)
    _, status = os.waitpid(pid, 0)
    assert status == 0


def foreign(status: int | None = None, name: str = "ForeignError", **more: object) -> Exception:
    """Return an error of a client library."""
    error: Exception = type(name, (RuntimeError,), {})()
    vars(error).update(more, status_code=status)
    return error


AWS = {"ResponseMetadata": {"HTTPStatusCode": 429}}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        *[(foreign(status), "internal") for status in (None, 399)],
        *[(foreign(status), "bad_request") for status in (400, 422, 499)],
        *[(foreign(status), "unauthorized") for status in (401, 403)],
        *[(foreign(status), "transport") for status in (500, 503)],
        (foreign(404), "not_found"),
        (foreign(408), "timeout"),
        (foreign(429), "rate_limited"),
        (foreign(name="NoCredentialsError"), "unauthorized"),
        (foreign(name="ConnectFailed"), "transport"),
        (foreign(name="ClientError", response=AWS), "rate_limited"),
        (asyncio.CancelledError(), "cancelled"),
        (TimeoutError(), "timeout"),
        (errors.JudgeTooLongError("too long"), "bad_request"),
        (errors.BudgetSpentError("spent"), "cancelled"),
        (ConnectionResetError(), "transport"),
    ],
)
def test_errors_of_other_libraries_have_their_outcome(error: BaseException, outcome: str) -> None:
    """By status, by class or by name."""
    assert outcome_of(error) == outcome


@pytest.mark.parametrize(
    ("error", "at", "lines"),
    [
        (refusal(), 0.65, 0),
        (refusal(1), 1.2, 1),
        (refusal(100), 101.1, 1),
        (refusal(1e6), 86_401.1, 1),
        (foreign(503, response=SimpleNamespace(headers={"retry-after": "5"})), 5.6, 1),
    ],
    ids=str,
)
def test_a_refusal_pauses_all_callers(
    error: Exception, at: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """For the time that the server says, a day at most, or half a second, and a tenth more."""
    limits = Limits(retries=0, patience=1e6)
    fails = lambda now: error if now < 0.1 else None  # noqa: E731
    _, server = run(lambda s: s.ask_many(2, every=0.2), fails, limits, draw=1.0)
    assert server.at == pytest.approx([0, at])
    assert caplog.text.count("is over its rate limit") == lines


@pytest.mark.parametrize(("patience", "at"), [(10.8, [0]), (11.0, [0, 11.1])])
def test_a_pause_is_not_waited_for_beyond_the_patience(patience: float, at: list[float]) -> None:
    """The request fails at once, and says how long the pause is."""
    limits, fails = Limits(retries=0, patience=patience), lambda _: refusal(10)
    (_, found), server = run(lambda s: s.ask_many(2, every=0.2), fails, limits, draw=1.0)
    told = "not sent: the server refuses requests (429); next try in 11 s"
    assert (str(found) == told, server.at) == (len(at) == 1, pytest.approx(at))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:57 GMT"}, 20),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:17 GMT"}, 0),
        ({"retry-after": "Sun, 99 Nov 1994 08:49:57 GMT"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    """A date is compared with the clock; what cannot be read is no pause."""
    assert retry_after(headers, now=lambda: 784111777.0) == seconds


def test_the_log_is_written_without_the_lock_of_the_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log handler of the application that waits for a thread that reads the state hangs not."""
    found: list[bool] = []

    async def use(server: Server) -> None:
        def read() -> bool:
            with server.endpoint._lock:  # noqa: SLF001
                return server.endpoint.breaker.is_open

        def look(*_: object) -> None:
            found.append(pool.submit(read).result(5))

        monkeypatch.setattr(server.endpoint._log, "write", look)  # noqa: SLF001
        await server.ask_many(5)

    with ThreadPoolExecutor(1) as pool:
        run(use, lambda _: errors.JudgeAuthError("401"))
    assert found == [True]


def failing(breaker: Breaker, times: int, outcome: Outcome = "transport") -> list[str | None]:
    return [breaker.ended(outcome, is_probe=breaker.is_open, now=0, draw=0.5) for _ in range(times)]


@pytest.mark.parametrize(("outcome", "failures_left"), [("bad_request", 3), ("cancelled", 1)])
def test_what_opens_no_breaker(outcome: Outcome, failures_left: int) -> None:
    """A server that refuses a text answers, which ends an outage; a cancellation says nothing."""
    breaker = Breaker(OPENING)
    failing(breaker, 50, outcome)
    failing(breaker, 2)
    failing(breaker, 1, outcome)
    assert failing(breaker, failures_left) == [*[None] * (failures_left - 1), "opened"]


@pytest.mark.parametrize("outcome", ["ok", "bad_request"])
def test_one_answer_closes_a_breaker(outcome: Outcome) -> None:
    """A request that was sent earlier shows that the server runs, though the probe may hang."""
    breaker = Breaker(OPENING)
    failing(breaker, 3)
    breaker.is_probing = True
    assert breaker.wait(1) > 0
    assert breaker.ended(outcome, is_probe=False, now=0.1, draw=0.0) == "closed"
    assert (breaker.is_open, breaker.failures, breaker.wait(0.1)) == (False, 0, 0)


def test_probes_have_jitter() -> None:
    """Each failed probe doubles the time until the next, of which a draw takes up to a tenth."""
    breaker, waits = Breaker(OPENING), list[float]()
    failing(breaker, 2)
    for _ in range(8):
        failing(breaker, 1)
        waits.append(breaker.wait(0))
    assert waits == pytest.approx([0.475, 0.95, 1.9, 3.8, 7.6, 15.2, 28.5, 28.5])
    assert failing(breaker, 1, "ok") + failing(breaker, 3) == ["closed", None, None, "opened"]
    assert (breaker.wait(0), breaker.is_passing) == (0.475, True)


@pytest.mark.parametrize(("outcome", "failures"), [("unauthorized", 1), ("not_found", 3)])
def test_what_no_wait_helps(outcome: Outcome, failures: int) -> None:
    """The first probe comes as late as any; without a breaker, a wrong key opens none."""
    breaker = Breaker(OPENING)
    assert failing(breaker, failures, outcome) == [*[None] * (failures - 1), "opened"]
    assert (breaker.wait(0), breaker.is_passing) == (28.5, False)
    assert failing(Breaker(Limits()), 50, outcome) == [None] * 50
