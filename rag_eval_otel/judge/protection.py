"""`Endpoint`: send the requests to one judge or embedder, and limit what an outage of it costs.

An endpoint decides for each request when it is sent, and whether it is sent again:

- Server errors, refusals with status 429, time-outs and connection errors are retried with
  exponential back-off and full jitter, before the deadline of the turn. In live scoring, a *retry
  budget* keeps retries at 10 % of first attempts.
- ``Retry-After`` is one pause for all callers. A request that gets 429 with ``Retry-After`` is sent
  again after the pause, and this does not count as a retry.
- A *circuit breaker* opens after several failed attempts in a row. While it is open, no request is
  sent, except one *probe* from time to time.
- The number of requests under way is cut after a 429 or if the latency rises, and grows back while
  replies are quick (additive increase, multiplicative decrease).
- Requests and tokens a minute may be limited, exactly in each window of 60 seconds. Several
  processes may have the limits together.

An endpoint may be used from several threads and event loops.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

from rag_eval_otel.errors import (
    JudgeError,
    JudgeRateLimitError,
    JudgeTimeoutError,
    JudgeUnavailableError,
    UnparsableReplyError,
)
from rag_eval_otel.judge.outcomes import Outcome, outcome_of, retry_after_of
from rag_eval_otel.judge.throttling import (
    Breaker,
    BreakerState,
    Limits,
    Place,
    RetryBudget,
    SharedLimiter,
    Slots,
)
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.runtime.watchdog import ACTIVITY
from rag_eval_otel.types import Replies

T = TypeVar("T")
CHARACTERS = 4
"""The number of characters of a token, about, to estimate the tokens of a request."""
Clock: TypeAlias = Callable[[], float]
_DAY = 86_400.0
_RETRIED = frozenset({"rate_limited", "timeout", "transport"})
_BACK_OFF, _LONGEST_BACK_OFF = 0.5, 8.0  # seconds, before jitter
_SLOW = 2.0  # a request that takes so many times as long as usual has timed out
_LATE = 0.05  # a request that is cancelled so many seconds before its deadline has timed out
_JITTER = 0.1  # most part that is added to a pause
_RANDOM = random.SystemRandom()  # the global generator is seeded by applications

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
    """Sends requests to one judge or embedder under `Limits`; ``name`` is its name in messages.

    ``observers`` are called with each `AttemptResult`, and ``refusal_observers`` with the name and
    the reason for each request that is not sent. They must not raise. ``clock`` returns seconds,
    ``sleep`` waits, and ``draw`` returns a random number from 0 to 1.
    """

    def __init__(
        self,
        name: str,
        limits: Limits | None = None,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self.name = name
        self.limits = limits or Limits()
        self.observers: list[Callable[[AttemptResult], None]] = []
        self.refusal_observers: list[Callable[[str, str], None]] = []
        self._clock = clock
        self._sleep = sleep
        self._draw = draw
        self._workers: float = self.limits.workers
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget all requests and failures; a forked child has not sent any."""
        limits = self.limits
        self._lock = threading.RLock()  # reentrant: garbage collection may cancel a request
        self._breaker = Breaker(limits)
        self._budget = RetryBudget(limits.retry_share)
        self._slots = Slots(limits.concurrency)
        self._limiter = SharedLimiter(limits, clock=self._clock, sleep=self._sleep)
        self._limiter.share(self._workers)
        self._attempts: Counter[Outcome] = Counter()
        self._not_sent: Counter[str] = Counter()
        self._returned = 0
        self._paused_until = -math.inf
        self._paused_at = -math.inf
        self._rounds = 0  # refusals with 429 in a row, one for all requests under way at a time
        self._log = LimitedLog(clock=self._clock)

    def with_limits(self, limits: Mapping[str, Any]) -> Endpoint:
        """Return a new endpoint with this name, and with the fields ``limits`` replaced."""
        return Endpoint(self.name, replace(self.limits, **limits))

    def share(self, workers: float) -> None:
        """Divide the limits a minute among ``workers`` processes from now on.

        Limits that are kept in shared counts are divided only while these cannot be reached.
        """
        self._workers = workers
        self._limiter.share(workers)

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
                breaker=self._breaker.state,
                openings=self._breaker.openings,
                limit=int(self._slots.limit),
                in_flight=self._slots.in_flight,
                pause=max(0.0, self._paused_until - self._clock()),
                latency=self._slots.latency,
            )

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        tokens: int = 0,
        is_usable: Callable[[T], bool] = lambda _: True,
        tokens_of: Callable[[T], int] | None = None,
    ) -> T:
        """Return the result of ``send()``, which sends one request, after retries if need be.

        ``tokens`` is an estimate of the request's tokens, and ``tokens_of`` returns their number
        from the reply. A reply that ``is_usable`` rejects counts as a failure of the endpoint, but
        is returned. Raises the error of the last attempt; `JudgeUnavailableError` if the breaker is
        open; `JudgeRateLimitError` if a pause or the limiter would take longer than the deadline
        or ``patience``.
        """
        deadline = _deadline.get()
        tries = 0
        last: JudgeError | None = None
        while True:
            attempt = _Attempt(self, deadline, tokens=tokens, is_first=last is None)
            try:
                async with attempt:
                    reply = await self._in_time(send, deadline)
                    attempt.is_usable = is_usable(reply)
                    attempt.tokens = tokens if tokens_of is None else tokens_of(reply) or tokens
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

        Raises ``error`` if the request is not to be sent again. If the retry budget is used up, the
        request waits for the next back-off; this uses up a try.
        """
        if attempt.began is None or attempt.outcome not in _RETRIED:
            raise error
        while tries < self.limits.retries and self._breaker.state == "closed":
            if attempt.outcome == "rate_limited" and self._is_put_back(error):
                self._returned += 1
                # Fewer requests at a time may help, so a refusal does not use up a try.
                return tries + (self._slots.limit <= 1 or not self._budget.is_unlimited)
            tries += 1
            most = min(_LONGEST_BACK_OFF, _BACK_OFF * 2 ** (tries - 1))
            delay = self._draw() * most
            if self._clock() + delay >= deadline:
                break
            await self._sleep(delay)
            with self._lock:
                if self._budget.take(self._clock()):
                    return tries
        raise error

    def _is_put_back(self, error: JudgeError) -> bool:
        """Return True if a request that got 429 waits for the shared pause, and is sent again."""
        return self._budget.is_unlimited or retry_after_of(error) is not None

    # --- admission --------------------------------------------------------------------------------

    async def admit(self, attempt: _Attempt) -> None:
        """Wait until ``attempt`` may be sent; raise a `JudgeError` if it may not in time."""
        activity = ACTIVITY.get()
        if activity is not None:
            activity.on_abandoned.add(self._abandon)
        until = min(attempt.deadline, self._clock() + self.limits.patience)
        while not await self._is_admitted(attempt, until):
            pass

    async def _is_admitted(self, attempt: _Attempt, until: float) -> bool:
        await self._wait_for_pause(until)
        slots = attempt.slots = self._slots
        try:
            await slots.acquire(until - self._clock())
        except JudgeTimeoutError as error:
            raise self._refused(error) from None
        is_admitted = False
        try:
            attempt.place = await self._limiter.reserve(attempt.tokens, until)
            if attempt.place is None:
                raise self._refused(JudgeRateLimitError("not sent: over the limit a minute"))
            wait = attempt.place.at - self._clock()
            if wait > 0:
                await self._sleep(wait)
            is_admitted = self._begin(attempt)
        finally:
            if not is_admitted:
                if attempt.place is not None:
                    self._limiter.give_back(attempt.place)
                slots.release()
        return is_admitted

    def _abandon(self) -> None:
        """Forget the requests under way; the event loop that sent them is blocked, maybe for ever.

        If such a request ends later, it is counted, but it changes neither the breaker nor the
        number of requests under way.
        """
        with self._lock:
            self._slots = self._slots.without_requests()
            self._limiter.abandon()
            self._breaker.ended("cancelled", is_probe=True, now=self._clock(), draw=0.0)

    async def _wait_for_pause(self, until: float) -> None:
        while True:
            now = self._clock()
            if now >= until:
                raise self._refused(JudgeTimeoutError("not sent: the time of the turn is over"))
            self._require_closed(now)
            wait = self._paused_until - now
            if wait <= 0:
                return
            if now + wait >= until:
                msg = f"not sent: the server refuses requests (429); next try in {wait:.0f} s"
                raise self._refused(JudgeRateLimitError(msg))
            await self._sleep(wait)

    def _begin(self, attempt: _Attempt) -> bool:
        """Mark ``attempt`` as sent, and return True; return False if a pause has begun."""
        with self._lock:
            now = self._clock()
            if self._paused_until > now:
                return False
            self._require_closed(now)
            attempt.is_probe = self._breaker.begin()
            attempt.began = now
            if attempt.is_first:
                self._budget.first(now)
            return True

    def _require_closed(self, now: float) -> None:
        with self._lock:
            wait = self._breaker.wait(now)
        if wait is not None:
            count = self._breaker.failures
            msg = f"not asked: {count} requests failed in a row; next try in {wait:.0f} s"
            raise self._refused(JudgeUnavailableError(msg))

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
        if attempt.place is not None:
            self._limiter.settle(attempt.place, attempt.tokens)
        pause, change = 0.0, None
        with self._lock:
            self._attempts[outcome] += 1
            if attempt.slots is self._slots:  # else its event loop was abandoned
                after = retry_after_of(error)
                is_new = began >= self._paused_at
                if outcome == "ok":
                    self._rounds = 0
                    self._slots.replied(now - began)
                if outcome == "rate_limited" or after is not None:
                    pause = self._pause(now, after, is_new=is_new)
                # Refusals of requests that were under way together are one failure.
                if outcome != "rate_limited" or is_new or attempt.is_probe:
                    change = self._breaker.ended(
                        outcome, is_probe=attempt.is_probe, now=now, draw=self._draw()
                    )
        if attempt.slots is not None:
            attempt.slots.release()
        # Without the lock, because a handler of the application may block.
        self._tell(change, outcome, pause=pause)
        for observe in self.observers:
            observe(AttemptResult(endpoint=self.name, outcome=outcome, seconds=now - began))

    def _outcome(
        self, attempt: _Attempt, error: BaseException | None, *, seconds: float
    ) -> Outcome:
        if error is None:
            return "ok" if attempt.is_usable else "unparsable"
        found = outcome_of(error)
        if found not in {"cancelled", "timeout"}:
            return found
        full = math.inf if self.limits.timeout is None else self.limits.timeout
        is_late = self._clock() >= attempt.deadline - _LATE
        # An attempt that began shortly before the deadline says nothing about the server.
        usual = self._slots.latency or 0.0
        is_short = is_late and seconds < full and seconds < _SLOW * usual
        return "timeout" if (found == "timeout" or is_late) and not is_short else "cancelled"

    def _pause(self, now: float, after: float | None, *, is_new: bool) -> float:
        """Let nobody send a request for ``after`` seconds, or for a back-off if it is None.

        ``is_new`` says that the refused request began after the last pause began. Return the
        seconds.
        """
        if is_new:
            self._slots.halve()
            self._rounds += 1
            self._paused_at = now
        if after is None:
            most = min(_LONGEST_BACK_OFF, _BACK_OFF * 2 ** max(0, self._rounds - 1))
            after = most * (1 + self._draw()) / 2
        jitter = self._draw() * min(1.0, _JITTER * after)
        self._paused_until = max(self._paused_until, now + min(after, _DAY) + jitter)
        return after

    def _tell(
        self, change: Literal["opened", "closed"] | None, outcome: Outcome, *, pause: float
    ) -> None:
        if pause >= 1:
            told = "the %s is over its rate limit: no request for %.0f s"
            self._log.write("pause", told, self.name, pause)
        if change == "opened":
            told = "the %s fails (%s, %.0f in a row): no request but a probe every %.0f s or more"
            probe = self.limits.probe_after
            self._log.write("opened", told, self.name, outcome, self._breaker.failures, probe)
        elif change == "closed":
            self._log.write("closed", "the %s answers again", self.name)


class _Attempt:
    """An attempt at a request, from its admission to its end, as a context manager."""

    def __init__(self, endpoint: Endpoint, deadline: float, *, tokens: int, is_first: bool) -> None:
        self.deadline = deadline
        self.tokens = tokens
        self.is_first = is_first
        self.is_probe = False
        self.is_usable = True
        self.began: float | None = None
        self.place: Place | None = None
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


def is_usable(replies: Replies) -> bool:
    """Return True if at least one part of ``replies`` fits its task, or if there are no parts."""
    bad = [isinstance(part, UnparsableReplyError) for part in replies.parts]
    return not (bad and all(bad))


def total_tokens(replies: Replies) -> int:
    """Return the number of tokens of the request and the reply, as the server counts."""
    return replies.usage.prompt_tokens + replies.usage.completion_tokens
