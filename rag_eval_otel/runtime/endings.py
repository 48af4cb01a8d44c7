"""Do the last work of a process, however the process ends.

Python calls the functions of `atexit` only if the interpreter ends by itself. `call_at_end` also
covers these endings::

    end of the program, sys.exit       atexit
    SIGTERM                            a signal handler, only where the default handler stands
    uvicorn, also under gunicorn       `Server.shutdown` is wrapped, because the server then kills
                                       its process by the default handler
    a forked child of multiprocessing  a Finalize, because such a child ends by os._exit
    a child of Celery's prefork pool   the signal worker_process_shutdown, for the same reason

Nothing can be done before SIGKILL and os._exit, and before a handler of the application that ends
the process by the default handler: call `Handle.shutdown()` there.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import FrameType
from typing import Any, Final, Protocol

from rag_eval_otel.runtime.fork import call_in_child

_REPEATED: Final = 1.0  # seconds in which supervisors send SIGTERM twice, to process and group
_LAST: Final = -100  # the priority of our Finalize: after those of the application


class LastWork(Protocol):
    """Something that must finish its work before the process ends, such as a pipeline."""

    def drain(self) -> object:
        """Finish the work. Python is ending by itself, so exporters end after this call."""

    def drain_and_flush(self, timeout: float) -> object:
        """Finish the work and flush the exporters; they get no other call."""

    def flush_all(self, timeout: float) -> object:
        """Finish the work up to now and flush the exporters, because the process may be killed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Registration:
    """Last work that `call_at_end` has registered, and its limit of time in seconds."""

    work: LastWork
    seconds: float
    at_sigterm: bool

    def cancel(self) -> None:
        """Do not call the work any more."""
        _process().remove(self)


def call_at_end(work: LastWork, *, seconds: float, at_sigterm: bool) -> Registration:
    """Call ``work`` before the process ends.

    ``seconds`` limits the time, except at the end of the interpreter. Without ``at_sigterm``,
    nothing is done at SIGTERM.
    """
    registration = Registration(work=work, seconds=seconds, at_sigterm=at_sigterm)
    _process().add(registration)
    return registration


@cache
def _process() -> _Process:
    return _Process()


class _Process:
    """The last work of this process, and the places that call it."""

    def __init__(self) -> None:
        self._registered: tuple[Registration, ...] = ()
        self._finalized_in = 0  # the process that has a Finalize of ours
        self._follows_forks = False
        self._follows_celery = False
        self._forget_sigterm()
        call_in_child(self._after_fork)

    def add(self, registration: Registration) -> None:
        self._registered = (*self._registered, registration)
        atexit.register(registration.work.drain)  # before meter and logger providers that are older
        if registration.at_sigterm:
            self._handle_sigterm()
        self._follow_servers()
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            self._finalize()

    def remove(self, registration: Registration) -> None:
        atexit.unregister(registration.work.drain)
        self._registered = tuple(each for each in self._registered if each is not registration)
        is_main = threading.current_thread() is threading.main_thread()
        if not self._at_sigterm and is_main and _handler() == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @property
    def _at_sigterm(self) -> tuple[Registration, ...]:
        return tuple(each for each in self._last_first if each.at_sigterm)

    @property
    def _last_first(self) -> tuple[Registration, ...]:
        """The last work in the order of `atexit`."""
        return self._registered[::-1]

    # --- SIGTERM ----------------------------------------------------------------------------------

    def _forget_sigterm(self) -> None:
        self._ending_since: float | None = None
        self._drained_until = 0.0  # on the monotonic clock

    def _handle_sigterm(self) -> None:
        """Set our handler where the default handler stands.

        A handler of the application or its server ends the process in its own way. No handler can
        be set on other threads than the main one, and in a sub-interpreter.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and _handler() is signal.SIG_DFL:
            with suppress(ValueError):  # signals work only in the main interpreter
                signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Start the last work and return, because the main thread may hold a lock that it needs.

        When the work is done, the signal is sent again, and then it ends the process. An
        application may have set its handler later and call ours from it. Then the application ends
        the process, and so does process 1 of a container, which the kernel spares: the pipelines
        are only flushed.
        """
        is_first = self._ending_since is None
        if _handler() != self._on_sigterm or os.getpid() == 1:
            _start_in_handler(partial(self.flush, self._at_sigterm))
        elif self._is_drained() or not self._at_sigterm or self._is_impatient():
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        elif is_first:
            self._ending_since = time.monotonic()
            _start_in_handler(self._end)

    def _is_drained(self) -> bool:
        return time.monotonic() < self._drained_until

    def _is_impatient(self) -> bool:
        """Return True if this SIGTERM is another request than the first one."""
        since = self._ending_since
        return since is not None and time.monotonic() - since > _REPEATED

    def _end(self) -> None:
        works = self._at_sigterm
        try:
            calls = [partial(each.work.drain_and_flush, each.seconds) for each in works]
            _call_all(calls, timeout=max(each.seconds for each in works))
        finally:
            self._drained_until = math.inf
            os.kill(os.getpid(), signal.SIGTERM)

    def flush(self, works: Sequence[Registration]) -> None:
        if works:
            calls = [partial(each.work.flush_all, each.seconds) for each in works]
            _call_all(calls, timeout=max(each.seconds for each in works))

    # --- servers and children ---------------------------------------------------------------------

    def _after_fork(self) -> None:
        self._forget_sigterm()
        self._follow_servers()

    def _follow_servers(self) -> None:
        """Watch uvicorn, and the children of multiprocessing and Celery, if they are imported."""
        server = getattr(sys.modules.get("uvicorn.server"), "Server", None)
        if server is not None and not hasattr(server.shutdown, "_rag_eval_otel"):
            server.shutdown = self._flushed_after(server.shutdown)
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._follows_forks:
            self._follows_forks = True
            # A child forgets the finalizers of its parent, and then calls this.
            util.register_after_fork(self, _Process._finalize)
        signals = sys.modules.get("celery.signals")
        if signals is not None and not self._follows_celery:
            self._follows_celery = True
            signals.worker_process_shutdown.connect(self._end_child, weak=False)

    def _flushed_after(self, shutdown: Callable[..., Any]) -> Callable[..., Any]:
        """Return uvicorn's ``shutdown`` with a flush after it, off the event loop.

        The server has answered all requests by then, and raises SIGTERM again next.
        """

        @wraps(shutdown)
        async def shut_down_and_flush(*arguments: Any, **options: Any) -> Any:
            try:
                return await shutdown(*arguments, **options)
            finally:
                await self._flush_beside_loop(self._at_sigterm)

        shut_down_and_flush._rag_eval_otel = True  # type: ignore[attr-defined]  # noqa: SLF001
        return shut_down_and_flush

    async def _flush_beside_loop(self, works: Sequence[Registration]) -> None:
        """Flush on a thread of ours: those of the event loop may hang in the application."""
        if not works:
            return
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self.flush(works)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(flushed.set)

        _start(flush)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(flushed.wait(), max(each.seconds for each in works) + _REPEATED)
        self._drained_until = time.monotonic() + _REPEATED

    def _finalize(self) -> None:
        """Have the last work of this child of multiprocessing done before it calls os._exit."""
        if self._finalized_in != os.getpid():
            self._finalized_in = os.getpid()
            util: Any = sys.modules["multiprocessing.util"]
            util.Finalize(None, self._end_child, exitpriority=_LAST)

    def _end_child(self, **_: object) -> None:
        _call_all([partial(each.work.drain_and_flush, each.seconds) for each in self._last_first])


def _handler() -> object:
    return signal.getsignal(signal.SIGTERM)


def _start_in_handler(call: Callable[[], object]) -> None:
    """Run ``call`` on a thread; `threading.Thread` takes a lock that the main thread may hold."""
    with suppress(RuntimeError):  # the interpreter is shutting down, and `atexit` drains
        _thread.start_new_thread(call, ())


def _start(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, name="rag-eval-otel-end", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down
        call()
    return thread


def _call_all(calls: Sequence[Callable[[], object]], *, timeout: float | None = None) -> None:
    """Call all functions at the same time, each on a thread, and wait ``timeout`` s for all."""
    until = None if timeout is None else time.monotonic() + timeout
    for thread in [_start(call) for call in calls]:
        if thread.is_alive():
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
