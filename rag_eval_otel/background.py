"""`BackgroundEvaluator`: one daemon thread with an event loop, on which all evaluation happens."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from opentelemetry import context as otel_context

from rag_eval_otel.executor import DaemonExecutor
from rag_eval_otel.fork import call_in_child

Job: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_SUPPRESSED = (
    "suppress_instrumentation",  # of old; the API's own keys are made anew in every process
    "suppress_http_instrumentation",
    otel_context._SUPPRESS_INSTRUMENTATION_KEY,  # noqa: SLF001  # it has no public name
    otel_context._SUPPRESS_HTTP_INSTRUMENTATION_KEY,  # noqa: SLF001
)
_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """The thread, its loop, and as many slots as jobs may run at once."""

    thread: threading.Thread
    loop: asyncio.AbstractEventLoop
    slots: asyncio.Semaphore


class BackgroundEvaluator:
    """Runs jobs on a thread of its own, ``concurrency`` at a time, at most ``capacity`` in all.

    The thread starts with the first job, is a daemon, and does not survive a fork: the child
    starts its own. Whatever the jobs call is hidden from instrumentation. A job is a function that
    returns a coroutine; it must not raise.
    """

    def __init__(self, *, concurrency: int = 16, capacity: int = 1024) -> None:
        """Start nothing yet."""
        self._concurrency = concurrency
        self._capacity = capacity
        self._closed = False
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget the thread, which a forked child does not have, and the parent's jobs."""
        # The condition's lock is reentrant: a garbage collection may end spans while it is held.
        self._changed = threading.Condition()
        self._jobs: dict[int, asyncio.Task[None] | None] = {}
        self._next = 0
        self._worker: _Worker | None = None
        self._context = _hidden_context()

    @property
    def thread_id(self) -> int | None:
        """The identity of the evaluation thread while it runs."""
        worker = self._worker
        return worker.thread.ident if worker else None

    def submit(self, job: Job, given_up: Callable[[], None] = lambda: None) -> bool:
        """Take ``job``, or return False: full, shut down, or the interpreter is exiting.

        ``given_up`` is called on the thread if a shutdown cancels the job, begun or not.
        """
        with self._changed:
            if self._closed or len(self._jobs) >= self._capacity:
                return False
            self._worker = worker = self._worker or self._start()
            if worker is None:
                return False
            number = self._next
            self._next += 1
            self._jobs[number] = None
            self._call(worker, lambda: self._begin(worker, number, job=job, given_up=given_up))
        return True

    def flush(self, timeout: float) -> bool:
        """Wait until the jobs submitted so far are done; False if ``timeout`` seconds passed."""
        with self._changed:
            last = self._next
            return self._changed.wait_for(
                lambda: not any(number < last for number in self._jobs), timeout
            )

    def shutdown(self, timeout: float) -> bool:
        """Take no more jobs, give those there ``timeout`` seconds, cancel the rest, and stop."""
        with self._changed:
            self._closed = True
        done = self.flush(timeout)
        with self._changed:
            worker, self._worker = self._worker, None
        if worker is not None:
            self._call(worker, lambda: self._stop(worker.loop))
            if worker.thread is not threading.current_thread():
                worker.thread.join(_JOIN_SECONDS)
        return done

    def _start(self) -> _Worker | None:
        loop = asyncio.new_event_loop()
        loop.set_default_executor(DaemonExecutor())
        thread = threading.Thread(target=_run, args=(loop,), name="rag-eval-otel", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down
            loop.close()
            return None
        return _Worker(thread=thread, loop=loop, slots=asyncio.Semaphore(self._concurrency))

    def _call(self, worker: _Worker, function: Callable[[], None]) -> None:
        # In a context of our own: the caller's would carry its current span into the judge.
        worker.loop.call_soon_threadsafe(function, context=self._context)

    def _begin(
        self, worker: _Worker, number: int, *, job: Job, given_up: Callable[[], None]
    ) -> None:
        task = worker.loop.create_task(_work(worker.slots, job))
        with self._changed:
            self._jobs[number] = task
        task.add_done_callback(lambda done: self._finished(number, done, given_up=given_up))

    def _finished(
        self, number: int, task: asyncio.Task[None], *, given_up: Callable[[], None]
    ) -> None:
        if task.cancelled():
            given_up()
        with self._changed:
            self._jobs.pop(number, None)
            self._changed.notify_all()

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what is left, and stop once those concerned have been told."""
        tasks = [task for task in self._jobs.values() if task is not None]
        for task in tasks:
            task.cancel()
        told = asyncio.gather(*tasks, return_exceptions=True)
        told.add_done_callback(lambda _: loop.stop())


async def _work(slots: asyncio.Semaphore, job: Job) -> None:
    async with slots:
        await job()


def _hidden_context() -> contextvars.Context:
    """Return an empty context in which instrumentation is suppressed."""
    context = contextvars.Context()
    context.run(_suppress)
    return context


def _suppress() -> None:
    for key in _SUPPRESSED:
        otel_context.attach(otel_context.set_value(key, value=True))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())  # this closes the judge's connections
    finally:
        loop.close()
