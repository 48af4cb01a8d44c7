"""`BackgroundEvaluator`: one daemon thread with an event loop, on which all evaluation happens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from rag_eval_otel.executor import DaemonExecutor
from rag_eval_otel.fork import call_in_child
from rag_eval_otel.suppression import silence

POLL_SECONDS = 0.01
LINGER_SECONDS = 0.5
_JOIN_SECONDS = 1.0


class Job(Protocol):
    """What is submitted; told apart by identity."""

    async def run(self) -> None:
        """Do it; must not raise."""

    def give_up(self) -> None:
        """Take note, on the thread, that a shutdown has cancelled it, begun or not."""


class BackgroundEvaluator:
    """Runs jobs on a thread of its own, ``concurrency`` at a time, at most ``capacity`` in all.

    The thread starts with the first job, is a daemon, and does not survive a fork: the child
    starts its own. Whatever the jobs call is hidden from instrumentation.

    Submitting makes no system call that gives up the interpreter's lock, which would hand the
    processor from the application to the judge: an idle thread waits for the queue itself; one
    that is busy, or was within ``LINGER_SECONDS``, looks into it every ``POLL_SECONDS``.
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
        # Reentrant: a garbage collection may end spans while the lock is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: set[Job] = set()
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self.thread_id: int | None = None
        """The identity of the evaluation thread while it runs."""

    def submit(self, job: Job) -> bool:
        """Take ``job``, or return False: full, shut down, or the interpreter is exiting."""
        with self._lock:
            full = self._closed or len(self._pending) >= self._capacity
            if full or not (self._thread or self._start()):
                return False
            self._pending.add(job)
            self._queue.put(job)
        return True

    def flush(self, timeout: float) -> bool:
        """Wait until the jobs submitted so far are done; False if ``timeout`` seconds passed."""
        with self._changed:
            waited_for = set(self._pending)
            return self._changed.wait_for(lambda: waited_for.isdisjoint(self._pending), timeout)

    def shutdown(self, timeout: float) -> bool:
        """Take no more jobs, give those there ``timeout`` seconds, cancel the rest, and stop."""
        with self._lock:
            self._closed = True
        done = self.flush(timeout)
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)
        return done

    def _start(self) -> bool:
        # Made here: once the interpreter exits, which may be soon, the thread could start no other.
        executor = DaemonExecutor()
        thread = threading.Thread(
            target=self._run, args=(executor,), name="rag-eval-otel", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down
            return False
        self._thread = thread
        return True

    def _run(self, executor: DaemonExecutor) -> None:
        silence()
        self.thread_id = threading.get_ident()
        loop = _Loop(self._queue, concurrency=self._concurrency, done=self._done)
        try:
            loop.run(executor)
        finally:
            self.thread_id = None  # the system gives the number to another thread

    def _done(self, job: Job) -> None:
        with self._changed:
            self._pending.discard(job)
            self._changed.notify_all()


class _Loop:
    """The thread's side: an event loop that runs while there are jobs."""

    def __init__(
        self,
        queue: SimpleQueue[Job | None],
        *,
        concurrency: int,
        done: Callable[[Job], None],
    ) -> None:
        self._queue = queue
        self._done = done
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._look_now = asyncio.Event()
        self._stopping = False

    def run(self, executor: DaemonExecutor) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(executor)
        while not self._stopping:
            self._take(self._queue.get())
            self._loop.run_until_complete(self._serve())
        # This closes the judge's connections.
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self) -> None:
        """Run until nothing has been left to do for a while, looking for more now and then."""
        until = 0.0
        while self._tasks or (self._loop.time() < until and not self._stopping):
            if self._tasks:
                until = self._loop.time() + LINGER_SECONDS
            self._look_now.clear()
            timer = self._loop.call_later(POLL_SECONDS, self._look_now.set)
            await self._look_now.wait()
            timer.cancel()
            self._look()

    def _look(self) -> None:
        """Begin whatever has been submitted meanwhile."""
        with suppress(Empty):
            while True:
                self._take(self._queue.get_nowait())

    def _take(self, job: Job | None) -> None:
        if job is None:
            self._stopping = True
            for task in self._tasks:
                task.cancel()
            return
        task = self._loop.create_task(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(job, done))

    async def _work(self, job: Job) -> None:
        async with self._slots:
            await job.run()

    def _finished(self, job: Job, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            job.give_up()
        self._done(job)
        if not self._tasks:
            self._look_now.set()
