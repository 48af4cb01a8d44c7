"""`RedisCounts`: share the counts of a limit among processes, in a Redis or Valkey server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from rag_eval_otel.judge.budget import CELLS, Taken, whole
from rag_eval_otel.limits import Limit
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.redis_calls import RedisCalls

_MICRO = 1_000_000
_OF_BUDGET = (
    "the budget's Redis cannot be reached (%s): this process counts alone until it is back,"
    " so that all processes together may exceed the budget"
)
_OF_MINUTE = (
    "the Redis with the limits a minute cannot be reached (%s): until it is back, each process"
    " keeps to the limits divided by the number of workers"
)

# For each limit: its key, and the arguments limit, width of a cell in microseconds, amount, and the
# amount that was used while Redis was away. The clock is that of the server, so that all processes
# have the same windows. A limit of which nothing is used admits any amount. Returns the number of
# the refused limit (0: none), then each cell and sum, and the time at which the key was made: if it
# changes, the earlier counts are lost.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cells, refused, result = {}, 0, {0}
local count = tonumber(ARGV[1])
for i, key in ipairs(KEYS) do
  local a = 4 * i - 2
  local limit, width = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local amount, owed = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local cell, sum = math.floor(now / width), owed
  local made = redis.call('HGET', key, 'made') or time[1] .. '.' .. time[2]
  redis.call('HSETNX', key, 'made', made)
  local found = redis.call('HGETALL', key)
  for j = 1, #found, 2 do
    local at = tonumber(found[j])
    if at == nil then -- "made"
    elseif at < cell - count then
      redis.call('HDEL', key, found[j])
    else
      sum = sum + tonumber(found[j + 1])
    end
  end
  cells[i] = string.format('%.0f', cell)
  if owed > 0 then redis.call('HINCRBY', key, cells[i], string.format('%.0f', owed)) end
  if refused == 0 and amount > 0 and sum > 0 and sum + amount > limit then refused = i end
  result[3 * i - 1] = cell
  result[3 * i] = sum
  result[3 * i + 1] = made
end
result[1] = refused
for i, key in ipairs(KEYS) do
  local a = 4 * i - 2
  if refused == 0 then
    redis.call('HINCRBY', key, cells[i], ARGV[a + 2])
    result[3 * i] = result[3 * i] + tonumber(ARGV[a + 2])
  end
  redis.call('PEXPIRE', key, string.format('%.0f', ARGV[a + 1] / 1000 * (count + 2)))
end
return result
"""
# For each limit: its key, and the arguments cell and difference.
_CORRECT = """
for i, key in ipairs(KEYS) do
  if redis.call('HEXISTS', key, ARGV[2 * i - 1]) == 1 then
    redis.call('HINCRBY', key, ARGV[2 * i - 1], ARGV[2 * i])
  end
end
"""


class RedisCounts:
    """Counts of the Redis at ``url``, such as ``redis://host:6379/0#name``.

    They are the counts of a budget, or of the limits a minute of one judge or embedder: ``of`` says
    which, as ``budget`` or, for example, ``minute:judge gpt-5-mini``. All processes with the same
    server, database, name (the part after ``#``) and ``of`` share the counts of equal units and
    periods. The sum is checked and raised in one script, so the limits hold exactly over all
    processes.

    The other options are those of `RedisCalls`, which says how long a call waits. If Redis cannot
    be reached, `take` returns None for ``retry`` seconds without a call. What the process uses
    meanwhile is added to the counts when Redis is back. If Redis has lost its counts, as after a
    restart without persistence, each process adds its own use of the windows with its next request.
    """

    def __init__(
        self,
        url: str,
        limits: Sequence[Limit],
        *,
        of: str = "budget",
        option: str = "budget_redis",
        **options: Any,
    ) -> None:
        """Connect with the first call.

        Raises `MissingDependencyError` without ``redis``, and `ConfigError` for a wrong ``url``.
        """
        told = _OF_BUDGET if of == "budget" else _OF_MINUTE
        calls = self._redis = RedisCalls(url, option=option, told=told, **options)
        self._take_script = calls.client.register_script(_TAKE)
        self._correct_script = calls.client.register_script(_CORRECT)
        # In braces: one slot of a cluster.
        tag = f"{{rag_eval_otel:{of}:{calls.name}}}"
        self._keys = [f"{tag}:{limit.unit}:{limit.seconds:g}" for limit in limits]
        self._limits = [whole(limit) for limit in limits]
        self._widths = [round(limit.seconds * _MICRO / CELLS) for limit in limits]
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget locks, which a forked child does not have, and what the parent owes."""
        # Reentrant: a garbage collection may end a request while the lock is held.
        self._lock = threading.RLock()
        self._taking = threading.RLock()
        self._owed = [0] * len(self._limits)
        self._made: list[bytes] = []

    @property
    def failures(self) -> int:
        """The number of calls that Redis has failed."""
        return self._redis.failures

    async def take(self, amounts: Sequence[int], used: Sequence[int]) -> Taken | None:
        """Take ``amounts`` if no limit is exceeded; return None if Redis cannot be reached.

        ``used`` is what this process has used in the windows.
        """
        if self._redis.is_away:
            return None
        call, found = self._redis.submit(partial(self._take, amounts, used)), None
        try:
            found = await self._redis.result_of(call)
        finally:
            if found is None:
                call.add_done_callback(partial(self._give_back, amounts))
        return found

    def _take(self, amounts: Sequence[int], used: Sequence[int]) -> Taken:
        # One at a time: what is owed by one call must not be restored by another.
        with self._taking:
            return self._take_alone(amounts, used)

    def _take_alone(self, amounts: Sequence[int], used: Sequence[int]) -> Taken:
        with self._lock:
            owed, self._owed = self._owed, [0] * len(self._owed)
        fours = zip(self._limits, self._widths, amounts, owed, strict=True)
        arguments = [CELLS, *(value for four in fours for value in four)]
        try:
            refused, *rest = self._take_script(keys=self._keys, args=arguments)
        except self._redis.errors:
            self.add(owed)
            raise
        self._restore([u - o for u, o in zip(used, owed, strict=True)], made=rest[2::3])
        if any(self._owed):
            nothing = [0] * len(amounts)
            with suppress(*self._redis.errors):  # it stays owed, and ``amounts`` are taken
                self._take(nothing, nothing)
        return Taken(
            refused=refused - 1 if refused else None,
            cells=tuple(rest[::3]),
            used=tuple(rest[1::3]),
        )

    def _restore(self, used: Sequence[int], *, made: list[bytes]) -> None:
        """Owe what this process has ``used`` of each limit whose counts Redis has lost."""
        with self._lock:
            for i, (old, new) in enumerate(zip(self._made, made, strict=False)):
                if old != new:
                    self._owed[i] = max(0, used[i])
            self._made = made

    def _give_back(self, amounts: Sequence[int], call: Future[Taken]) -> None:
        """Subtract ``amounts`` that ``call`` has taken too late: no request counts there."""
        if not call.cancelled() and call.exception() is None and call.result().refused is None:
            self.correct(call.result().cells, [-amount for amount in amounts])

    def correct(self, cells: Sequence[int], differences: Sequence[int]) -> None:
        """Add ``differences`` to the amounts taken in ``cells``, in the background."""
        arguments = [value for pair in zip(cells, differences, strict=True) for value in pair]

        def call() -> None:
            try:
                self._correct_script(keys=self._keys, args=arguments)
            except self._redis.errors as error:
                self._redis.failed(error)
                self.add([max(0, each) for each in differences])

        self._redis.submit(call)

    def add(self, amounts: Sequence[int]) -> None:
        """Add ``amounts`` to the counts with the next call of `take` that reaches Redis."""
        with self._lock:
            for i, amount in enumerate(amounts):
                self._owed[i] += amount
