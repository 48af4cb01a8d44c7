"""`Endpoint`: send the requests to one judge or embedder, and limit what an outage of it costs."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeAlias, TypeVar

from rag_eval_otel import errors
from rag_eval_otel.judge.budget import SlidingWindow
from rag_eval_otel.judge.usage import current_scope
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import LimitedLog
from rag_eval_otel.types import Replies

T = TypeVar("T")
Clock: TypeAlias = Callable[[], float]
Send: TypeAlias = Callable[[], Awaitable[T]]

_MINUTE, _DAY = 60.0, 86_400.0
_BACK_OFF, _LONGEST_BACK_OFF = 0.5, 8.0  # seconds, before jitter
_PROBE, _LONGEST_PROBE = 0.5, 30.0  # seconds until a probe; each failed probe doubles them
_POLL = 0.05  # seconds between two looks at the breaker
_FREE_RETRIES = 3  # retries a minute that are allowed even if there were few first attempts
_LATE = 0.05  # seconds; so long before its deadline, a request has timed out, or is given up
_JITTER = 0.1  # largest part that is added to a pause, or taken from the time until a probe
_RANDOM = random.SystemRandom()  # the global generator is seeded by applications

_Refusal = Literal["bad_request", "not_found", "rate_limited", "unauthorized"]
_Failure = Literal["cancelled", "internal", "timeout", "transport", "unparsable"]
Outcome: TypeAlias = Literal["ok", _Refusal, _Failure]
"""How an attempt ended. ``bad_request`` is a refusal of the request's content (400, 413, 422)."""

_RETRIED = frozenset({"rate_limited", "timeout", "transport"})
_LASTING = frozenset({"unauthorized", "not_found", "unparsable"})  # no wait helps
_STATUS: dict[int, Outcome] = {401: "unauthorized", 403: "unauthorized", 404: "not_found"}
_STATUS |= {408: "timeout", 429: "rate_limited"}
_REASONS: dict[str, Outcome] = {"circuit_open": "cancelled", "budget": "cancelled"}
_REASONS |= {"too_long": "bad_request"}
# By name, because the errors of the client libraries have no base class in common.
_NAMED: dict[str, Outcome] = {"Timeout": "timeout", "Credentials": "unauthorized"}
_NAMED |= {"Connect": "transport"}
_CLIENT_ERROR, _SERVER_ERROR = 400, 500


def outcome_of(error: BaseException) -> Outcome:
    status = status_of(error)
    if status is not None and status >= _CLIENT_ERROR:
        return _STATUS.get(status, "transport" if status >= _SERVER_ERROR else "bad_request")
    if isinstance(error, errors.JudgeError):
        return _REASONS.get(error.reason, error.reason)  # type: ignore[arg-type]
    if not isinstance(error, Exception):
        return "cancelled"
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    return next((outcome for name, outcome in _NAMED.items() if name in kinds), "internal")


def status_of(error: BaseException) -> int | None:
    match _attribute(error, "response"):
        case {"ResponseMetadata": {"HTTPStatusCode": int(status)}}:
            return status
    statuses = (_attribute(error, name) for name in ("status", "status_code"))
    return next((status for status in statuses if isinstance(status, int)), None)


def _attribute(error: BaseException | None, name: str) -> Any:
    return getattr(error, "__dict__", {}).get(name)  # properties of other libraries may fail


def retry_after_of(error: BaseException | None) -> float | None:
    seconds = _attribute(error, "retry_after")
    if isinstance(seconds, int | float):
        return float(seconds)
    headers = getattr(_attribute(error, "response"), "headers", None)
    return retry_after(headers) if isinstance(headers, Mapping) else None


def retry_after(headers: Mapping[str, str], *, now: Clock = time.time) -> float | None:
    value = headers.get("retry-after", "")
    with suppress(ValueError, TypeError):  # an exception of a user may have any headers
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    with suppress(ValueError, OverflowError, TypeError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - now())
    return None


def is_usable(replies: Replies) -> bool:
    """Return False if no reply to the tasks of a request parses, True if at least one does."""
    return not all(isinstance(part, errors.UnparsableReplyError) for part in replies.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an `Endpoint`: retries and times of a request, and requests at the same time.

    - ``retries``: the most of one request. `OpenAIJudge` and `OpenAIEmbedder` set their own.
    - ``timeout``: seconds of one attempt; None: only the deadline of the turn counts.
    - ``patience``: the most seconds that a request waits for the end of a pause or for a place.
    - ``concurrency``: the most requests of one event loop at a time.
    - ``failures``: the failed attempts in a row that open the circuit breaker; infinity: never.
    """

    retries: int = 3
    timeout: float | None = 30.0
    patience: float = 120.0
    concurrency: int = 1024
    failures: float = math.inf


class Breaker:
    """A circuit breaker: while it is open, one request at a time, a probe, may be sent."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.failures = 0
        self.is_open = False
        self.is_passing = True
        self.is_probing = False
        self._probe_seconds = self._probe_at = 0.0

    def wait(self, now: float) -> float:
        """Return 0 if a request may be sent now, else the seconds after which to ask again."""
        if self.is_open and self.is_probing:
            return _POLL
        return max(0.0, self._probe_at - now) if self.is_open else 0.0

    def ended(self, outcome: Outcome, *, is_probe: bool, now: float, draw: float) -> str | None:
        self.is_probing = self.is_probing and not is_probe
        if outcome == "cancelled":
            return None
        was_open = self.is_open
        if outcome in {"ok", "bad_request"}:  # a server that refuses a text works
            self.is_open, self.failures, self._probe_seconds = False, 0, 0.0
            return "closed" if was_open else None
        self.failures += 1
        if was_open and not is_probe:
            return None
        is_refused = outcome == "unauthorized" and not math.isinf(self._limits.failures)
        self.is_open = was_open or is_refused or self.failures >= self._limits.failures
        if not self.is_open:
            return None
        self.is_passing = outcome not in _LASTING
        doubled = max(_PROBE, 2 * self._probe_seconds)
        self._probe_seconds = min(doubled, _LONGEST_PROBE) if self.is_passing else _LONGEST_PROBE
        self._probe_at = now + self._probe_seconds * (1 - _JITTER * draw)
        return None if was_open else "opened"


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt:
    """One attempt at a request, and how it ended."""

    deadline: float
    is_first: bool
    is_probe: bool = False
    began: float = 0.0
    sent: int = field(default_factory=time.time_ns)
    outcome: Outcome = "cancelled"
    reply: object = None
    error: BaseException | None = None


class Endpoint:
    """Sends requests to one judge or embedder under `Limits`, from any number of event loops.

    Temporary failures are retried with back-off and full jitter. ``Retry-After`` pauses all
    callers. While the breaker is open, one probe at a time is sent; other requests wait for its
    result, or fail if waiting is of no use. ``observers`` get the outcome and the seconds of each
    attempt, ``refusal_observers`` the reason of each request that is not sent.
    """

    def __init__(
        self,
        name: str,
        limits: Limits | None = None,
        *,
        title: str = "",
        clock: Clock = time.monotonic,
        draw: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self.name = name
        self.title = title or name
        self.limits = limits or Limits()
        self.observers: list[Callable[[Outcome, float], None]] = []
        self.refusal_observers: list[Callable[[str], None]] = []
        self._clock, self._draw = clock, draw
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.RLock()  # reentrant: garbage collection may cancel a request
        self.breaker = Breaker(self.limits)
        self._firsts, self._retries = SlidingWindow(_MINUTE), SlidingWindow(_MINUTE)
        self._slots: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
        self._under_way: set[Attempt] = set()
        self._paused_until = self._paused_at = -math.inf
        self._answered = -math.inf  # when the last reply came
        self._log = LimitedLog(clock=self._clock)

    def with_limits(self, limits: Mapping[str, Any]) -> Endpoint:
        return Endpoint(self.name, replace(self.limits, **limits), title=self.title)

    async def call(self, send: Send[T], *, is_usable: Callable[[T], bool] = lambda _: True) -> T:
        """Return the result of ``send()``, retried on temporary failures, or raise `JudgeError`.

        A result that is not usable is returned, too, but the breaker counts it as a failure.
        """
        deadline = current_scope().deadline
        timeout = math.inf if self.limits.timeout is None else self.limits.timeout
        loop = asyncio.get_running_loop()
        if loop not in self._slots:
            with self._lock:
                for closed in [other for other in self._slots if other.is_closed()]:
                    del self._slots[closed]
                self._slots[loop] = asyncio.Semaphore(self.limits.concurrency)
        slots = self._slots[loop]
        tries = 0
        last: errors.JudgeError | None = None
        while True:
            attempt = Attempt(deadline=deadline, is_first=last is None)
            try:
                await self._admit(attempt, slots)
            except errors.JudgeError as error:
                raise last or error from None
            try:
                with ExitStack() as stack:
                    stack.push(lambda _, error, __, attempt=attempt: self._record(attempt, error))
                    seconds = min(timeout, deadline - self._clock())
                    reply = await asyncio.wait_for(send(), seconds if seconds < math.inf else None)
                    attempt.outcome = "ok" if is_usable(reply) else "unparsable"
                    attempt.reply = reply
                    return reply
            except asyncio.TimeoutError:
                last = errors.JudgeTimeoutError("no reply in time")
            except errors.JudgeError as error:
                last = error
            finally:
                slots.release()
            tries = await self._before_retry(attempt, last, tries=tries)

    async def _before_retry(self, attempt: Attempt, error: Exception, *, tries: int) -> int:
        """Wait, and return the new number of ``tries``; raise ``error`` if no retry is allowed."""
        if attempt.outcome not in _RETRIED or tries >= self.limits.retries:
            raise error
        if attempt.is_probe:
            return tries
        has_breaker = not math.isinf(self.limits.failures)
        is_paused = retry_after_of(error) is not None or not has_breaker
        if attempt.outcome == "rate_limited" and is_paused:
            # While the server answers other requests of a dataset, a refusal uses up no try.
            return tries + (has_breaker or self._clock() - self._answered >= _MINUTE)
        while tries < self.limits.retries:
            tries += 1
            delay = self._draw() * _back_off(tries)
            if self._clock() + delay >= attempt.deadline:
                break
            await asyncio.sleep(delay)
            with self._lock:
                now = self._clock()
                # As many retries as first attempts, but at least three, in a minute.
                if self._retries.sum(now) < max(_FREE_RETRIES, self._firsts.sum(now)):
                    self._retries.add(now, 1)
                    return tries
        raise error

    async def _admit(self, attempt: Attempt, slots: asyncio.Semaphore) -> None:
        patience = self._clock() + self.limits.patience
        until = patience if math.isinf(attempt.deadline) else attempt.deadline
        while True:
            await self._wait_for_server(until)
            seconds = until - _LATE - self._clock() if slots.locked() else None  # None: at once
            try:
                await asyncio.wait_for(slots.acquire(), seconds)
            except asyncio.TimeoutError as error:
                cause = f"not sent: {len(self._under_way)} other requests were under way"
                raise self._refused(errors.JudgeTimeoutError, cause) from error
            with self._lock:
                now = self._clock()
                if self._paused_until <= now and not self.breaker.wait(now):
                    attempt.began = now
                    attempt.is_probe = self.breaker.is_probing = self.breaker.is_open
                    self._under_way.add(attempt)
                    self._firsts.add(now, int(attempt.is_first))
                    return
            slots.release()

    async def _wait_for_server(self, until: float) -> None:
        end_of_patience = min(until, self._clock() + self.limits.patience)
        while True:
            now, breaker = self._clock(), self.breaker
            pause, probe = self._paused_until - now, breaker.wait(now)
            if now >= until:
                raise self._refused(
                    errors.JudgeTimeoutError, "not sent: the time of the turn is over"
                )
            if pause > 0 and now + pause >= end_of_patience:
                cause = f"the server refuses requests (429); next try in {pause:.0f} s"
                raise self._refused(errors.JudgeRateLimitError, f"not sent: {cause}")
            if pause <= 0 < probe and (not breaker.is_passing or now + probe >= until - _LATE):
                cause = f"{breaker.failures} requests failed in a row; next try in {probe:.0f} s"
                raise self._refused(errors.JudgeUnavailableError, f"not asked: {cause}")
            if pause <= 0 and probe <= 0:
                return
            # Another request may close the breaker before the probe.
            await asyncio.sleep(pause if pause > 0 else min(probe, _POLL))

    def _refused(self, kind: type[errors.JudgeError], cause: str) -> errors.JudgeError:
        error = kind(cause)
        error.requests = 0
        for observe in self.refusal_observers:
            observe(error.reason)
        return error

    def _record(self, attempt: Attempt, error: BaseException | None) -> None:
        now = self._clock()
        is_late = now >= attempt.deadline - _LATE
        outcome = attempt.outcome if error is None else outcome_of(error)
        if outcome == "cancelled" and is_late:  # the evaluation cancels what is too late
            outcome = "timeout"
        attempt.outcome, attempt.error = outcome, error
        pause, change = 0.0, None
        with self._lock:
            if attempt not in self._under_way:  # it began before a fork
                return
            self._under_way.discard(attempt)
            self._answered = now if outcome == "ok" else self._answered
            # A server that answered another request meanwhile is slow, and not broken.
            is_slow = outcome == "timeout" and is_late and self._answered >= attempt.began
            counted: Outcome = "cancelled" if is_slow and not attempt.is_probe else outcome
            is_first = attempt.began >= self._paused_at
            # Refusals of requests that were under way together are one failure.
            if outcome != "rate_limited" or is_first or attempt.is_probe:
                draw, is_probe = self._draw(), attempt.is_probe
                change = self.breaker.ended(counted, is_probe=is_probe, now=now, draw=draw)
            after = retry_after_of(error)
            if outcome == "rate_limited" or after is not None:
                pause = self._pause(after, now=now, is_first=is_first)
        # Without the lock, because a handler of the application may block.
        if pause >= 1:
            line = "the %s is over its rate limit: no request for %.0f s"
            self._log.write("pause", line, self.title, pause)
        if change == "opened":
            line = "the %s fails (%s, %.0f in a row): no request but a probe every %.0f s or less"
            told = (outcome, self.breaker.failures, _LONGEST_PROBE)
            self._log.write("opened", line, self.title, *told)
        elif change == "closed":
            self._log.write("closed", "the %s answers again", self.title)
        for observe in self.observers:
            observe(outcome, now - attempt.began)
        caller = current_scope()
        caller.on_attempt(attempt, caller.meter)

    def _pause(self, seconds: float | None, *, now: float, is_first: bool) -> float:
        if is_first:
            self._paused_at = now
        if seconds is None:
            seconds = _back_off(max(1, self.breaker.failures)) / 2 * (1 + self._draw())
        jitter = self._draw() * min(1.0, _JITTER * seconds)
        self._paused_until = max(self._paused_until, now + min(seconds, _DAY) + jitter)
        return seconds


def _back_off(tries: int) -> float:
    return min(_LONGEST_BACK_OFF, math.ldexp(_BACK_OFF, tries - 1))
