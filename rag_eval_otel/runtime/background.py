"""`BackgroundEvaluator`: run jobs, such as the evaluation of an answer, on a daemon thread."""

from __future__ import annotations

import asyncio
import platform
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal, Protocol, TypeAlias

from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.runtime.workers import AROUND, DaemonExecutor

POLL_SECONDS = 0.01
LINGER_SECONDS = 0.5
_JOIN_SECONDS = 1.0
_LATE_SECONDS = 0.1  # seconds between two searches for jobs that are too late
_BURST = 4  # times ``concurrency``: as many jobs may wait without overload

GivenUp: TypeAlias = Literal["shutdown", "error", "overload"]
"""Why a job was not completed.

``shutdown``: a shutdown has cancelled the job. ``error``: the job has raised an exception.
``overload``: too many jobs have waited, and the result of this job would be too late.
"""


class Job(Protocol):
    """A unit of work for `BackgroundEvaluator`; each object counts as a separate job."""

    @property
    def size(self) -> int:
        """About how many bytes this job keeps in memory."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the result of this job is too late. 0 if it already is, inf if never."""

    def begin(self) -> bool:
        """Do the work that need not wait for other jobs; return True if `run` must be called."""

    async def run(self) -> None:
        """Do the rest of the work; at most ``concurrency`` jobs run at the same time."""

    def give_up(self, why: GivenUp) -> None:
        """Clean up after the job was not completed, because of ``why``."""


class BackgroundEvaluator:
    """Run jobs on a thread of its own, at most ``concurrency`` jobs at the same time.

    The evaluator takes at most ``capacity`` jobs, which keep at most ``max_bytes`` in memory. The
    thread is a daemon and starts with the first job. A forked child starts its own thread.
    Instrumentation is suppressed for all calls of the jobs.

    Of the jobs that wait, the newest runs first. There is overload from the moment at which more
    than four times ``concurrency`` jobs wait until no job waits. During overload, a job that waits
    and whose result would be too late is given up (``overload``), so that time and money go to jobs
    that are still in time. A burst of fewer jobs is done to the end.

    Code of a job that blocks the event loop delays the other jobs. Nothing but jobs depends on the
    thread, so that it delays scores and no span.

    `submit` makes no system call that releases the interpreter's lock. Otherwise the judge's thread
    could run in place of the application's thread. An idle thread waits for the queue of jobs. A
    thread with jobs polls the queue when a job ends, and every ``POLL_SECONDS``, until
    ``LINGER_SECONDS`` after its last job.
    """

    def __init__(
        self,
        *,
        concurrency: int = 16,
        capacity: int = 1024,
        max_bytes: float = float("inf"),
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
        self._given_up: set[Job] = set()  # of those: the jobs whose `give_up` is running
        self._waits: list[set[Job]] = []
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
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

    def shutdown(self, timeout: float, *, grace: float = _JOIN_SECONDS) -> bool:
        """Accept no more jobs, wait up to ``timeout`` seconds for jobs, and cancel unfinished jobs.

        The jobs have ``grace`` seconds to be cancelled, which is more than they need.

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
                thread.join(grace)
                self._give_up_all()
        return done

    def _give_up_all(self) -> None:
        with self._changed:
            stuck = self._pending - self._given_up
            self._pending, self._bytes = set(), 0
            self._changed.notify_all()
        for job in stuck:
            job.give_up("shutdown")

    def _start(self) -> bool:
        _know_processor()
        # Made on this thread: once the interpreter exits, the new thread cannot start a thread.
        executor = DaemonExecutor(around=self._own_thread)
        # Made now, because gevent may have replaced this class since the fork.
        self._queue = queue.SimpleQueue()
        loop = _Loop(self, self._queue, concurrency=self._concurrency)
        thread = threading.Thread(
            target=self._run, args=(loop, executor), name="rag-eval-otel", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down
            return False
        self._thread = thread
        return True

    def _run(self, loop: _Loop, executor: DaemonExecutor) -> None:
        with self._own_thread():
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

    def is_pending(self, job: Job) -> bool:
        """Return True unless ``job`` was given up by a shutdown."""
        with self._lock:
            return job in self._pending

    def finished(self, job: Job, *, why: GivenUp | None) -> None:
        """Remove ``job`` from the unfinished jobs. If it was not completed, call its ``give_up``.

        ``why`` is None for a completed job. `_give_up_all` may have given up the job before.
        """
        with self._lock:  # `_give_up_all` must not give up the job, too
            if job not in self._pending:
                why = None
            if why is not None:
                self._given_up.add(job)
        try:
            if why is not None:
                job.give_up(why)
        finally:
            self._remove(job)

    def _remove(self, job: Job) -> None:
        with self._changed:
            self._given_up.discard(job)
            if job in self._pending:  # else it was removed before
                self._pending.remove(job)
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


class _Pace:
    """Estimates how long a job runs: the mean of the last jobs plus twice their mean deviation."""

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0

    def add(self, seconds: float) -> None:
        error = seconds - self._mean
        self._mean += error / 8
        self._deviation += (abs(error) - self._deviation) / 4

    @property
    def estimate(self) -> float:
        return self._mean + 2 * self._deviation


_Slot: TypeAlias = "asyncio.Future[bool]"
"""True if the waiting job may run now, False if its result would be too late."""


class _Loop:
    """Run the ``jobs`` in an event loop on the thread of ``evaluator``.

    At most ``concurrency`` jobs run at the same time. While there are no jobs, the event loop does
    not run, and the thread waits for the queue.
    """

    def __init__(
        self,
        evaluator: BackgroundEvaluator,
        jobs: queue.SimpleQueue[Job | None],
        *,
        concurrency: int,
    ) -> None:
        self._evaluator = evaluator
        self._queue = jobs
        self._concurrency: Final = concurrency
        self._free = concurrency
        self._waiting: dict[Job, _Slot] = {}  # the newest last
        self._is_overloaded = False
        self._pace = _Pace()
        self._tasks: set[asyncio.Task[GivenUp | None]] = set()
        self._stopping = False
        self._log = LimitedLog()

    def run(self, executor: DaemonExecutor) -> None:
        self._loop = asyncio.new_event_loop()
        self._poll_now = asyncio.Event()
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
            # They stop the loop, which can be resumed.
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_until_complete(task)

    async def _serve(self) -> None:
        """Poll the queue for jobs until there have been no jobs for ``LINGER_SECONDS``."""
        until = late_at = 0.0
        while self._tasks or (self._loop.time() < until and not self._stopping):
            now = self._loop.time()
            if self._tasks:
                until = now + LINGER_SECONDS
            await self._take_next()
            if now >= late_at:
                self._drop_late()
                late_at = now + _LATE_SECONDS

    async def _take_next(self) -> None:
        """Begin the next job of the queue; if there is none, wait until a job ends or for a moment.

        Between two jobs, the jobs that have begun go on: the judge gets the first request before
        all jobs of a burst have begun.
        """
        self._poll_now.clear()
        try:
            job = self._queue.get_nowait()
        except queue.Empty:
            timer = self._loop.call_later(POLL_SECONDS, self._poll_now.set)
            await self._poll_now.wait()
            timer.cancel()
        else:
            self._take(job)
            await asyncio.sleep(0)

    def _take(self, job: Job | None) -> None:
        if job is None:
            self._stopping = True
            for task in self._tasks:
                task.cancel()
            return
        task = self._loop.create_task(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._close(job, done))

    async def _work(self, job: Job) -> GivenUp | None:
        if not self._evaluator.is_pending(job) or not job.begin():
            return None
        if not await self._slot(job):
            return "overload"
        began = self._loop.time()
        try:
            if self._evaluator.is_pending(job):
                await job.run()
        finally:
            self._pace.add(self._loop.time() - began)
            self._free += 1
            self._call_next()
        return None

    async def _slot(self, job: Job) -> bool:
        """Wait until ``job`` may run; return False under overload, if its result would be too late.

        Without overload, a job runs even if its result is late: its scores are still of use.
        """
        if self._free:
            self._free -= 1
            return True
        slot: _Slot = self._loop.create_future()
        self._waiting[job] = slot
        if len(self._waiting) > _BURST * self._concurrency:
            self._is_overloaded = True
        try:
            return await slot
        finally:
            self._waiting.pop(job, None)

    def _is_in_time(self, job: Job) -> bool:
        return not self._is_overloaded or job.seconds_left > self._pace.estimate

    def _call_next(self) -> None:
        """Give free slots to the waiting jobs, the newest first."""
        while self._free and self._waiting:
            job, slot = self._waiting.popitem()
            if slot.done():  # cancelled
                continue
            in_time = self._is_in_time(job)
            self._free -= in_time
            slot.set_result(in_time)
        self._is_overloaded &= bool(self._waiting)

    def _drop_late(self) -> None:
        """Under overload, give up the waiting jobs whose results would be too late."""
        for job in [job for job in self._waiting if not self._is_in_time(job)]:
            slot = self._waiting.pop(job)
            if not slot.done():
                slot.set_result(False)
        self._is_overloaded &= bool(self._waiting)

    def _close(self, job: Job, task: asyncio.Task[GivenUp | None]) -> None:
        self._tasks.discard(task)
        self._poll_now.set()  # a job that was submitted meanwhile may take its place
        if task.cancelled():
            why: GivenUp | None = "shutdown"
        elif (error := task.exception()) is not None:
            self._log.write_error("a job", error)
            why = "error"
        else:
            why = task.result()
        self._evaluator.finished(job, why=why)
