"""`Endpoint`: send the requests to one judge or embedder, and limit what an outage of it costs.

An endpoint decides for each request when it is sent, and whether it is sent again:

- Server errors, refusals with status 429, time-outs and connection errors are retried with
  exponential back-off and full jitter, before the deadline of the turn. A *retry budget* allows as
  many retries as first attempts in a minute.
- ``Retry-After`` is one pause for all callers. A request that gets 429 with ``Retry-After`` is sent
  again after the pause, and this does not count as a retry.
- A *circuit breaker* opens when the last attempts, five in live scoring, all failed. While it is
  open, one *probe* at a time is sent, and the other requests wait for its success. One success
  closes the breaker.

An endpoint may be used from several threads and event loops.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

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
from rag_eval_otel.log import class_name
from rag_eval_otel.providers import Part
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import LimitedLog
from rag_eval_otel.types import Replies

T = TypeVar("T")
Clock: TypeAlias = Callable[[], float]
BreakerState: TypeAlias = Literal["closed", "open"]

_MINUTE, _DAY = 60.0, 86_400.0
_RETRIED = frozenset({"rate_limited", "timeout", "transport"})
_LASTING = frozenset({"unauthorized", "not_found", "unparsable"})  # no wait helps
_BACK_OFF, _LONGEST_BACK_OFF = 0.5, 8.0  # seconds, before jitter
_PROBE, _LONGEST_PROBE = 0.5, 30.0  # seconds until a probe; each failed probe doubles them
_FREE_RETRIES = 3  # retries a minute that are allowed even if there were few first attempts
_SLOW = 2.0  # a request that takes so many times as long as usual has timed out
_LATE = 0.05  # seconds; so long before its deadline, a request has timed out, or is given up
_JITTER = 0.1  # largest part that is added to a pause, or taken from the time until a probe
_RECENT = 0.2  # weight of a reply in the mean latency
_RANDOM = random.SystemRandom()  # the global generator is seeded by applications


# --- how attempts end -----------------------------------------------------------------------------

Outcome: TypeAlias = Literal[
    "ok",
    "bad_request",
    "cancelled",
    "internal",
    "not_found",
    "rate_limited",
    "timeout",
    "transport",
    "unauthorized",
    "unparsable",
]
"""How an attempt ended. ``bad_request`` is a refusal of the request's content (400, 413, 422)."""

_STATUS: Mapping[int, Outcome] = {
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    408: "timeout",
    429: "rate_limited",
}
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_KINDS: tuple[tuple[type[BaseException], Outcome], ...] = (
    (asyncio.CancelledError, "cancelled"),
    (JudgeUnavailableError, "cancelled"),  # the budget is spent: nothing was sent
    (asyncio.TimeoutError, "timeout"),
    (JudgeTimeoutError, "timeout"),
    (JudgeAuthError, "unauthorized"),
    (JudgeRateLimitError, "rate_limited"),
    (JudgeRequestError, "bad_request"),
    (UnparsableReplyError, "unparsable"),
    (JudgeTransportError, "transport"),
    (TimeoutError, "timeout"),
    (ConnectionError, "transport"),
)


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of an attempt that raised ``error``, of this or of another library."""
    status = status_of(error)
    if status is not None and status >= _CLIENT_ERROR:
        other: Outcome = "transport" if status >= _SERVER_ERROR else "bad_request"
        return _STATUS.get(status, other)
    for kind, outcome in _KINDS:
        if isinstance(error, kind):
            return outcome
    # By name, because the errors of the client libraries have no base class in common.
    kinds = " ".join(map(class_name, type(error).__mro__))
    if "Timeout" in kinds:
        return "timeout"
    if "Credentials" in kinds:
        return "unauthorized"
    return "transport" if "Connect" in kinds else "internal"


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in ``error``, of this library, an HTTP client or botocore, or None."""
    response = _attribute(error, "response")
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    statuses = [_attribute(error, name) for name in ("status", "status_code")]
    statuses.append(metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None)
    return next((status for status in statuses if isinstance(status, int)), None)


def _attribute(error: BaseException | None, name: str) -> Any:
    """Return an attribute that was set, or None; code of ``error``, as a property, is not run."""
    return getattr(error, "__dict__", {}).get(name)


def retry_after_of(error: BaseException | None) -> float | None:
    """Return the seconds that the server, in ``error``, asks to wait; None if it does not."""
    seconds = _attribute(error, "retry_after")
    if isinstance(seconds, int | float):
        return float(seconds)
    headers = getattr(_attribute(error, "response"), "headers", None)
    return retry_after(headers) if isinstance(headers, Mapping) else None


def retry_after(
    headers: Mapping[str, str], *, now: Callable[[], float] = time.time
) -> float | None:
    """Return the seconds in the ``headers`` ``retry-after-ms`` or ``Retry-After``, at least 0.

    An HTTP date is compared with the header ``Date``, or else with ``now()`` (Unix time).
    """
    found = _seconds(headers.get("retry-after-ms"))
    if found is not None:
        return found / 1000
    told = headers.get("retry-after")
    found = _seconds(told)
    if found is not None or told is None:
        return found
    until, sent = _date(told), _date(headers.get("date"))
    return None if until is None else max(0.0, until - (now() if sent is None else sent))


def _seconds(told: str | None) -> float | None:
    try:
        found = float(told or "")
    except (ValueError, TypeError):  # an exception of a user may have any headers
        return None
    return max(0.0, found) if math.isfinite(found) else None


def _date(told: str | None) -> float | None:
    try:
        return None if told is None else parsedate_to_datetime(told).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None


def is_usable(replies: Replies) -> bool:
    """Return True if at least one part of ``replies`` fits its task, or if there are no parts."""
    bad = [isinstance(part, UnparsableReplyError) for part in replies.parts]
    return not (bad and all(bad))


# --- deadlines ------------------------------------------------------------------------------------

_deadline: ContextVar[float] = ContextVar("rag_eval_otel_deadline", default=math.inf)


@contextmanager
def time_limit(seconds: float | None, *, clock: Clock = time.monotonic) -> Iterator[None]:
    """Let requests that are begun in this context end within ``seconds``; None: no new limit.

    Within another `time_limit`, the earlier deadline counts. No endpoint waits past the deadline.
    """
    until = math.inf if seconds is None else clock() + seconds
    with with_deadline(min(until, _deadline.get())):
        yield


def deadline() -> float:
    """Return the time at which requests that are begun in this context must end; infinity: none."""
    return _deadline.get()


@contextmanager
def with_deadline(until: float) -> Iterator[None]:
    """Let requests that are begun in this context end at ``until``, whatever the deadline was."""
    token = _deadline.set(until)
    try:
        yield
    finally:
        _deadline.reset(token)


# --- what decides whether a request may be sent ---------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an `Endpoint`.

    - ``retries``: the maximum number of retries of a request.
    - ``timeout``: the maximum seconds of an attempt; None: only the turn's deadline counts.
    - ``patience``: the maximum seconds that a request waits for a pause; if its turn has no
      deadline, also for other requests or for a probe. A request that would have to wait longer
      fails at once.
    - ``concurrency``: the maximum number of requests under way, at least 1.
    - ``failures``: how many failed attempts in a row open the breaker; infinity: it never opens.
    """

    retries: int = 3
    timeout: float | None = 30.0
    patience: float = 120.0
    concurrency: int = 1024
    failures: float = math.inf


class Breaker:
    """Decides when a failing endpoint gets no requests but a probe. Not thread-safe.

    It opens after several failed attempts in a row, and one success closes it. If the key or the
    model is wrong, or replies are of no use, ``is_passing`` is False: nobody waits for a probe.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.failures
        self.failures = 0
        self.openings = 0
        self.is_open = False
        self.is_passing = True
        self._probe_seconds = 0.0
        self._probe_at = -math.inf

    def wait(self, now: float) -> float:
        """Return the seconds until the next probe; 0 if a request may be sent now."""
        return max(0.0, self._probe_at - now) if self.is_open else 0.0

    def ended(
        self, outcome: Outcome, *, is_probe: bool, now: float, draw: float
    ) -> Literal["opened", "closed"] | None:
        """Count an attempt that ended with ``outcome``; return how the breaker has changed.

        The failure of a request that was sent before the breaker opened does not delay the next
        probe, whose jitter is ``draw``, from 0 to 1.
        """
        if outcome == "cancelled":
            return None
        was_open = self.is_open
        # A server that finds fault with the text of a request answers.
        if outcome in {"ok", "bad_request"}:
            self.is_open, self.failures, self._probe_seconds = False, 0, 0.0
            return "closed" if was_open else None
        self.failures += 1
        if was_open and not is_probe:
            return None
        is_refused = outcome == "unauthorized" and not math.isinf(self._most)
        self.is_open = was_open or is_refused or self.failures >= self._most
        if not self.is_open:
            return None
        self.is_passing = outcome not in _LASTING
        doubled = max(_PROBE, 2 * self._probe_seconds)
        self._probe_seconds = min(doubled, _LONGEST_PROBE) if self.is_passing else _LONGEST_PROBE
        self._probe_at = now + self._probe_seconds * (1 - _JITTER * draw)
        self.openings += not was_open
        return None if was_open else "opened"


class RetryBudget:
    """Allows as many retries as first attempts in the last minute. Not thread-safe.

    Three retries a minute are allowed in any case, so that a first request that fails is retried.
    """

    def __init__(self) -> None:
        self.total = 0
        self._first: deque[float] = deque()
        self._retries: deque[float] = deque()

    def first(self, now: float) -> None:
        """Count a first attempt."""
        self._first.append(now)
        _forget(self._first, now)

    def take(self, now: float) -> bool:
        """Count a retry and return True, or return False if the budget is used up."""
        _forget(self._first, now)
        _forget(self._retries, now)
        if len(self._retries) >= max(_FREE_RETRIES, len(self._first)):
            return False
        self._retries.append(now)
        self.total += 1
        return True


def _forget(times: deque[float], now: float) -> None:
    while times and times[0] <= now - _MINUTE:
        times.popleft()


class Slots:
    """A semaphore of ``size`` slots for requests in all threads and event loops.

    While ``is_probing`` is set, one request at a time is under way.
    """

    def __init__(self, size: int) -> None:
        self.in_flight = 0
        self.is_probing = False
        self._size = size
        self._lock = threading.RLock()  # reentrant: garbage collection may end a request
        self._waiting: deque[_Waiter] = deque()

    @property
    def _is_full(self) -> bool:
        return self.in_flight >= (1 if self.is_probing else self._size)

    async def acquire(self, timeout: float) -> None:
        """Wait for a slot; raise `JudgeTimeoutError` after ``timeout`` seconds."""
        with self._lock:
            if not (self._is_full or self._waiting):
                self.in_flight += 1
                return
            loop = asyncio.get_running_loop()
            waiter = _Waiter(loop, loop.create_future())
            self._waiting.append(waiter)
        try:
            seconds = None if math.isinf(timeout) else max(0.0, timeout)
            await asyncio.wait_for(waiter.future, seconds)
            waiter.is_used = True
        except asyncio.TimeoutError as error:
            msg = f"not sent: {self.in_flight} other requests were under way for {timeout:.0f} s"
            raise JudgeTimeoutError(msg) from error
        finally:
            if not waiter.is_used:
                self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            if not waiter.has_slot:
                self._waiting.remove(waiter)
                return
        self.release()

    def release(self) -> None:
        """Give a slot back, and pass free slots to the requests that have waited longest."""
        with self._lock:
            self.in_flight -= 1
            while self._waiting and not self._is_full:
                waiter = self._waiting.popleft()
                waiter.has_slot = True
                self.in_flight += 1
                try:
                    waiter.loop.call_soon_threadsafe(waiter.wake)
                except RuntimeError:  # the loop is closed, and its request will never be sent
                    waiter.is_used = True  # `acquire` must not give the slot back once more
                    self.in_flight -= 1


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request that waits for a slot in its event loop."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]
    has_slot: bool = False
    is_used: bool = False

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


# --- the endpoint ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointState:
    """What an `Endpoint` reports for metrics.

    - ``attempts``: attempts by outcome, since the process has started.
    - ``retries``: attempts that repeated a failed attempt; ``returned``: attempts after a pause.
    - ``not_sent``: requests that were not sent, by reason (`JudgeError.reason`).
    - ``openings``: how often the breaker has opened.
    - ``limit``: how many requests may be under way; ``in_flight``: how many are.
    - ``pause``: seconds until the next request may be sent, 0 if there is no pause.
    - ``latency``: the mean of recent successful attempts in seconds, None before the first.
    """

    name: str
    attempts: Mapping[Outcome, int]
    retries: int
    returned: int
    not_sent: Mapping[str, int]
    breaker: BreakerState
    openings: int
    limit: int
    in_flight: int
    pause: float
    latency: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """One attempt that has ended: the endpoint's name, the outcome, and the duration in seconds."""

    endpoint: str
    outcome: Outcome
    seconds: float


class Endpoint:
    """Sends requests to one judge or embedder under `Limits`; ``name`` is its name in metrics.

    ``title`` is its name in log lines, with provider and address. It is ``name`` by default.
    ``observers`` are called with each `AttemptResult`, and ``refusal_observers`` with the name and
    the reason for each request that is not sent. They must not raise. ``clock`` returns seconds,
    ``sleep`` waits, and ``draw`` returns a random number from 0 to 1.
    """

    def __init__(
        self,
        name: str,
        limits: Limits | None = None,
        *,
        title: str = "",
        clock: Clock = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self.name = name
        self.title = title or name
        self.limits = limits or Limits()
        self.observers: list[Callable[[AttemptResult], None]] = []
        self.refusal_observers: list[Callable[[str, str], None]] = []
        self._clock = clock
        self._sleep = sleep
        self._draw = draw
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget all requests and failures; a forked child has not sent any."""
        self._lock = threading.RLock()  # reentrant: garbage collection may cancel a request
        self._breaker = Breaker(self.limits)
        self._budget = RetryBudget()
        self._slots = Slots(self.limits.concurrency)
        self._attempts: Counter[Outcome] = Counter()
        self._not_sent: Counter[str] = Counter()
        self._returned = 0
        self._paused_until = -math.inf
        self._paused_at = -math.inf
        self._refusals = 0  # with 429, in a row; those of requests under way together are one
        self._latency: float | None = None
        self._log = LimitedLog(clock=self._clock)

    def with_limits(self, limits: Mapping[str, Any]) -> Endpoint:
        """Return a new endpoint with this name, and with the fields ``limits`` replaced."""
        return Endpoint(self.name, replace(self.limits, **limits), title=self.title)

    @property
    def state(self) -> EndpointState:
        """The present state, for metrics."""
        with self._lock:
            return EndpointState(
                name=self.name,
                attempts=dict(self._attempts),
                retries=self._budget.total,
                returned=self._returned,
                not_sent=dict(self._not_sent),
                breaker="open" if self._breaker.is_open else "closed",
                openings=self._breaker.openings,
                limit=self.limits.concurrency,
                in_flight=self._slots.in_flight,
                pause=max(0.0, self._paused_until - self._clock()),
                latency=self._latency,
            )

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        is_usable: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Return the result of ``send()``, which sends one request, after retries if need be.

        A reply that ``is_usable`` rejects counts as a failure of the endpoint, but is returned.
        Raises the error of the last attempt; `JudgeUnavailableError` if the breaker stays open, and
        `JudgeRateLimitError` if a pause would take longer than the deadline or ``patience``.
        """
        deadline = _deadline.get()
        tries = 0
        last: JudgeError | None = None
        while True:
            attempt = _Attempt(self, deadline, is_first=last is None)
            try:
                async with attempt:
                    reply = await self._in_time(send, deadline)
                    attempt.is_usable = is_usable(reply)
                    return reply
            except JudgeError as error:
                if last is not None and attempt.began is None:
                    raise last from None
                last = error
            tries = await self._before_retry(attempt, last, tries=tries, deadline=deadline)

    async def _in_time(self, send: Callable[[], Awaitable[T]], deadline: float) -> T:
        timeout = math.inf if self.limits.timeout is None else self.limits.timeout
        seconds = min(timeout, deadline - self._clock())
        if math.isinf(seconds):
            return await send()
        try:
            return await asyncio.wait_for(send(), seconds)
        except asyncio.TimeoutError as error:
            msg = "no reply in time"
            raise JudgeTimeoutError(msg) from error

    async def _before_retry(
        self, attempt: _Attempt, error: JudgeError, *, tries: int, deadline: float
    ) -> int:
        """Wait before a retry, and return ``tries`` plus the tries that were used up.

        Raises ``error`` if the request is not to be sent again. To wait for the retry budget uses
        up a try; a probe that failed is no try, as its request may be the next probe.
        """
        if attempt.began is None or attempt.outcome not in _RETRIED:
            raise error
        while tries < self.limits.retries:
            if attempt.is_probe:
                return tries
            has_breaker = not math.isinf(self.limits.failures)
            is_dated = retry_after_of(error) is not None
            if attempt.outcome == "rate_limited" and (is_dated or not has_breaker):
                self._returned += 1
                # While the server answers other requests of a dataset, a refusal uses up no try.
                is_answering = self._latency is not None and self._refusals <= 1
                return tries + (has_breaker or not is_answering)
            tries += 1
            longest = min(_LONGEST_BACK_OFF, _BACK_OFF * 2 ** (tries - 1))
            delay = self._draw() * longest
            if self._clock() + delay >= deadline:
                break
            await self._sleep(delay)
            with self._lock:
                if self._budget.take(self._clock()):
                    return tries
        raise error

    # --- admission --------------------------------------------------------------------------------

    async def admit(self, attempt: _Attempt) -> None:
        """Wait until ``attempt`` may be sent; raise a `JudgeError` if it may not in time."""
        while not await self._is_admitted(attempt):
            pass

    async def _is_admitted(self, attempt: _Attempt) -> bool:
        patience = self.limits.patience
        await self._wait_for_pause(min(attempt.deadline, self._clock() + patience))
        is_endless = math.isinf(attempt.deadline)
        until = self._clock() + patience if is_endless else attempt.deadline
        self._until_probe(until)
        slots = attempt.slots = self._slots
        try:
            await slots.acquire(until - _LATE - self._clock())
        except JudgeTimeoutError as error:
            raise self._refused(self._unavailable() or error) from None
        is_admitted = False
        try:
            wait = self._until_probe(until)
            if wait > 0:
                await self._sleep(wait)
            is_admitted = self._begin(attempt)
        finally:
            if not is_admitted:
                slots.release()
        return is_admitted

    async def _wait_for_pause(self, until: float) -> None:
        while True:
            now = self._clock()
            if now >= until:
                raise self._refused(JudgeTimeoutError("not sent: the time of the turn is over"))
            wait = self._paused_until - now
            if wait <= 0:
                return
            if now + wait >= until:
                msg = f"not sent: the server refuses requests (429); next try in {wait:.0f} s"
                raise self._refused(JudgeRateLimitError(msg))
            await self._sleep(wait)

    def _until_probe(self, until: float) -> float:
        """Return the seconds until the next probe; raise `JudgeUnavailableError` if it is vain."""
        with self._lock:
            now = self._clock()
            wait = self._breaker.wait(now)
            is_vain = now + wait >= until or (wait > 0 and not self._breaker.is_passing)
        error = self._unavailable() if is_vain else None
        if error is not None:
            raise self._refused(error)
        return wait

    def _unavailable(self) -> JudgeUnavailableError | None:
        """Return the error of a request that cannot wait for the breaker; None if it is closed."""
        with self._lock:
            if not self._breaker.is_open:
                return None
            count, wait = self._breaker.failures, self._breaker.wait(self._clock())
        msg = f"not asked: {count} requests failed in a row; next try in {wait:.0f} s"
        return JudgeUnavailableError(msg)

    def _begin(self, attempt: _Attempt) -> bool:
        """Mark ``attempt`` as sent; return False if it must wait for a pause or a probe."""
        with self._lock:
            now = self._clock()
            is_open = self._breaker.is_open
            is_alone = not self._breaker.wait(now) and self._slots.in_flight == 1
            if self._paused_until > now or (is_open and not is_alone):
                return False
            attempt.is_probe = is_open
            attempt.began = now
            if attempt.is_first:
                self._budget.first(now)
            return True

    def _refused(self, error: JudgeError) -> JudgeError:
        """Count a request that is not sent because of ``error``, and return ``error``."""
        error.requests = 0
        with self._lock:
            self._not_sent[error.reason] += 1
        for observe in self.refusal_observers:
            observe(self.name, error.reason)
        return error

    # --- the end of an attempt --------------------------------------------------------------------

    def record(self, attempt: _Attempt, error: BaseException | None) -> None:
        """Count how ``attempt`` ended: with ``error``, or with a reply."""
        now = self._clock()
        began = now if attempt.began is None else attempt.began
        outcome = attempt.outcome = self._outcome(attempt, error, seconds=now - began)
        pause, change = 0.0, None
        with self._lock:
            self._attempts[outcome] += 1
            if attempt.slots is self._slots:  # else it began before a fork
                after = retry_after_of(error)
                is_new = began >= self._paused_at
                if outcome == "ok":
                    self._refusals = 0
                    mean = now - began if self._latency is None else self._latency
                    self._latency = mean + _RECENT * (now - began - mean)
                if outcome == "rate_limited" or after is not None:
                    pause = self._pause(now, after, is_new=is_new)
                # Refusals of requests that were under way together are one failure.
                if outcome != "rate_limited" or is_new or attempt.is_probe:
                    change = self._breaker.ended(
                        outcome, is_probe=attempt.is_probe, now=now, draw=self._draw()
                    )
                self._slots.is_probing = self._breaker.is_open
        if attempt.slots is not None:
            attempt.slots.release()
        # Without the lock, because a handler of the application may block.
        self._write(change, outcome, pause=pause)
        for observe in self.observers:
            observe(AttemptResult(endpoint=self.name, outcome=outcome, seconds=now - began))

    def _outcome(
        self, attempt: _Attempt, error: BaseException | None, *, seconds: float
    ) -> Outcome:
        if error is None:
            return "ok" if attempt.is_usable else "unparsable"
        outcome = outcome_of(error)
        if outcome not in {"cancelled", "timeout"}:
            return outcome
        full = math.inf if self.limits.timeout is None else self.limits.timeout
        is_late = self._clock() >= attempt.deadline - _LATE
        # An attempt that began shortly before the deadline says nothing about the server.
        is_short = is_late and seconds < full and seconds < _SLOW * (self._latency or 0.0)
        return "timeout" if (outcome == "timeout" or is_late) and not is_short else "cancelled"

    def _pause(self, now: float, after: float | None, *, is_new: bool) -> float:
        """Let nobody send a request for ``after`` seconds, or for a back-off; return the seconds.

        ``is_new`` says that the refused request began after the last pause began.
        """
        if is_new:
            self._refusals += 1
            self._paused_at = now
        if after is None:
            longest = min(_LONGEST_BACK_OFF, _BACK_OFF * 2 ** max(0, self._refusals - 1))
            after = longest * (1 + self._draw()) / 2
        jitter = self._draw() * min(1.0, _JITTER * after)
        self._paused_until = max(self._paused_until, now + min(after, _DAY) + jitter)
        return after

    def _write(
        self, change: Literal["opened", "closed"] | None, outcome: Outcome, *, pause: float
    ) -> None:
        """Log a pause, and a breaker that has opened or closed."""
        if pause >= 1:
            line = "the %s is over its rate limit: no request for %.0f s"
            self._log.write("pause", line, self.title, pause)
        if change == "opened":
            line = "the %s fails (%s, %.0f in a row): no request but a probe every %.0f s or less"
            failures = self._breaker.failures
            self._log.write("opened", line, self.title, outcome, failures, _LONGEST_PROBE)
        elif change == "closed":
            self._log.write("closed", "the %s answers again", self.title)


class _Attempt:
    """An attempt at a request, from its admission to its end, as a context manager."""

    def __init__(self, endpoint: Endpoint, deadline: float, *, is_first: bool) -> None:
        self.deadline = deadline
        self.is_first = is_first
        self.is_probe = False
        self.is_usable = True
        self.began: float | None = None
        self.slots: Slots | None = None
        self.outcome: Outcome = "cancelled"
        self._endpoint = endpoint

    async def __aenter__(self) -> None:
        await self._endpoint.admit(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._endpoint.record(self, error)


def title_of(part: Part, model: object) -> str:
    """Return the name of ``model`` in log lines: with the address, as far as it is known."""
    endpoint = getattr(model, "endpoint", None)
    if isinstance(endpoint, Endpoint):
        return endpoint.title
    names = (getattr(model, name, None) for name in ("title", "model"))
    return f"{part} {next(filter(None, names), type(model).__name__)}"
