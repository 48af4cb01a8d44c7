"""The parts of an `Endpoint` that decide whether a request may be sent: breaker, budget, limiter.

None of them reads a clock or draws a random number; the endpoint tells them the time.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rag_eval_otel.errors import JudgeTimeoutError
from rag_eval_otel.judge.budget import SharedCounts
from rag_eval_otel.judge.outcomes import Outcome

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]

_MINUTE = 60.0
_WINDOW = 60.000001  # seconds between requests that must not be in one minute after rounding
_JITTER = 0.1  # most part that is added to the time until a probe
_FREE_RETRIES = 3  # retries a minute that are allowed even if there were few first attempts
_CUT, _SLOWER_CUT = 0.5, 0.8  # what is left of the limit after a 429, and after slower replies
_RECENT, _USUAL = 0.2, 0.02  # weights of a reply in the recent and in the usual latency
_SLOW = 2.0  # the recent latency is too high at this multiple of the usual latency
_OUTLIER = 3.0  # a latency counts as at most this multiple of the usual latency
_LEAST_REPLIES = 20  # replies before the usual latency is known
_ASK_AGAIN = 0.3  # seconds until shared counts that are full are asked again: one of their cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an `Endpoint`.

    - ``retries``: the most retries of a request.
    - ``timeout``: the most seconds of an attempt; None: only the turn's deadline counts.
    - ``patience``: the most seconds that a request waits for a pause, for other requests to end, or
      for the limit of a minute. If a pause would be longer, the request fails at once.
    - ``retry_share``: the most retries in a minute, as a part of the first attempts; infinity: only
      ``retries`` counts. With infinity, a request that is refused with 429 uses up a retry only if
      it was the only one under way.
    - ``concurrency``: the most requests under way, at least 1. The limit falls after a 429 or if
      replies get slow, and grows back to this number while replies are quick.
    - ``requests_per_minute``, ``tokens_per_minute``: None means no limit.
    - ``shared``: counts of several processes, which have the two limits together.
    - ``workers``: the processes among which the two limits are divided, if ``shared`` is None or
      cannot be reached.
    - ``failures``: how many failed attempts in a row open the breaker; infinity: it never opens.
    - ``probe_after``: seconds until the first probe. The time doubles with each failed probe, up to
      ``probe_at_most``.
    """

    retries: int = 3
    timeout: float | None = 30.0
    patience: float = 120.0
    retry_share: float = math.inf
    concurrency: int = 1024
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    shared: SharedCounts | None = None
    workers: int = 1
    failures: float = math.inf
    probe_after: float = 30.0
    probe_at_most: float = 300.0


class Breaker:
    """Decides when a failing endpoint gets no requests, or only a probe. Not thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.failures = 0
        self.openings = 0
        self.probe_seconds = 0.0
        self._is_open = False
        self._is_probed = False
        self._probe_at = math.inf

    @property
    def state(self) -> BreakerState:
        if not self._is_open:
            return "closed"
        return "half_open" if self._is_probed else "open"

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next probe, or None if a request may be sent now.

        While a probe is under way, the result is the time that a failed probe would add.
        """
        if not self._is_open or (now >= self._probe_at and not self._is_probed):
            return None
        return self.probe_seconds if self._is_probed else self._probe_at - now

    def begin(self) -> bool:
        """Return True if the request that is sent now is a probe. Call `wait` first."""
        self._is_probed = self._is_open
        return self._is_open

    def ended(
        self, outcome: Outcome, *, is_probe: bool, now: float, draw: float
    ) -> Literal["opened", "closed"] | None:
        """Count an attempt that ended with ``outcome``; return how the breaker has changed.

        ``draw`` is a random number from 0 to 1, for the jitter of the next probe. While the breaker
        is open, only the result of the probe counts.
        """
        if self._is_open and not is_probe:
            return None
        self._is_probed = False
        # A server that finds fault with the text of a probe answers again.
        if outcome == "ok" or (outcome == "bad_request" and self._is_open):
            was_open, self._is_open, self.failures, self.probe_seconds = self._is_open, False, 0, 0
            return "closed" if was_open else None
        if outcome in {"bad_request", "cancelled"}:
            return None
        self.failures += 1
        if not (is_probe or self._opens(outcome)):
            return None
        was_open, self._is_open = self._is_open, True
        doubled = max(self._limits.probe_after, 2 * self.probe_seconds)
        self.probe_seconds = min(doubled, self._limits.probe_at_most)
        self._probe_at = now + self.probe_seconds * (1 + _JITTER * draw)
        self.openings += not was_open
        return None if was_open else "opened"

    def _opens(self, outcome: Outcome) -> bool:
        never = math.isinf(self._limits.failures)
        at_once = outcome == "unauthorized" and not never
        return at_once or self.failures >= self._limits.failures


class RetryBudget:
    """Keeps retries at a share of the first attempts of the last minute. Not thread-safe.

    Three retries a minute are allowed in any case, so that a first request that fails is retried.
    If ``share`` is infinity, all retries are allowed.
    """

    def __init__(self, share: float) -> None:
        self.is_unlimited = math.isinf(share)
        self._share = share
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
        allowed = max(_FREE_RETRIES, self._share * max(1, len(self._first)))
        if len(self._retries) + 1 > allowed:
            return False
        self._retries.append(now)
        self.total += 1
        return True


def _forget(times: deque[float], now: float) -> None:
    while times and times[0] <= now - _MINUTE:
        times.popleft()


class Slots:
    """Limits how many requests are under way, in all threads and event loops.

    The limit starts at ``most``. After a 429 it is half of the requests under way. It is cut to
    80 % if the recent latency is twice the usual latency. It grows back by one for each round of
    replies while all slots are used.
    """

    def __init__(self, most: int) -> None:
        self.limit = float(most)
        self.in_flight = 0
        self.latency: float | None = None
        self._most = float(most)
        self._usual = 0.0
        self._replies = 0
        self._next_cut = _LEAST_REPLIES
        self._lock = threading.RLock()  # reentrant: garbage collection may end a request
        self._waiting: deque[_Waiter] = deque()

    def without_requests(self) -> Slots:
        """Return free slots with the same limit and latency.

        The requests of an event loop that is blocked for ever would keep their slots.
        """
        with self._lock:
            found = Slots(int(self._most))
            found.limit, found.latency, found._usual = self.limit, self.latency, self._usual
            found._replies, found._next_cut = self._replies, self._next_cut
            return found

    async def acquire(self, timeout: float) -> None:
        """Wait for a slot; raise `JudgeTimeoutError` after ``timeout`` seconds."""
        with self._lock:
            if self.in_flight < int(self.limit) and not self._waiting:
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
            while self._waiting and self.in_flight < int(self.limit):
                waiter = self._waiting.popleft()
                waiter.has_slot = True
                self.in_flight += 1
                try:
                    waiter.loop.call_soon_threadsafe(waiter.wake)
                except RuntimeError:  # the loop is closed, and its request will never be sent
                    waiter.is_used = True  # `acquire` must not give the slot back once more
                    self.in_flight -= 1

    def replied(self, seconds: float) -> None:
        """Count a successful reply that took ``seconds``, and adapt the limit."""
        with self._lock:
            self._replies += 1
            if self.latency is None:
                self.latency = self._usual = seconds
            counted = min(seconds, _OUTLIER * self._usual)
            self.latency += _RECENT * (counted - self.latency)
            self._usual += max(_USUAL, 1 / self._replies) * (counted - self._usual)
            is_full = self.in_flight >= int(self.limit)
            if not is_full or self._replies < _LEAST_REPLIES:
                return
            if self.latency <= _SLOW * self._usual:
                self.limit = min(self._most, self.limit + 1 / self.limit)
            elif self._replies >= self._next_cut:
                self._next_cut = self._replies + int(self.limit)
                self.limit = max(1.0, self.limit * _SLOWER_CUT)

    def halve(self) -> None:
        """Allow half of the requests under way, because the server has replied 429 to one."""
        with self._lock:
            self.limit = max(1.0, min(self.limit, self.in_flight) * _CUT)


class _Waiter:
    """A request that waits for a slot in its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        self.loop = loop
        self.future = future
        self.has_slot = False
        self.is_used = False

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


@dataclass(slots=True, eq=False)  # requests may wait for the same time with as many tokens
class Place:
    """The time at which a request may be sent, and the tokens that are counted for it.

    ``cells`` says where it counts in counts that several processes share, if they were reached.
    """

    at: float
    tokens: int
    is_counted: bool = False
    cells: tuple[int, ...] | None = None


class RateLimiter:
    """Gives each request its time, so that no minute has more than the limits allow.

    The limits hold exactly in each window of 60 seconds. `reserve` may be called from many threads.
    Requests get their times in the order of the calls. ``requests`` and ``tokens`` are the most in
    a minute; None means no limit. ``workers`` processes have the limits together, and each keeps to
    an equal part, at least one request. A request with more tokens than the limit gets a minute of
    its own.
    """

    def __init__(self, requests: float | None, tokens: float | None, *, workers: int = 1) -> None:
        self._all_requests, self._all_tokens = requests, tokens
        self._is_off = requests is None and tokens is None
        self._lock = threading.RLock()
        self._places: deque[Place] = deque()
        self._counted = 0  # tokens in ``_places``
        self.share(workers)

    def share(self, workers: float) -> None:
        """Divide the limits among ``workers`` processes from now on.

        If a process has a third of the work, it may say so by 3.0, or by 1.5 if it has two thirds.
        """
        with self._lock:
            requests, tokens = self._all_requests, self._all_tokens
            self._requests = math.inf if requests is None else max(1, int(requests / workers))
            self._tokens = math.inf if tokens is None else tokens / workers

    def reserve(self, now: float, tokens: int, *, most: float) -> Place | None:
        """Return the place for a request that comes at ``now``.

        Return None if it would have to wait more than ``most`` seconds; then nothing is reserved.
        """
        if self._is_off:
            return Place(now, tokens)
        with self._lock:
            self._forget(now)
            at = max(now, self._places[-1].at if self._places else now)
            places, counted = len(self._places), self._counted
            for place in self._places:
                if place.at > at - _WINDOW and (
                    places < self._requests and counted + tokens <= self._tokens
                ):
                    break
                at = max(at, place.at + _WINDOW)
                places, counted = places - 1, counted - place.tokens
            return None if at - now > most else self._add(at, tokens)

    def note(self, now: float, tokens: int) -> Place:
        """Count a request at ``now`` that another limiter has admitted, and return its place."""
        with self._lock:
            self._forget(now)
            return self._add(max(now, self._places[-1].at if self._places else now), tokens)

    def used(self, now: float) -> tuple[int, int]:
        """Return the requests and the tokens in the minute that ends at ``now``."""
        with self._lock:
            self._forget(now)
            return len(self._places), self._counted

    def _add(self, at: float, tokens: int) -> Place:
        found = Place(at, tokens, is_counted=True)
        self._places.append(found)
        self._counted += tokens
        return found

    def settle(self, place: Place, tokens: int) -> None:
        """Count ``tokens`` for the request at ``place``, now that the reply says how many."""
        with self._lock:
            if place.is_counted:
                self._counted += tokens - place.tokens
            place.tokens = tokens

    def give_back(self, place: Place) -> None:
        """Free ``place``, because its request will not be sent."""
        with self._lock:
            if place.is_counted:
                self._places.remove(place)
                self._counted -= place.tokens
                place.is_counted = False

    def _forget(self, now: float) -> None:
        while self._places and self._places[0].at <= now - _WINDOW:
            place = self._places.popleft()
            place.is_counted = False
            self._counted -= place.tokens


class SharedLimiter:
    """Keeps several processes together within limits a minute, by counts that they share.

    The requests of this process ask the counts one after another, in the order of the calls. While
    the counts cannot be reached, this process keeps to its part of the limits, by a `RateLimiter`.
    Without shared counts in ``limits``, it always does. ``clock`` returns seconds, and ``sleep``
    waits.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        pair = (limits.requests_per_minute, limits.tokens_per_minute)
        self._limited = [limit is not None for limit in pair]
        self._alone = RateLimiter(*pair, workers=limits.workers)
        self._counts = limits.shared if any(self._limited) else None
        self._gate = Slots(1)
        self._clock = clock
        self._sleep = sleep
        self.share = self._alone.share

    def _amounts(self, requests: int, tokens: int) -> list[int]:
        """Return those of the two amounts that have a limit, in the order of the counts."""
        pairs = zip(self._limited, (requests, tokens), strict=True)
        return [amount for is_limited, amount in pairs if is_limited]

    async def reserve(self, tokens: int, until: float) -> Place | None:
        """Return the place of a request, or None if it would have to wait longer than ``until``."""
        if self._counts is None:
            now = self._clock()
            return self._alone.reserve(now, tokens, most=until - now)
        gate = self._gate
        try:
            await gate.acquire(until - self._clock())
        except JudgeTimeoutError:
            return None
        try:
            return await self._reserve_shared(self._counts, tokens, until=until)
        finally:
            gate.release()

    def abandon(self) -> None:
        """Let further requests pass, because an event loop is blocked, maybe for ever."""
        self._gate = self._gate.without_requests()

    async def _reserve_shared(
        self, counts: SharedCounts, tokens: int, *, until: float
    ) -> Place | None:
        while True:
            used = self._amounts(*self._alone.used(self._clock()))
            taken = await counts.take(self._amounts(1, tokens), used)
            now = self._clock()
            if taken is None:
                return self._alone.reserve(now, tokens, most=until - now)
            if taken.refused is None:
                place = self._alone.note(now, tokens)
                place.at, place.cells = now, taken.cells
                return place
            if now + _ASK_AGAIN > until:
                return None
            await self._sleep(_ASK_AGAIN)

    def settle(self, place: Place, tokens: int) -> None:
        """Count ``tokens`` for the request at ``place``, now that the reply says how many."""
        difference = tokens - place.tokens
        self._alone.settle(place, tokens)
        if self._counts is None:
            return
        if place.cells is None:
            self._counts.add(self._amounts(1, tokens))
        elif difference:
            self._counts.correct(place.cells, self._amounts(0, difference))

    def give_back(self, place: Place) -> None:
        """Free ``place``, because its request will not be sent."""
        self._alone.give_back(place)
        if self._counts is not None and place.cells is not None:
            self._counts.correct(place.cells, self._amounts(-1, -place.tokens))
