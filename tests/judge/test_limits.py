"""An endpoint: retries, shared pauses, the breaker and its log, on a virtual clock."""

import asyncio
import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from rag_eval_otel import errors
from rag_eval_otel.judge.limits import Breaker, Endpoint, Limits, Outcome, outcome_of, retry_after
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
    ) -> None:
        self.clock = clock
        self.outcome = outcome
        self.at: list[float] = []
        self.seconds = 0.1
        self.endpoint = Endpoint("judge m", limits, clock=clock, draw=random.Random(3).random)
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


def run(
    use: Callable[[Server], Awaitable[T]],
    outcome: Callable[[float], BaseException | None] = lambda _: None,
    limits: Limits = LIVE,
) -> tuple[T, Server]:
    servers: list[Server] = []

    async def main(clock: Callable[[], float]) -> T:
        servers.append(Server(clock, outcome, limits))
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


def test_retries_end_after_their_number_with_growing_back_offs() -> None:
    """Four attempts; the pauses are at most 0.5, 1 and 2 s."""
    result, server = run(lambda s: s.ask(), lambda _: errors.JudgeTransportError("500"))
    assert isinstance(result, errors.JudgeTransportError)
    assert len(server.at) == 4
    waits = [later - at - 0.1 for at, later in pairwise(server.at)]
    assert all(0 <= wait <= most for wait, most in zip(waits, (0.5, 1.0, 2.0), strict=True))


def test_no_retry_sleeps_past_the_deadline() -> None:
    """A request with little time left fails with its error, at once."""

    async def use(server: Server) -> tuple[object, float]:
        with scope(deadline=deadline_after(0.11, clock=server.clock)):
            return await server.ask(), server.clock()

    (result, now), server = run(use, lambda _: errors.JudgeTransportError("500"))
    assert isinstance(result, errors.JudgeTransportError)
    assert (len(server.at), now) == (1, pytest.approx(0.1))


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
        for _ in range(31):
            with scope(deadline=deadline_after(60, clock=server.clock)):
                found.append(await server.ask())
            await asyncio.sleep(1)
        return found

    results, server = run(use, lambda now: errors.JudgeAuthError("401") if now < 20 else None)
    assert len([at for at in server.at if at < 20]) == 1
    assert 27 <= server.at[1] <= 31
    assert kinds(results) == {"JudgeAuthError", "JudgeUnavailableError", "fine"}


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
    (result, now), _ = run(
        use, lambda now: errors.JudgeTransportError("down") if now < 1 else None, limits
    )
    assert isinstance(result, errors.JudgeUnavailableError)
    assert 20.9 < now < 21.1


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

    async def turn(server: Server) -> list[str | Exception]:
        found = list[str | Exception]()
        with scope(deadline=deadline_after(8.0, clock=server.clock)):
            while not found or not isinstance(found[-1], Exception):
                found.append(await server.ask())
        return found

    async def use(server: Server) -> list[str | Exception]:
        server.seconds = 3.0
        found = list[str | Exception]()
        for _ in range(3):
            for of_turn in await asyncio.gather(*[turn(server) for _ in range(16)]):
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
    assert [
        line.startswith("rag_eval_otel: the judge m fails (transport, 5 in a row)") for line in told
    ] == [True, False] * 2
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
    assert isinstance(late, errors.JudgeTimeoutError)
    assert late.requests == 0
    assert "not sent" in str(late)
    assert after == "fine"


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


class ForeignError(Exception):
    """An error of a client library, with a status."""

    def __init__(self, status: int | None, headers: dict[str, str] | None = None) -> None:
        self.status_code = status
        self.response = type("Response", (), {"headers": headers or {}})()


def known_by_name(name: str, **attributes: object) -> Exception:
    error: Exception = type(name, (Exception,), {})()
    vars(error).update(attributes)
    return error


AWS = {"ResponseMetadata": {"HTTPStatusCode": 429}}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ForeignError(401), "unauthorized"),
        (ForeignError(404), "not_found"),
        (ForeignError(422), "bad_request"),
        (ForeignError(429), "rate_limited"),
        (ForeignError(None), "internal"),
        (known_by_name("NoCredentialsError"), "unauthorized"),
        (asyncio.CancelledError(), "cancelled"),
        (TimeoutError(), "timeout"),
        (ForeignError(503), "transport"),
        (known_by_name("ClientError", response=AWS), "rate_limited"),
        (known_by_name("ConnectFailed"), "transport"),
        (ConnectionResetError(), "transport"),
    ],
)
def test_errors_of_other_libraries_have_their_outcome(error: BaseException, outcome: str) -> None:
    """By status, by class or by name."""
    assert outcome_of(error) == outcome


def test_a_wrapped_client_pauses_all_callers() -> None:
    """The ``Retry-After`` of another library's error counts, though it is not retried."""

    async def use(server: Server) -> list[object]:
        with pytest.raises(ForeignError):
            await server.endpoint.call(server.reply)
        return [await server.ask(), server.clock()]

    results, _ = run(
        use,
        lambda now: ForeignError(429, {"retry-after": "5"}) if now < 1 else None,
        Limits(retries=0, failures=5),
    )
    assert results[0] == "fine"
    assert isinstance(results[1], float)
    assert results[1] >= 5.2


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
        ({"retry-after": "Sun, 99 Nov 1994 08:49:57 GMT"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    """A date is compared with the clock; what cannot be read is no pause."""
    assert retry_after(headers, now=lambda: 784111777.0) == seconds


def test_the_log_is_written_without_the_lock_of_the_endpoint(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log handler of the application that waits for a thread that reads the state hangs not."""
    found: list[bool] = []

    async def use(server: Server) -> None:
        def read() -> None:
            with server.endpoint._lock:  # noqa: SLF001
                found.append(server.endpoint.breaker.is_open)

        def look(*_: object, **__: object) -> None:
            thread = threading.Thread(target=read, daemon=True)
            thread.start()
            thread.join(5)

        monkeypatch.setattr(server.endpoint._log, "write", look)  # noqa: SLF001
        await server.ask_many(5)

    run(use, lambda _: errors.JudgeAuthError("401"))
    assert found == [True]
    assert not [record for record in caplog.records if record.name == "rag_eval_otel"]


def failing(breaker: Breaker, times: int, outcome: Outcome = "transport") -> list[str | None]:
    return [breaker.ended(outcome, is_probe=breaker.is_open, now=0, draw=0.0) for _ in range(times)]


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
    """Processes that failed together do not come back together."""
    breaker = Breaker(OPENING)
    for _ in range(3):
        breaker.ended("transport", is_probe=False, now=0, draw=0.5)
    assert breaker.wait(0) == pytest.approx(0.475)
