"""Flush a pipeline, end it, and do so before the process ends, however it ends.

To *drain* a pipeline is to read all spans that have ended, wait for the scores of their turns, and
export all held spans. After that the pipeline holds no more spans back.

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
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry.metrics import get_meter_provider

from rag_eval_otel.environment import sdk_disabled
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.store import CHUNK
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.providers import logger_provider_or_global
from rag_eval_otel.types import Ending, HoldStatus

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider

_MAX_FLUSH_WAIT: Final = 5.0  # seconds that a flush waits for scores
_MAX_RESERVE: Final = 1.0  # seconds of a drain that are left to export the spans and to clean up
_RESERVE: Final = 0.2  # of the time of a drain, if that is less
_GRACE: Final = 0.5  # seconds that spans have to leave if the time of a drain is up
_REPEATED: Final = 1.0  # seconds in which supervisors send SIGTERM twice, to process and group
_LAST: Final = -100  # the priority of our Finalize: after those of the application


@dataclass(frozen=True, slots=True)
class Draining:
    """Flushes and drains ``pipeline``.

    ``logs`` and ``meters`` are the providers that report the scores, too; None stands for the
    global ones. Exporters and sinks are called on threads of their own, so that one that hangs
    delays nobody for longer than the time that a caller gives.
    """

    pipeline: Pipeline
    logs: LoggerProvider | None = None
    meters: MeterProvider | None = None

    def flush(self, timeout: float) -> bool:
        """Read ended spans and runs, wait for their scores, and export all held spans.

        Return False if ``timeout`` seconds passed before all scores came and all spans were passed
        on, or if a span processor reports or raises an error at its flush.
        """
        pipeline = self.pipeline
        deadline = pipeline.now() + timeout
        if pipeline.recorder.runs:
            pipeline.clock.call(pipeline.recorder.flush, timeout)
        flushed = self.force_flush(int(self._left(deadline) * 1000))
        scored = pipeline.evaluator.flush(self._left(deadline))
        return self._flush_sinks(deadline) and scored and flushed

    def flush_all(self, timeout: float) -> None:
        """Flush as `flush` does, and then the exporters of logs and metrics."""
        deadline = self.pipeline.now() + timeout
        self.flush(timeout)
        self._flush_providers(deadline)

    def force_flush(self, timeout_millis: int) -> bool:
        """Wait for scores for half of ``timeout_millis`` (5 s at most), and export all spans.

        Return False if not all spans were passed on in ``timeout_millis``, or if the flush of the
        next processor failed. On a thread of ours, on which a judge, a sink or an exporter may call
        this, nothing is waited for: only the next processor is flushed.
        """
        pipeline = self.pipeline
        if pipeline.is_own_thread():
            self._flush_next(timeout_millis / 1000)
            return not pipeline.store.held
        deadline = pipeline.now() + timeout_millis / 1000
        if pipeline.store.traces:
            pipeline.clock.call(pipeline.submit_ended, self._left(deadline))
        pipeline.store.wait_left(min(_MAX_FLUSH_WAIT, timeout_millis / 2000))
        is_released = self._release_all("flushed", deadline)
        flush = partial(self._flush_next, self._left(deadline))
        return self._within(flush, timeout=self._left(deadline)) and is_released

    def drain(self, timeout: float | None = None) -> None:
        """End the pipeline within ``timeout`` seconds, by default ``shutdown_seconds``.

        Scores are awaited until a fifth of the time is left, but not more than one second of it.
        Then the other spans are exported without scores, and evaluations under way are cancelled.
        """
        self._drain(timeout, lambda _: None)

    def drain_and_flush(self, timeout: float) -> None:
        """End the pipeline as `drain` does, and flush the exporters of spans, logs and metrics.

        In a forked child, metrics are not flushed, because they contain those of the parent. If the
        child has recorded no span and no LangChain run, nothing is done.
        """
        pipeline = self.pipeline
        if pipeline.is_idle_child:
            return
        end = pipeline.now() + timeout
        flush = partial(self._flush_next, _MAX_FLUSH_WAIT)
        self._drain(timeout, lambda until: self._call(flush, deadline=until))
        self._flush_providers(end)
        pipeline.flushes.close()

    def _drain(self, timeout: float | None, exported: Callable[[float], None]) -> None:
        """Drain, and call ``exported(until)`` when all spans were passed on."""
        pipeline = self.pipeline
        timeout = pipeline.config.shutdown_seconds if timeout is None else timeout
        reserve = min(_MAX_RESERVE, timeout * _RESERVE)
        end = pipeline.now() + timeout
        pipeline.close()
        wait = 0.0 if pipeline.is_own_thread() else self._left(end - reserve)
        try:
            pipeline.store.wait_left(wait)
        finally:  # also if Ctrl-C has interrupted the wait
            self._release_all("shutdown", max(end - reserve / 2, pipeline.now() + _GRACE))
        exported(end - reserve / 2)
        self._stop(end, max(reserve, _GRACE) / 4)

    def _stop(self, end: float, share: float) -> None:
        """Cancel evaluations, and close the sinks; each takes at least about ``share`` seconds."""
        pipeline = self.pipeline
        wait = self._left(end - 2 * share)
        stop = partial(pipeline.evaluator.shutdown, wait, grace=share)
        self._within(stop, timeout=wait + share + _GRACE)
        if pipeline.scorer.delivers:  # a backend takes the scores of a span that it has
            flush = partial(self._flush_next, _MAX_FLUSH_WAIT)
            self._within(flush, timeout=max(share, self._left(end) / 2))
            self._flush_sinks(end, at_least=share)
        self._within(_done(pipeline.scorer.close), timeout=max(self._left(end), 2 * share))
        pipeline.flushes.close()

    def _release_all(self, status: HoldStatus, deadline: float) -> bool:
        """Let all that is held now leave with ``status``, and wait for it until ``deadline``.

        The next processor is flushed after every 256 spans, so that its queue does not overflow.
        """
        pipeline = self.pipeline
        spans = pipeline.store.older()
        for i in range(0, len(spans), CHUNK):
            for held in spans[i : i + CHUNK]:
                pipeline.store.decide(held, Ending(status))
            pipeline.clock.export()
            if i + CHUNK < len(spans):
                pipeline.store.wait_left(self._left(deadline), number=spans[i + CHUNK].number)
                left = self._left(deadline)
                if left > 0:
                    self._within(partial(self._flush_next, left), timeout=left)
        return pipeline.store.wait_left(0.0 if pipeline.is_own_thread() else self._left(deadline))

    def _flush_next(self, seconds: float) -> bool:
        with self.pipeline.release_edge:
            return self.pipeline.flush_next(seconds)
        return False

    def _flush_sinks(self, deadline: float, *, at_least: float = 0.0) -> bool:
        """Have the sinks send what waits, until ``deadline``; return False if something is left."""
        if not self.pipeline.scorer.delivers:
            return True
        timeout = max(at_least, self._left(deadline))
        if self.pipeline.is_own_thread():
            timeout = 0.0
        return self._within(partial(self.pipeline.scorer.flush, timeout), timeout=timeout)

    def _flush_providers(self, deadline: float) -> None:
        """Flush the providers that report the scores, which the application may have set late."""
        others: list[Any] = [logger_provider_or_global(self.logs)]
        if not self.pipeline.is_forked:
            others.append(self.meters or get_meter_provider())
        for provider in others:
            self._call(partial(self._flush_provider, provider), deadline=deadline)

    def _flush_provider(self, provider: Any) -> None:
        flush = getattr(provider, "force_flush", None)  # the API's own providers have none
        with self.pipeline.release_edge:
            if flush is not None:
                flush(int(_MAX_FLUSH_WAIT * 1000))

    def _call(self, call: Callable[[], object], *, deadline: float) -> None:
        """Call ``call()``; wait for it until ``deadline``, and for at least half a second."""
        self._within(_done(call), timeout=max(_GRACE, self._left(deadline)))

    def _within(self, call: Callable[[], bool], *, timeout: float) -> bool:
        """Return ``call()``, made on a thread of its own, or False after ``timeout`` seconds."""
        pipeline = self.pipeline
        if pipeline.is_own_thread() or sdk_disabled():
            return call()
        return pipeline.flushes.wait_for(call, timeout)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self.pipeline.now())


def _done(call: Callable[[], object]) -> Callable[[], bool]:
    """Return a function that calls ``call`` and returns True."""
    return lambda: (call(), True)[1]


# --- the end of the process ----------------------------------------------------------------------


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
        """Set our handler where the default handler stands: others end the process themselves."""
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
