"""`BackgroundEvaluator`: run jobs on one daemon thread with an event loop.

A job is, for example, the evaluation of one RAG answer. `Sweeper` makes regular calls on a thread.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Literal, Protocol, TypeAlias

from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import LimitedLog, silence
from rag_eval_otel.runtime.workers import AROUND, DaemonExecutor

POLL_SECONDS = 0.01
LINGER_SECONDS = 0.5
_JOIN_SECONDS = 1.0

GivenUp: TypeAlias = Literal["shutdown", "error"]
"""Why a job was not completed.

``shutdown``: a shutdown has cancelled the job. ``error``: the job has raised an exception.
"""


class Job(Protocol):
    """A unit of work for `BackgroundEvaluator`; each object counts as a separate job."""

    @property
    def size(self) -> int:
        """About how many bytes this job keeps in memory."""

    def begin(self) -> None:
        """Do the work that need not wait for other jobs, on the evaluator's thread."""

    async def run(self) -> None:
        """Do the rest of the work; at most ``concurrency`` jobs run at the same time."""

    def give_up(self, why: GivenUp) -> None:
        """Clean up after the job was cancelled (``shutdown``) or has failed (``error``)."""


class BackgroundEvaluator:
    """Run jobs on a thread of its own, at most ``concurrency`` jobs at the same time.

    The evaluator takes at most ``capacity`` jobs, which keep at most ``max_bytes`` in memory. The
    thread is a daemon and starts with the first job. A forked child starts its own thread.
    Instrumentation is suppressed for all calls of the jobs.

    `submit` makes no system call that releases the interpreter's lock. Otherwise the judge's thread
    could run in place of the application's thread. An idle thread waits for the queue of jobs. A
    thread with jobs polls the queue every ``POLL_SECONDS``, until ``LINGER_SECONDS`` after its last
    job.
    """

    def __init__(
        self, *, concurrency: int = 16, capacity: int = 1024, max_bytes: float = float("inf")
    ) -> None:
        self._concurrency = concurrency
        self._capacity = capacity
        self._max_bytes = max_bytes
        self.is_closed = False
        self.threads: set[int] = set()
        """The identities of the threads on which jobs and what they call run."""
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget the thread and the jobs; after a fork, the parent process still does the jobs."""
        # Reentrant: a garbage collection may end spans while the lock is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: set[Job] = set()
        self._waits: list[set[Job]] = []
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self.threads.clear()

    def submit(self, job: Job) -> bool:
        """Have ``job`` run on the evaluator's thread; return True if the job is accepted.

        Return False if there is no room, after a shutdown, and if Python exits before the thread
        has started. A job that another job submits is always accepted, because both jobs share the
        same texts in memory. A flush that waits for the first job also waits for the second job.
        """
        with self._lock:
            follows = self._thread is not None and self.is_current()
            room = len(self._pending) < self._capacity and self._bytes + job.size <= self._max_bytes
            room = room or follows
            if (self.is_closed and not follows) or not room or not (self._thread or self._start()):
                return False
            self._pending.add(job)
            for waited_for in self._waits if follows else ():
                waited_for.add(job)
            self._bytes += job.size
            self._queue.put(job)
        return True

    def flush(self, timeout: float) -> bool:
        """Wait until the jobs submitted so far are done; return False after ``timeout`` seconds.

        If a job calls this method, the method does not wait, because the job would wait for itself.
        """
        timeout = 0.0 if self.is_current() else timeout
        with self._changed:
            waited_for = set(self._pending)
            self._waits.append(waited_for)
            try:
                return self._changed.wait_for(lambda: waited_for.isdisjoint(self._pending), timeout)
            finally:
                self._waits = [one for one in self._waits if one is not waited_for]

    def is_current(self) -> bool:
        """Return True if the caller runs on one of the evaluator's threads."""
        return threading.get_ident() in self.threads

    def shutdown(self, timeout: float) -> bool:
        """Accept no more jobs, wait up to ``timeout`` seconds for jobs, and cancel unfinished jobs.

        If a judge blocks the evaluator's thread, the calling thread calls ``give_up`` of each
        unfinished job. Return True if all jobs were done in time.
        """
        with self._lock:
            self.is_closed = True
        done = self.flush(timeout)
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if not self.is_current():
                thread.join(_JOIN_SECONDS)
                self._give_up_all()
        return done

    def _give_up_all(self) -> None:
        with self._changed:
            stuck, self._pending = self._pending, set()
            self._changed.notify_all()
        for job in stuck:
            job.give_up("shutdown")

    def _start(self) -> bool:
        _know_processor()
        # Made on this thread: once the interpreter exits, the new thread cannot start a thread.
        executor = DaemonExecutor(around=self._own_thread)
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
        with self._own_thread():
            loop = _Loop(self._queue, concurrency=self._concurrency, finished=self._finished)
            loop.run(executor)

    @contextmanager
    def _own_thread(self) -> Iterator[None]:
        """Suppress instrumentation on the current thread, and list the thread in ``threads``."""
        silence()
        AROUND.set(self._own_thread)
        ident = threading.get_ident()
        self.threads.add(ident)
        try:
            yield
        finally:
            self.threads.discard(ident)  # the system reuses the number

    def _finished(self, job: Job, why: GivenUp | None) -> None:
        """Remove ``job`` from the unfinished jobs. If it was not completed, call its ``give_up``.

        ``why`` is None for a completed job. `_give_up_all` may have given up the job before.
        """
        try:
            if why is not None and job in self._pending:
                job.give_up(why)
        finally:
            with self._changed:
                self._pending.discard(job)
                self._bytes -= job.size
                self._changed.notify_all()


def _know_processor() -> None:
    """Under gevent, keep `platform.platform` from starting a child process.

    The ``openai`` client calls it before the first request, and it runs ``uname -p``. The
    `subprocess` of gevent forks, and until the child runs that program, fork handlers of other
    libraries may run this process's greenlets in the child a second time.
    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("subprocess"):
        vars(platform.uname()).setdefault("processor", "")


class _Loop:
    """Run the jobs in ``queue`` in an event loop on the thread of `BackgroundEvaluator`.

    At most ``concurrency`` jobs run at the same time. ``finished`` is called after each job. While
    there are no jobs, the event loop does not run, and the thread waits for the queue.
    """

    def __init__(
        self,
        queue: SimpleQueue[Job | None],
        *,
        concurrency: int,
        finished: Callable[[Job, GivenUp | None], None],
    ) -> None:
        self._queue = queue
        self._finished = finished
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._poll_now = asyncio.Event()
        self._stopping = False
        self._log = LimitedLog()

    def run(self, executor: DaemonExecutor) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(executor)
        while not self._stopping:
            self._take(self._queue.get())
            self._finish(self._loop.create_task(self._serve()))
        # This closes the judge's connections.
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _finish(self, task: asyncio.Task[None]) -> None:
        """Run the loop until ``task`` is done, even if another task raises SystemExit."""
        while not task.done():
            with suppress(
                SystemExit, KeyboardInterrupt
            ):  # they stop the loop, which can be resumed
                self._loop.run_until_complete(task)

    async def _serve(self) -> None:
        """Poll the queue for jobs until there have been no jobs for ``LINGER_SECONDS``."""
        until = 0.0
        while self._tasks or (self._loop.time() < until and not self._stopping):
            if self._tasks:
                until = self._loop.time() + LINGER_SECONDS
            self._poll_now.clear()
            timer = self._loop.call_later(POLL_SECONDS, self._poll_now.set)
            await self._poll_now.wait()
            timer.cancel()
            self._begin_submitted()

    def _begin_submitted(self) -> None:
        """Begin all jobs that are in the queue now."""
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
        task.add_done_callback(lambda done: self._close(job, done))

    async def _work(self, job: Job) -> None:
        job.begin()
        async with self._slots:
            await job.run()

    def _close(self, job: Job, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._poll_now.set()
        why: GivenUp | None = None
        if task.cancelled():
            why = "shutdown"
        elif (error := task.exception()) is not None:
            self._log.write("job", "a job failed", error=error)
            why = "error"
        self._finished(job, why)


class Sweeper:
    """Call ``sweep`` every ``seconds`` seconds on a daemon thread.

    The first `wake` starts the thread, and `stop` ends it. A forked child has no such thread. The
    child must call `reset`, and the next `wake` then starts a thread in the child.
    """

    def __init__(self, sweep: Callable[[], None], *, seconds: float = 0.05) -> None:
        self._sweep = sweep
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Forget the thread and a previous `stop`, for example in a forked child."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> bool:
        """Start the thread if it does not run; return False if no thread can be started."""
        if self._thread is not None:
            return True
        with self._lock:
            return self._start()

    def stop(self) -> None:
        """End the thread that calls ``sweep``. A later `wake` does not start a thread again."""
        self._stopped.set()

    def _start(self) -> bool:
        if self._thread is None and not self._stopped.is_set():
            thread = threading.Thread(target=self._run, name="rag-eval-otel-watch", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down
                return False
            self._thread = thread
        return self._thread is not None

    def _run(self) -> None:
        silence()
        stopped = self._stopped
        while not stopped.wait(self._seconds):
            self._sweep()
