"""`RedisCalls`: call a Redis or Valkey server that may be slow or away."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.runtime.installed import require
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.runtime.workers import DaemonExecutor

T = TypeVar("T")

_THREADS = 4
_OF_ARGUMENTS = (AttributeError, LookupError, TypeError, ValueError)
"""Errors of the package ``redis`` for wrong arguments after ? in a URL, some only on connecting."""


class RedisCalls:
    """Calls to the Redis at ``url``, such as ``redis://host:6379/0#name``, in threads.

    ``name`` is the part of the URL after ``#``. A call waits at most ``timeout`` seconds for Redis,
    or ``socket_timeout`` seconds if ``url`` has this argument. When a call fails, ``is_away`` is
    true for ``retry`` seconds, in which callers should do without Redis. Then ``on_error()`` is
    called, and one line a minute is logged: ``told``, in which ``%s`` is the kind of the error.
    ``option`` is the name of the option that has ``url``.
    """

    def __init__(
        self,
        url: str,
        *,
        option: str,
        told: str,
        timeout: float = 0.25,
        retry: float = 5.0,
        on_error: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect with the first call.

        Raises `MissingDependencyError` without ``redis``, and `ConfigError` for a wrong ``url``.
        """
        redis = require("redis", "redis")
        address, self.name = _parts_of(url, option)
        self.client = _client_of(address, option, timeout=timeout)
        self.errors: tuple[type[BaseException], ...] = (
            *(redis.exceptions.RedisError, OSError, asyncio.TimeoutError),
            *_OF_ARGUMENTS,
        )
        self.failures = 0
        self._timeout = self.client.connection_pool.connection_kwargs["socket_timeout"]
        self._told = told
        self._retry = retry
        self._on_error = on_error
        self._clock = clock
        self._down_until = self._answered_at = float("-inf")
        self._log = LimitedLog(clock=clock)
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget the lock and the threads, which a forked child does not have."""
        # Reentrant: a garbage collection may end a request while the lock is held.
        self._lock = threading.RLock()
        self._executor: DaemonExecutor | None = None

    @property
    def is_away(self) -> bool:
        """Whether a call has failed in the last ``retry`` seconds."""
        return self._clock() < self._down_until

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run ``call``, which uses ``client``, in a thread."""
        with self._lock:
            if self._executor is None:
                self._executor = DaemonExecutor(_THREADS, around=_silent)
                weakref.finalize(self, self._executor.shutdown).atexit = False
            return self._executor.submit(self._answered, call)

    def _answered(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``, and note when it was there."""
        result = call()
        self._answered_at = time.monotonic()
        return result

    async def result_of(self, call: Future[T]) -> T | None:
        """Return the result of ``call``, which was submitted; return None if Redis failed it.

        While Redis answers other calls, ``call`` goes on waiting: for its turn, not for Redis.
        """
        reply = asyncio.wrap_future(call)
        try:
            while not reply.done():
                began = time.monotonic()
                # Twice the timeout: one for the connection and one for the reply.
                await asyncio.wait([reply], timeout=2 * self._timeout)
                if not reply.done() and (self.is_away or self._answered_at < began):
                    raise asyncio.TimeoutError
            return reply.result()
        except self.errors as error:
            self.failed(error)
            return None
        finally:
            reply.cancel()

    def failed(self, error: BaseException) -> None:
        """Count ``error``, with which a call has failed, and call Redis no more for a while."""
        self.failures += 1
        self._down_until = self._clock() + self._retry
        self._on_error()
        # The message of the error may have the address and its password.
        self._log.write("redis", self._told, type(error).__name__)


def _parts_of(url: object, option: str) -> tuple[str, str]:
    """Return address and name in ``url``; raise `ConfigError` if it cannot be divided."""
    if not isinstance(url, str):
        msg = f"{_wrong(option)}, not a {type(url).__name__}"
        raise ConfigError(msg)
    address, _, name = url.partition("#")
    if "@" in name:
        msg = f"{_wrong(option)}: in a password, write # as %23"
        raise ConfigError(msg)
    return address, name


def _wrong(option: str) -> str:
    return f"{option} must be a URL such as redis://host:6379/0#name"


def _client_of(address: str, option: str, *, timeout: float) -> Any:
    """Return a client for the server at ``address``, which connects with its first call.

    Raises `ConfigError` if the package ``redis`` cannot use ``address``. The error does not quote
    it, and has no cause, because both may have the password.
    """
    redis = require("redis", "redis")
    try:
        client = redis.Redis.from_url(
            address, socket_timeout=timeout, socket_connect_timeout=timeout
        )
        pool = client.connection_pool
        # The arguments after ? are checked by a connection and a script only. Nothing is sent.
        pool.connection_class(**pool.connection_kwargs)
        client.register_script("")
    except (*_OF_ARGUMENTS, redis.exceptions.RedisError):
        pass
    else:
        return client
    msg = (
        f"{_wrong(option)}. After ?, it may have arguments of connections in the package redis,"
        " such as ?client_name=shop (the value is not shown here, because it may have a password)"
    )
    raise ConfigError(msg)


@contextmanager
def _silent() -> Iterator[None]:
    """Trace none of the calls to Redis in a thread."""
    silence()
    yield
