"""Drain pipelines before the process ends.

`atexit` does not cover SIGTERM, uvicorn, which kills its process, and the children of
multiprocessing and Celery, which end by os._exit.
"""

from __future__ import annotations

import _thread
import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import FrameType
from typing import Any, Final, Protocol

from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.threads import Workers, start_thread

_REPEATED: Final = 1.0  # seconds in which supervisors send SIGTERM twice, to process and group


class _Work(Protocol):  # such as a pipeline
    def drain(self) -> object: ...  # at a normal exit; the exporters are shut down later
    def drain_and_flush(self, timeout: float) -> object: ...  # the exporters are not shut down
    def flush_all(self, timeout: float) -> object: ...  # the process may be killed


@dataclass(frozen=True, slots=True, eq=False)
class _Registration:
    work: _Work
    seconds: float
    at_sigterm: bool


def call_at_end(work: _Work, *, seconds: float, at_sigterm: bool) -> Callable[[], None]:
    """Finish ``work`` before the process ends, and return a function that cancels this.

    The work has ``seconds``, except at a normal exit. ``at_sigterm``: also after SIGTERM.
    """
    registration = _Registration(work, seconds, at_sigterm)
    _process().add(registration)
    return partial(_process().remove, registration)


@cache
def _process() -> _Process:
    return _Process()


class _Process:
    """The registered work of this process, and the hooks that finish it."""

    def __init__(self) -> None:
        self._registered: tuple[_Registration, ...] = ()
        self._finalized_in = 0  # the process that has a Finalize of ours
        self._follows_forks = self._follows_celery = False
        self._after_fork()
        call_in_child(self._after_fork)

    def _after_fork(self) -> None:
        self._ending_since: float | None = None
        self._drained_until = 0.0  # on the monotonic clock
        self._follow_servers()

    def add(self, registration: _Registration) -> None:
        self._registered = (registration, *self._registered)  # the last first, as in `atexit`
        atexit.register(registration.work.drain)  # before meter and logger providers that are older
        # Only where the default handler stands: others end the process themselves.
        if registration.at_sigterm and _is_main() and _handler() is signal.SIG_DFL:
            with suppress(ValueError):  # signals work only in the main interpreter
                signal.signal(signal.SIGTERM, self._on_sigterm)
        self._follow_servers()
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            self._finalize()

    def remove(self, registration: _Registration) -> None:
        atexit.unregister(registration.work.drain)
        self._registered = tuple(each for each in self._registered if each is not registration)
        if not self._at_sigterm and _is_main() and _handler() == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @property
    def _at_sigterm(self) -> tuple[_Registration, ...]:
        return tuple(each for each in self._registered if each.at_sigterm)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Finish the work on a thread, as the current one may hold a lock, and send SIGTERM again.

        The work is only flushed if the application has a handler of its own that calls ours, or
        in process 1 of a container, which the default handler does not end.
        """
        now, since = time.monotonic(), self._ending_since
        is_impatient = since is not None and now - since > _REPEATED
        if _handler() != self._on_sigterm or os.getpid() == 1:
            _start_in_handler(partial(self._call, "flush_all"))
        elif now < self._drained_until or not self._at_sigterm or is_impatient:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        elif since is None:
            self._ending_since = now
            _start_in_handler(self._end)

    def _end(self) -> None:
        try:
            self._call("drain_and_flush")
        finally:
            self._drained_until = math.inf
            os.kill(os.getpid(), signal.SIGTERM)

    def _call(self, method: str) -> None:
        """Call ``method`` of all work that is due at SIGTERM, in parallel, and wait."""
        works = self._at_sigterm
        threads = [_start(partial(getattr(each.work, method), each.seconds)) for each in works]
        until = time.monotonic() + max((each.seconds for each in works), default=0.0)
        for thread in filter(None, threads):
            thread.join(max(0.0, until - time.monotonic()))

    def _follow_servers(self) -> None:
        """Hook into uvicorn, multiprocessing and Celery, as far as they are imported."""
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
        @wraps(shutdown)
        async def shut_down_and_flush(*arguments: Any, **options: Any) -> Any:
            try:
                return await shutdown(*arguments, **options)
            finally:
                await self._flush_beside_loop()

        shut_down_and_flush._rag_eval_otel = True  # type: ignore[attr-defined]  # noqa: SLF001
        return shut_down_and_flush

    async def _flush_beside_loop(self) -> None:
        """Flush on a thread of its own, because those of the event loop may hang."""
        if self._at_sigterm:
            await Workers(1).run(partial(self._call, "flush_all"))
            self._drained_until = time.monotonic() + _REPEATED

    def _finalize(self) -> None:
        """Have multiprocessing call `_end_child` in this child process before os._exit."""
        if self._finalized_in != os.getpid():
            self._finalized_in = os.getpid()
            util: Any = sys.modules["multiprocessing.util"]
            util.Finalize(None, self._end_child, exitpriority=-100)  # after the application's

    def _end_child(self, **_: object) -> None:
        works = [_start(partial(w.work.drain_and_flush, w.seconds)) for w in self._registered]
        for thread in filter(None, works):
            thread.join()


def _handler() -> object:
    return signal.getsignal(signal.SIGTERM)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _start_in_handler(call: Callable[[], object]) -> None:
    """Run ``call`` on a thread without `threading.Thread`, which takes a lock."""
    with suppress(RuntimeError):  # the interpreter is shutting down, and `atexit` drains
        _thread.start_new_thread(call, ())


def _start(call: Callable[[], object]) -> threading.Thread | None:
    thread = start_thread(call, "-end")
    if thread is None:  # the interpreter is shutting down
        call()
    return thread
