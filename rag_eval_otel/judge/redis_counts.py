"""`RedisCounts`: share a budget among processes, in a Redis or Valkey server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rag_eval_otel.config import Limit
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.budget import CELLS, Taken, whole
from rag_eval_otel.runtime.guard import LimitedLog, require
from rag_eval_otel.runtime.threads import Workers

_MICRO = 1_000_000
_THREADS = 4
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
    """Counts of a budget in the Redis at ``url``, such as ``redis://host:6379/0#name``.

    All processes with the same server, database and name (the part after ``#``) share the counts of
    equal units and periods. The sum is checked and raised in one script, so the limits hold exactly
    over all processes.

    If Redis does not answer in ``timeout`` seconds, or in ``socket_timeout`` seconds if ``url`` has
    this argument, `take` returns None for ``retry`` seconds without a call, ``on_error()`` is
    called, and a line a minute is logged. What a process uses meanwhile is not added later.
    """

    def __init__(
        self,
        url: str,
        limits: Sequence[Limit],
        *,
        timeout: float = 0.25,
        retry: float = 5.0,
        on_error: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect with the first call.

        Raises `MissingDependencyError` without ``redis``, and `ConfigError` for a wrong ``url``.
        """
        self._client, name = _client_of(url, timeout=timeout)
        self._script = self._client.register_script(_TAKE)
        redis_error = require("redis", "redis").exceptions.RedisError
        self._errors = (redis_error, OSError, asyncio.TimeoutError, *_OF_ARGUMENTS)
        self._timeout = self._client.connection_pool.connection_kwargs["socket_timeout"]
        # In braces: one slot of a cluster.
        tag = f"{{rag_eval_otel:budget:{name}}}"
        self._keys = [f"{tag}:{limit.unit}:{limit.seconds:g}" for limit in limits]
        self._limits = [whole(limit) for limit in limits]
        self._widths = [round(limit.seconds * _MICRO / CELLS) for limit in limits]
        self.failures = 0
        self._retry = retry
        self._on_error = on_error
        self._clock = clock
        self._away_until = float("-inf")
        self._log = LimitedLog(clock=clock)
        self._workers = Workers(_THREADS)

    async def take(self, amounts: Sequence[int]) -> Taken | None:
        """Take ``amounts`` if no limit is exceeded; return None if Redis cannot be reached."""
        if self._clock() < self._away_until:
            return None
        triples = zip(self._limits, self._widths, amounts, strict=True)
        arguments = [CELLS, *(value for triple in triples for value in triple)]
        call = self._workers.run(lambda: self._script(keys=self._keys, args=arguments))
        try:
            # Several timeouts: for the connection, for the reply, and for a thread.
            refused, *rest = await asyncio.wait_for(call, 4 * self._timeout)
        except self._errors as error:
            self._failed(error)
            return None
        refusal = refused - 1 if refused else None
        return Taken(refused=refusal, cells=tuple(rest[::2]), used=tuple(rest[1::2]))

    def correct(self, cells: Sequence[int], differences: Sequence[int]) -> None:
        """Add ``differences`` to the amounts taken in ``cells``, in the background."""

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
        """Count ``error``, with which a call has failed, and call Redis no more for a while."""
        self.failures += 1
        self._away_until = self._clock() + self._retry
        self._on_error()
        # The message of the error may have the address and its password.
        self._log.write(
            "redis",
            "the budget's Redis cannot be reached (%s): this process counts alone until it is back,"
            " so that all processes together may exceed the budget",
            type(error).__name__,
        )


def _client_of(url: str, *, timeout: float) -> tuple[Any, str]:
    """Return a client for the server in ``url``, which connects with its first call, and the name.

    Raises `ConfigError` if the package ``redis`` cannot use the address. The error does not quote
    it, and has no cause, because both may have the password.
    """
    redis = require("redis", "redis")
    client = None
    address, _, name = str(url).partition("#")
    with suppress(redis.exceptions.RedisError, *_OF_ARGUMENTS):
        connected = redis.Redis.from_url(
            address, socket_timeout=timeout, socket_connect_timeout=timeout
        )
        # The arguments after ? are checked by a connection and a script only. Nothing is sent.
        connected.connection_pool.connection_class(**connected.connection_pool.connection_kwargs)
        connected.register_script("")
        client = connected
    if client is None or "@" in name:
        msg = "redis must be a URL such as redis://host:6379/0#name; in a password, write # as %23"
        raise ConfigError(msg)
    return client, name
