"""An endpoint: retries, shared pauses, the breaker and its log, on a virtual clock."""

import asyncio
import logging
import os
import random
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from rag_eval_otel.errors import (
    JudgeAuthError,
    JudgeError,
    JudgeRateLimitError,
    JudgeRequestError,
    JudgeTimeoutError,
    JudgeTransportError,
    JudgeUnavailableError,
    UnparsableReplyError,
)
from rag_eval_otel.judge.outcomes import outcome_of, retry_after
from rag_eval_otel.judge.protection import AttemptResult, Endpoint, time_limit
from rag_eval_otel.judge.throttling import Limits
from rag_eval_otel.runtime.watchdog import ACTIVITY, Activity
from virtual_time import run_virtually

T = TypeVar("T")
LIVE = Limits(failures=5, patience=10.0, concurrency=16, retry_share=0.1)


def refusal(after: float | None = None) -> JudgeRateLimitError:
    """Return the error for a 429, with the seconds in ``Retry-After``."""
    error = JudgeRateLimitError("HTTP 429")
    error.retry_after = after
    return error


class Server:
    """A server that takes 0.1 s for a reply; ``outcome(time)`` may return an error for a request.

    ``at`` has the times of all requests.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        outcome: Callable[[float], BaseException | None] = lambda _: None,
        limits: Limits = LIVE,
    ) -> None:
        """Serve an endpoint with ``limits``."""
        self.clock = clock
        self.outcome = outcome
        self.at: list[float] = []
        self.seconds = 0.1
        self.endpoint = Endpoint("judge m", limits, clock=clock, draw=random.Random(3).random)

    async def reply(self) -> str:
        """Answer one request."""
        self.at.append(self.clock())
        error = self.outcome(self.clock())
        await asyncio.sleep(self.seconds)
        if error is not None:
            raise error
        return "fine"

    async def ask(self, **options: Any) -> str | Exception:
        """Send one request; return the reply or the error."""
        try:
            return await self.endpoint.call(self.reply, **options)
        except (JudgeError, RuntimeError) as error:
            return error

    async def ask_many(self, number: int, every: float = 0.0) -> list[str | Exception]:
        """Begin a request ``every`` so many seconds; return all results."""
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
    """Run ``use(server)`` in virtual time; return its result and the server."""
    servers: list[Server] = []

    async def main(clock: Callable[[], float]) -> T:
        servers.append(Server(clock, outcome, limits))
        return await use(servers[0])

    return run_virtually(main), servers[0]


def kinds(results: list[str | Exception]) -> set[str]:
    """Return the kinds of results."""
    return {one if isinstance(one, str) else type(one).__name__ for one in results}


# --- retries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [JudgeTransportError("500"), JudgeTimeoutError("slow"), refusal()]
)
def test_a_passing_failure_is_retried(error: JudgeError) -> None:
    """One failure is not noticed, and the retry is counted."""
    failures = [error]
    result, server = run(lambda s: s.ask(), lambda _: failures.pop() if failures else None)
    assert result == "fine"
    assert (len(server.at), server.endpoint.state.retries) == (2, 1)


@pytest.mark.parametrize(
    "error",
    [
        JudgeAuthError("401"),
        JudgeRequestError("400"),
        UnparsableReplyError(""),
        RuntimeError("bug"),
    ],
)
def test_other_failures_are_not_retried(error: Exception) -> None:
    """The same request would fail again."""
    result, server = run(lambda s: s.ask(), lambda _: error)
    assert (result, len(server.at)) == (error, 1)


def test_retries_end_after_their_number_with_growing_back_offs() -> None:
    """Four attempts; the pauses are at most 0.5, 1 and 2 s."""
    result, server = run(lambda s: s.ask(), lambda _: JudgeTransportError("500"))
    assert isinstance(result, JudgeTransportError)
    assert len(server.at) == 4
    waits = [later - at - 0.1 for at, later in pairwise(server.at)]
    assert all(0 <= wait <= most for wait, most in zip(waits, (0.5, 1.0, 2.0), strict=True))


def test_no_retry_sleeps_past_the_deadline() -> None:
    """A request with little time left fails with its error, at once."""

    async def use(server: Server) -> tuple[object, float]:
        with time_limit(0.11, clock=server.clock):
            return await server.ask(), server.clock()

    (result, now), server = run(use, lambda _: JudgeTransportError("500"))
    assert isinstance(result, JudgeTransportError)
    assert (len(server.at), now) == (1, pytest.approx(0.1))


@pytest.mark.slow
@pytest.mark.parametrize(("share", "least"), [(0.1, 0.97), (0.5, 0.5)])
def test_retries_are_at_most_a_tenth_of_first_attempts(share: float, least: float) -> None:
    """With 10 % and with 50 % of server errors, at 20 requests a second for two minutes."""
    draw = random.Random(2)
    error = JudgeTransportError("500")
    limits = Limits(patience=10.0, concurrency=64, retry_share=0.1)
    results, server = run(
        lambda s: s.ask_many(2400, every=0.05),
        lambda _: error if draw.random() < share else None,
        limits,
    )
    state = server.endpoint.state
    assert state.retries == len(server.at) - 2400 <= 240 + 3
    assert results.count("fine") >= least * 2400


def test_for_datasets_every_request_may_be_retried() -> None:
    """With 30 % of server errors, nearly all rows of a dataset are scored, as each has retries."""
    draw = random.Random(2)
    error = JudgeTransportError("500")
    results, server = run(
        lambda s: s.ask_many(400), lambda _: error if draw.random() < 0.3 else None, Limits()
    )
    assert results.count("fine") >= 0.98 * 400
    assert server.endpoint.state.retries > 40


@pytest.mark.slow
@pytest.mark.parametrize("rows", [60, 600])
def test_for_datasets_a_busy_server_gets_fewer_requests_and_no_row_is_lost(rows: int) -> None:
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

    results, server = run(use, limits=Limits())
    assert kinds(results) == {"fine"}
    assert server.endpoint.state.retries == 0


def test_for_datasets_a_server_that_refuses_everything_is_given_up() -> None:
    """The number of requests is bounded, though refusals of many at a time use up no retry."""
    results, server = run(lambda s: s.ask_many(64), lambda _: refusal(), Limits())
    assert kinds(results) == {"JudgeRateLimitError"}
    assert len(server.at) <= 64 * 4 + 2 * 64


# --- pauses ---------------------------------------------------------------------------------------


def test_retry_after_is_one_pause_for_all() -> None:
    """Nobody sends before it is over; the refused requests come again and are no retries."""

    def outcome(now: float) -> BaseException | None:
        return refusal(4.0) if now < 0.1 else None

    results, server = run(lambda s: s.ask_many(40, every=0.02), outcome)
    assert kinds(results) == {"fine"}
    assert not [at for at in server.at if 0.11 < at < 4.1]
    state = server.endpoint.state
    assert (state.retries, state.openings) == (0, 0)
    assert state.returned == state.attempts["rate_limited"] > 0


@pytest.mark.parametrize("seconds", [20.0, 3600.0])
def test_a_long_pause_fails_requests_at_once(seconds: float) -> None:
    """A request that cannot wait for the end of the pause says rate_limited, without waiting."""

    async def use(server: Server) -> tuple[list[str | Exception], float]:
        results = await server.ask_many(30)
        results += await server.ask_many(10)
        return results, server.clock()

    (results, now), server = run(use, lambda _: refusal(seconds))
    assert kinds(results) == {"JudgeRateLimitError"}
    assert now < 1
    assert len(server.at) == 16, "those that were under way"
    assert server.endpoint.state.pause >= seconds - 1
    assert server.endpoint.state.not_sent["rate_limited"] > 0


def test_a_429_without_a_time_pauses_all_with_growing_back_offs() -> None:
    """A server that always says 429 without a time gets few requests, until the breaker opens."""
    results, server = run(lambda s: s.ask_many(600, every=0.1), lambda _: refusal())
    assert len(server.at) < 16 + 30
    state = server.endpoint.state
    assert state.retries <= 6
    assert state.openings == 1
    assert kinds(results) <= {"JudgeRateLimitError", "JudgeUnavailableError"}


def test_requests_under_way_together_are_one_refusal() -> None:
    """Sixteen refusals at once are one event: the limit is halved once, the breaker stays shut."""
    _, server = run(lambda s: s.ask_many(16), lambda now: refusal(1.0) if now < 0.1 else None)
    assert 8 <= server.endpoint.state.limit <= 9
    assert server.endpoint.state.openings == 0


def test_the_limit_a_minute_makes_requests_wait_or_fail() -> None:
    """Ten a minute: ten go at once, the others cannot wait so long; nothing is sent in vain."""
    limits = Limits(requests_per_minute=10, patience=10.0, failures=5)
    results, server = run(lambda s: s.ask_many(30), limits=limits)
    assert (results.count("fine"), len(server.at)) == (10, 10)
    assert kinds(results) == {"fine", "JudgeRateLimitError"}

    async def patient(server: Server) -> list[str | Exception]:
        return await server.ask_many(30)

    results, server = run(patient, limits=Limits(requests_per_minute=10, patience=300.0))
    assert kinds(results) == {"fine"}
    assert [round(at) for at in server.at] == [0] * 10 + [60] * 10 + [120] * 10


def test_a_request_that_waits_for_its_minute_also_waits_for_a_new_pause() -> None:
    """A 429 that comes while a request waits for the limiter holds for this request, too."""

    async def use(server: Server) -> list[float]:
        server.seconds = 55.0
        first = asyncio.ensure_future(server.ask())
        await asyncio.sleep(0)
        await asyncio.gather(first, server.ask())
        return server.at

    limits = Limits(requests_per_minute=1, patience=500.0, timeout=None, retries=0)
    at, _ = run(use, lambda now: refusal(20.0) if now < 1 else None, limits)
    assert len(at) == 2
    assert at[1] >= 75


# --- the breaker ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        JudgeTransportError("down"),
        JudgeTimeoutError("hangs"),
        UnparsableReplyError("prose"),
        RuntimeError("of a library"),
    ],
)
def test_an_outage_costs_five_failures_in_a_row(error: Exception) -> None:
    """One request after the other: five are sent, then none, and the error says why."""

    async def use(server: Server) -> list[str | Exception]:
        return [await server.ask() for _ in range(50)]

    results, server = run(use, lambda _: error)
    assert len(server.at) == 5
    assert isinstance(results[-1], JudgeUnavailableError)
    assert results[-1].requests == 0
    assert "failed in a row; next try in" in str(results[-1])


@pytest.mark.slow
def test_an_outage_costs_what_is_under_way_and_then_a_probe_each() -> None:
    """Ten minutes at 20 requests a second: what is under way, few retries, and five probes."""

    async def use(server: Server) -> list[str | Exception]:
        return await server.ask_many(20 * 660, every=0.05)

    results, server = run(use, lambda now: JudgeTransportError("down") if 10 < now < 610 else None)
    down = [at for at in server.at if 10 < at < 610]
    before, probes = [at for at in down if at < 15], [at for at in down if at > 15]
    assert len(before) <= 5 + 16
    gaps = [later - at for at, later in pairwise(probes)]
    assert len(probes) <= 5
    assert all(gap >= 60 for gap in gaps)
    state = server.endpoint.state
    assert (state.breaker, state.openings) == ("open" if results[-1] != "fine" else "closed", 1)


def test_a_probe_that_succeeds_lets_all_through() -> None:
    """While the probe is under way other requests are refused."""

    async def use(server: Server) -> list[list[str | Exception]]:
        first = await server.ask_many(5)
        await asyncio.sleep(34)
        return [first, await server.ask_many(3), await server.ask_many(20)]

    limits = Limits(retries=0, failures=5)
    (_, probing, after), server = run(
        use, lambda now: JudgeTransportError("down") if now < 30 else None, limits
    )
    assert kinds(probing) == {"fine", "JudgeUnavailableError"}
    assert probing.count("fine") == 1
    assert kinds(after) == {"fine"}
    assert server.endpoint.state.breaker == "closed"


def test_texts_that_are_too_long_do_not_open_the_breaker() -> None:
    """Other turns are still scored."""
    results, server = run(lambda s: s.ask_many(50), lambda _: JudgeRequestError("too long"))
    assert len(server.at) == 50
    assert kinds(results) == {"JudgeRequestError"}


def test_unusable_replies_open_the_breaker() -> None:
    """A judge that answers in prose costs five requests; its replies are still returned."""

    async def use(server: Server) -> list[str | Exception]:
        return [await server.ask(is_usable=lambda _: False) for _ in range(20)]

    results, server = run(use)
    assert (results.count("fine"), len(server.at)) == (5, 5)
    assert server.endpoint.state.attempts == {"unparsable": 5}


def test_requests_that_run_out_of_time_open_the_breaker() -> None:
    """A judge that hangs is found out by the turn's deadline too, even if the caller cancels."""

    async def use(server: Server) -> None:
        server.seconds = 1e6
        for _ in range(20):
            with time_limit(5, clock=server.clock):
                await server.ask()

    _, server = run(use)
    assert (len(server.at), server.endpoint.state.attempts) == (5, {"timeout": 5})


def test_an_attempt_that_began_too_late_is_no_failure() -> None:
    """A judge that takes 2 s is not down because turns have a second left when they ask it."""

    async def use(server: Server) -> None:
        server.seconds = 2.0
        await server.ask()
        for _ in range(20):
            with time_limit(1, clock=server.clock):
                await server.ask()

    _, server = run(use)
    assert (len(server.at), server.endpoint.state.openings) == (21, 0)
    assert server.endpoint.state.attempts == {"ok": 1, "cancelled": 20}


def test_each_outage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Two outages an hour apart give two lines each, without what the server said."""

    async def use(server: Server) -> None:
        for _ in range(2):
            server.outcome = lambda _: JudgeTransportError("HTTP 500: sk-secret")
            await server.ask_many(10)
            await asyncio.sleep(40)
            server.outcome = lambda _: None
            await server.ask()
            await asyncio.sleep(3600)

    with caplog.at_level(logging.WARNING, "rag_eval_otel"):
        run(use, limits=Limits(failures=5, retries=0))
    told = [record.getMessage() for record in caplog.records]
    assert [line.startswith("the judge m fails (transport, 5 in a row)") for line in told] == [
        True,
        False,
    ] * 2
    assert told[1] == "the judge m answers again"
    assert "sk-secret" not in caplog.text


# --- places ---------------------------------------------------------------------------------------


def test_no_more_requests_than_slots_are_under_way() -> None:
    """Those that wait are sent in order, and the number that waits is no loss."""
    results, server = run(lambda s: s.ask_many(64))
    assert kinds(results) == {"fine"}
    assert max(server.at.count(at) for at in server.at) == 16
    assert server.endpoint.state.in_flight == 0


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

    (late, after), server = run(use, limits=Limits(concurrency=1, patience=10.0))
    assert isinstance(late, JudgeTimeoutError)
    assert late.requests == 0
    assert "not sent" in str(late)
    assert (after, server.endpoint.state.in_flight) == ("fine", 0)


def test_slots_are_shared_by_threads() -> None:
    """Requests of several event loops wait for each other, and all are sent in the end."""
    import threading  # noqa: PLC0415

    endpoint = Endpoint("judge m", Limits(concurrency=2, timeout=None))
    lock, under_way, most, done = threading.Lock(), [0], [0], [0]

    async def send() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        await asyncio.sleep(0)
        with lock:
            under_way[0] -= 1
            done[0] += 1

    async def use() -> None:
        await asyncio.gather(*(endpoint.call(send) for _ in range(5)))

    threads = [threading.Thread(target=asyncio.run, args=(use(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (done[0], endpoint.state.in_flight) == (40, 0)
    assert most[0] <= 8


# --- what others see ------------------------------------------------------------------------------


def test_the_state_and_the_attempts_can_be_observed() -> None:
    """Counts by outcome and latency for gauges, and each attempt for a histogram."""
    seen: list[AttemptResult] = []

    async def use(server: Server) -> None:
        server.endpoint.observers.append(seen.append)
        await server.ask_many(3)

    _, server = run(use)
    state = server.endpoint.state
    assert (state.name, state.attempts, state.breaker) == ("judge m", {"ok": 3}, "closed")
    assert state.latency == pytest.approx(0.1)
    assert (state.pause, state.not_sent) == (0, {})
    assert [(one.endpoint, one.outcome) for one in seen] == [("judge m", "ok")] * 3
    assert seen[0].seconds == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_anew() -> None:
    """The parent's open breaker and its requests under way are not the child's."""
    _, server = run(lambda s: s.ask_many(20), lambda _: JudgeTransportError("down"))
    assert server.endpoint.state.breaker == "open"
    pid = os.fork()
    if pid == 0:
        state = server.endpoint.state
        os._exit(0 if (state.breaker, state.attempts) == ("closed", {}) else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0


# --- errors of other libraries --------------------------------------------------------------------


class ForeignError(Exception):
    """An error of a client library, with a status."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Have the status and headers of a response."""
        self.status_code = status
        self.response = type("Response", (), {"headers": headers or {}})()


class ReadTimeout(Exception):  # noqa: N818  # as other libraries name it
    """An error of an HTTP library, known by its name."""


class ConnectFailed(Exception):  # noqa: N818
    """An error of an HTTP library, known by its name."""


class AwsError(Exception):
    """An error of botocore."""

    response = {"ResponseMetadata": {"HTTPStatusCode": 429}}  # noqa: RUF012


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ForeignError(400), "bad_request"),
        (ForeignError(401), "unauthorized"),
        (ForeignError(404), "not_found"),
        (ForeignError(429), "rate_limited"),
        (ForeignError(503), "transport"),
        (AwsError(), "rate_limited"),
        (ReadTimeout(), "timeout"),
        (ConnectFailed(), "transport"),
        (ConnectionResetError(), "transport"),
        (ValueError(), "internal"),
    ],
)
def test_errors_of_other_libraries_have_their_outcome(error: Exception, outcome: str) -> None:
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
        ({"retry-after": "3", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:57 GMT"}, 20),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0),
        (
            {
                "retry-after": "Sun, 06 Nov 1994 09:00:00 GMT",
                "date": "Sun, 06 Nov 1994 08:59:00 GMT",
            },
            60,
        ),
        ({"retry-after": "Sun, 99 Nov 1994 08:49:57 GMT"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    """A date is compared with the server's own clock, if it tells the time."""
    assert retry_after(headers, now=lambda: 784111777.0) == seconds


# --- event loops that are abandoned ---------------------------------------------------------------


@pytest.mark.parametrize("late", ["never", "fails"])
def test_an_abandoned_event_loop_takes_no_slots_along(late: str) -> None:
    """The requests of the loop that is blocked are forgotten, also if they end after all."""
    limits = Limits(failures=5, concurrency=2, patience=1.0, timeout=None, retries=0)

    async def use(server: Server) -> tuple[object, ...]:
        old, gate = Activity(set()), asyncio.Event()

        async def stuck() -> str:
            await gate.wait()
            raise refusal()

        token = ACTIVITY.set(old)
        calls = [asyncio.ensure_future(server.endpoint.call(stuck)) for _ in range(5)]
        ACTIVITY.reset(token)
        await asyncio.sleep(0.1)
        assert server.endpoint.state.in_flight == 2
        for forget in old.on_abandoned:
            forget()
        fine = await server.ask_many(4)
        if late == "fails":
            gate.set()
            await asyncio.gather(*calls, return_exceptions=True)
        for call in calls:
            call.cancel()
        return *fine, server.endpoint.state.in_flight, server.endpoint.state.breaker

    result, server = run(use, limits=limits)
    assert result == ("fine",) * 4 + (0, "closed")
    assert server.endpoint._breaker.failures == 0  # noqa: SLF001


def test_a_probe_on_an_abandoned_event_loop_is_not_waited_for() -> None:
    """The breaker asks again by the next request, and closes when the server is well."""
    failures = [JudgeTransportError("503")] * 5

    async def use(server: Server) -> tuple[object, ...]:
        await server.ask_many(5)
        await asyncio.sleep(40)
        activity, never = Activity(set()), asyncio.Event()

        async def stuck() -> str:
            await never.wait()
            return "late"

        token = ACTIVITY.set(activity)
        probe = asyncio.ensure_future(server.endpoint.call(stuck))
        ACTIVITY.reset(token)
        await asyncio.sleep(0.1)
        state = server.endpoint.state.breaker
        for forget in activity.on_abandoned:
            forget()
        found = await server.ask()
        probe.cancel()
        return state, found, server.endpoint.state.breaker

    limits = Limits(failures=5, retries=0, timeout=None)
    result, _ = run(use, lambda _: failures.pop() if failures else None, limits)
    assert result == ("half_open", "fine", "closed")


def test_requests_that_are_cancelled_while_they_wait_for_the_same_time_keep_no_slot() -> None:
    """Requests of one size often wait for the same time; each gives its own place back."""

    async def use(server: Server) -> int:
        await server.ask(tokens=100)
        calls = [asyncio.ensure_future(server.ask(tokens=10)) for _ in range(4)]
        await asyncio.sleep(0.1)
        for call in reversed(calls):
            call.cancel()
            await asyncio.sleep(0)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {asyncio.CancelledError}
        return server.endpoint.state.in_flight

    limits = Limits(tokens_per_minute=100, concurrency=8)
    assert run(use, limits=limits)[0] == 0


def test_requests_that_are_cancelled_keep_no_place_in_the_limiter() -> None:
    """Twenty clients that hang up while they wait do not make the next one wait ten minutes."""

    async def use(server: Server) -> float:
        await server.ask_many(2)
        calls = [asyncio.ensure_future(server.ask()) for _ in range(20)]
        await asyncio.sleep(1)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await server.ask()
        return server.clock()

    now, server = run(use, limits=Limits(requests_per_minute=2, patience=1000, timeout=None))
    assert now == pytest.approx(60, abs=1)
    assert len(server.at) == 3


def test_the_log_is_written_without_the_lock_of_the_endpoint(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log handler of the application that waits for a thread that reads the state hangs not."""
    found: list[bool] = []

    async def use(server: Server) -> None:
        def look(*_: object, **__: object) -> None:
            thread = threading.Thread(
                target=lambda: found.append(server.endpoint.state.breaker == "open"), daemon=True
            )
            thread.start()
            thread.join(5)

        monkeypatch.setattr(server.endpoint._log, "write", look)  # noqa: SLF001
        await server.ask_many(5)

    run(use, lambda _: JudgeAuthError("401"))
    assert found == [True]
    assert not caplog.records
