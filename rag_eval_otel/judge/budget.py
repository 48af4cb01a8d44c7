"""`Budget`: limit the requests, tokens and money of judge and embedder in windows of time."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rag_eval_otel.config import Limit
from rag_eval_otel.errors import BudgetSpentError, ConfigError
from rag_eval_otel.prices import Prices
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import LimitedLog, require
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.types import Usage

CELLS = 200  # of a window; each cell leaves the window as a whole
NANO = 1_000_000_000  # money is counted in whole billionths, so that sums are exact
_REPLY = 256  # estimated tokens of a reply
_PER_CHARACTER = 1 / 3  # estimated tokens of a text; English has about 1/4
_THREADS = 4
_REST = 5.0  # seconds after an error in which Redis is not asked
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
_FRESH = 1.0  # seconds for which the sums of all processes that a request has seen are used


class SlidingWindow:
    """The sum of the amounts of the last ``seconds``, to a precision of ``seconds / cells``."""

    def __init__(self, seconds: float, *, cells: int = CELLS) -> None:
        self._count = cells
        self._width = seconds / cells
        self._cells: deque[list[int]] = deque()  # pairs of the cell's number and its amount
        self._sum = 0

    def sum(self, now: float) -> int:
        first = int(now / self._width) - self._count
        while self._cells and self._cells[0][0] < first:
            self._sum -= self._cells.popleft()[1]
        return self._sum

    def add(self, now: float, amount: int) -> int:
        self._sum = self.sum(now) + amount  # without what is too old, even if nobody asks for sums
        cell = int(now / self._width)
        if not self._cells or self._cells[-1][0] < cell:
            self._cells.append([cell, 0])
        last = self._cells[-1]  # later than ``cell`` if another thread had a later time
        last[1] += amount
        return last[0]

    def correct(self, cell: int, difference: int) -> None:
        """Add ``difference`` to interval ``cell``, as `add` returned it, unless it is too old."""
        for pair in self._cells:
            if pair[0] == cell:
                pair[1] += difference
                self._sum += difference


def whole(limit: Limit) -> int:
    return round(limit.amount * NANO) if limit.is_money else int(limit.amount)


@dataclass(slots=True, eq=False, kw_only=True)
class Reservation:
    """An admitted request: for each limit, the estimate, and the interval in which it counts."""

    model: str
    amounts: tuple[int, ...]
    cells: tuple[int, ...]
    shared: tuple[int, ...] | None  # the intervals in Redis; None: it is not counted there
    is_settled: bool = False


class Budget:
    """Limits what the requests to judge and embedder may take in windows of time. Thread-safe.

    Until `settle`, a request counts with an estimate by its size; with ``estimates="off"``, as
    one request with one token, so that it is admitted while anything is left. A request larger than
    a limit is admitted if nothing of the limit is used. ``shared`` counts for several processes;
    while Redis is away, each process counts alone.
    """

    def __init__(
        self,
        limits: Sequence[Limit],
        *,
        prices: Prices | None = None,
        estimates: Literal["on", "off"] = "on",
        shared: RedisCounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = tuple(limits)
        self.prices = prices or Prices()
        self._most = [whole(limit) for limit in self.limits]
        self._windows = [SlidingWindow(limit.seconds) for limit in self.limits]
        self._estimates = estimates
        self._shared = shared
        self._clock = clock
        self._seen: Sequence[int] = ()
        self._seen_until = -math.inf
        self._reset_lock()
        call_in_child(self._reset_lock)
        for limit in self.limits:
            if limit.is_money and limit.unit != self.prices.currency:
                raise ConfigError(
                    f"the budget {limit} is in {limit.unit}, but prices are in"
                    f" {self.prices.currency}: use one currency in the options budget and prices"
                )

    def _reset_lock(self) -> None:
        self._lock = threading.RLock()  # reentrant: a garbage collection may end a request

    def require_price(self, model: str, part: str) -> None:
        money = next((limit for limit in self.limits if limit.is_money), None)
        price = self.prices.price_of(model)
        if money is None or (price is not None and (part != "judge" or price.output is not None)):
            return
        lacks = "which is not known" if price is None else 'whose price has no "output"'
        raise ConfigError(
            f"the budget {money} needs the price of the {part} {model!r}, {lacks}:"
            " name it in the option prices, install the extra prices (docs/cost.md), or limit"
            " requests or tokens"
        )

    async def reserve(self, model: str, *, size: int, part: str = "judge") -> Reservation:
        """Reserve one attempt with ``size`` characters; raise `BudgetSpentError` beyond a limit."""
        is_on = self._estimates == "on"
        tokens, reply = (math.ceil(size * _PER_CHARACTER), _REPLY) if is_on else (1, 0)
        estimate = Usage(judge_requests=1, prompt_tokens=tokens, completion_tokens=reply)
        if part == "embedder":
            estimate = Usage(embedding_requests=1, embedding_tokens=tokens)
        amounts = tuple(self._amounts(model, estimate))
        shared = None if self._shared is None else await self._shared.take(amounts)
        with self._lock:
            now = self._clock()
            if shared is None:
                refused = self._first_exceeded(amounts, [one.sum(now) for one in self._windows])
            else:
                refused, _, self._seen = shared
                self._seen_until = now + _FRESH
            if refused is not None:
                raise BudgetSpentError(f"not asked: the budget of {self.limits[refused]} is spent")
            # This process counts on its own, too, for the time when the shared counts are gone.
            local = tuple(map(SlidingWindow.add, self._windows, [now] * len(amounts), amounts))
        taken = None if shared is None else shared[1]
        return Reservation(model=model, amounts=amounts, cells=local, shared=taken)

    def settle(self, reservation: Reservation, usage: Usage | None, *, requests: int = 1) -> None:
        """Replace the estimate by ``usage`` (None: ``requests`` estimates); only the first time."""
        if reservation.is_settled:
            return
        reservation.is_settled = True
        if usage is None:
            amounts = [requests * amount for amount in reservation.amounts]
        else:
            amounts = self._amounts(reservation.model, usage)
        differences = [new - old for new, old in zip(amounts, reservation.amounts, strict=True)]
        with self._lock:
            for rows in zip(self._windows, reservation.cells, differences, strict=True):
                SlidingWindow.correct(*rows)
        if self._shared is not None and reservation.shared is not None and any(differences):
            self._shared.correct(reservation.shared, differences)

    def _amounts(self, model: str, usage: Usage) -> list[int]:
        counts = {
            "requests": usage.judge_requests + usage.embedding_requests,
            "judge requests": usage.judge_requests,
            "tokens": usage.tokens,
        }
        price = self.prices.price_of(model) if any(one.is_money for one in self.limits) else None
        money = 0 if price is None else math.ceil(round(price.of(usage) * NANO, 3))
        return [counts.get(limit.unit, money) for limit in self.limits]

    def _first_exceeded(self, amounts: Sequence[int], used: Sequence[int]) -> int | None:
        rows = zip(amounts, used, self._most, strict=True)
        exceeded = (amount and sum_ and sum_ + amount > most for amount, sum_, most in rows)
        return next((index for index, is_exceeded in enumerate(exceeded) if is_exceeded), None)

    @property
    def spent_limit(self) -> Limit | None:
        index = self._first_exceeded([1] * len(self.limits), self._used())
        return None if index is None else self.limits[index]

    def left(self) -> list[tuple[Limit, float]]:
        rows = zip(self.limits, self._most, self._used(), strict=True)
        return [(one, max(0, most - n) / (NANO if one.is_money else 1)) for one, most, n in rows]

    def _used(self) -> list[int]:
        with self._lock:
            now = self._clock()
            local = [window.sum(now) for window in self._windows]
        return list(map(max, local, self._seen if now < self._seen_until else local))


_OF_ARGUMENTS = (AttributeError, LookupError, TypeError, ValueError)
"""Errors of the package ``redis`` for wrong arguments after ? in a URL, some only on connecting."""

# For each limit: its key, and the arguments limit, width of a cell in microseconds and amount. The
# clock is that of the server, so that all processes have the same windows. A limit of which nothing
# is used admits any amount. Returns the number of the limit that refuses (0: none), then each cell
# and sum.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cells, refused, result = {}, 0, {0}
local count = tonumber(ARGV[1])
for i, key in ipairs(KEYS) do
  local limit, width = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local amount, cell, sum = tonumber(ARGV[3 * i + 1]), math.floor(now / width), 0
  local pairs = redis.call('HGETALL', key)
  for j = 1, #pairs, 2 do
    if tonumber(pairs[j]) < cell - count then
      redis.call('HDEL', key, pairs[j])
    else
      sum = sum + tonumber(pairs[j + 1])
    end
  end
  if refused == 0 and amount > 0 and sum > 0 and sum + amount > limit then refused = i end
  cells[i], result[2 * i], result[2 * i + 1] = string.format('%.0f', cell), cell, sum
end
result[1] = refused
for i, key in ipairs(KEYS) do
  if refused == 0 then
    redis.call('HINCRBY', key, cells[i], ARGV[3 * i + 1])
    result[2 * i + 1] = result[2 * i + 1] + tonumber(ARGV[3 * i + 1])
  end
  redis.call('PEXPIRE', key, string.format('%.0f', ARGV[3 * i] / 1000 * (count + 2)))
end
return result
"""


class RedisCounts:
    """Counts in Redis what processes with the same ``#name`` in ``url`` take from a budget."""

    def __init__(
        self,
        url: str,
        limits: Sequence[Limit],
        *,
        timeout: float = 0.25,
        on_error: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, name = _client_of(url, timeout=timeout)
        self._script = self._client.register_script(_TAKE)
        redis_error = require("redis", "redis").exceptions.RedisError
        self._errors = (redis_error, OSError, asyncio.TimeoutError, *_OF_ARGUMENTS)
        self._timeout = self._client.connection_pool.connection_kwargs["socket_timeout"]
        tag = f"{{rag_eval_otel:budget:{name}}}"  # in braces: one slot of a cluster
        self._keys = [f"{tag}:{limit.unit}:{limit.seconds:g}" for limit in limits]
        self._limits = [(whole(each), round(each.seconds * 1e6 / CELLS)) for each in limits]
        self._on_error = on_error
        self._clock = clock
        self._away_until = -math.inf
        self._log = LimitedLog(clock=clock)
        self._workers = Workers(_THREADS)

    async def take(
        self, amounts: Sequence[int]
    ) -> tuple[int | None, tuple[int, ...], list[int]] | None:
        """Add ``amounts`` unless a limit refuses; None for 5 seconds after an error of Redis.

        Returns the index of the limit that refuses, or None, and the cells and sums of all limits.
        """
        if self._clock() < self._away_until:
            return None
        arguments = [CELLS]
        for limit, amount in zip(self._limits, amounts, strict=True):
            arguments += [*limit, amount]
        call = self._workers.run(lambda: self._script(keys=self._keys, args=arguments))
        try:
            # Several timeouts: for the connection, for the reply, and for a thread.
            refused, *rest = await asyncio.wait_for(call, 4 * self._timeout)
        except self._errors as error:
            self._failed(error)
            return None
        return refused - 1 if refused else None, tuple(rest[::2]), rest[1::2]

    def correct(self, cells: Sequence[int], differences: Sequence[int]) -> None:
        def call() -> None:
            try:
                with self._client.pipeline(transaction=False) as pipeline:
                    for key, cell, each in zip(self._keys, cells, differences, strict=True):
                        pipeline.hincrby(key, str(cell), each)
                    pipeline.execute()
            except self._errors as error:
                self._failed(error)

        self._workers.submit(call)

    def _failed(self, error: BaseException) -> None:
        self._away_until = self._clock() + _REST
        self._on_error()
        # The message of the error may have the address and its password.
        self._log.write(
            "redis",
            "the budget's Redis cannot be reached (%s): this process counts alone until it is back,"
            " so that all processes together may exceed the budget",
            type(error).__name__,
        )


def _client_of(url: str, *, timeout: float) -> tuple[Any, str]:
    """Return a client, and the budget's name after ``#``; a `ConfigError` quotes no password."""
    redis = require("redis", "redis")
    client = None
    address, _, name = str(url).partition("#")
    with suppress(redis.exceptions.RedisError, *_OF_ARGUMENTS):
        connected = redis.Redis.from_url(address, **dict.fromkeys(_TIMEOUTS, timeout))
        # The arguments after ? are checked by a connection and a script only. Nothing is sent.
        connected.connection_pool.connection_class(**connected.connection_pool.connection_kwargs)
        connected.register_script("")
        client = connected
    if client is None or "@" in name:
        raise ConfigError("redis must be a URL such as redis://host/0#name; in passwords, # is %23")
    return client, name
