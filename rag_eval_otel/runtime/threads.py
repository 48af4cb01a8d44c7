"""Daemon threads: the event loop that runs jobs, and workers for calls that block or hang.

Nothing here makes the application wait: jobs and calls run on threads of this library, all of them
daemons. A forked child starts threads of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import platform
import queue
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import LimitedLog, silence

T = TypeVar("T")

POLL_SECONDS = 0.01
LINGER_SECONDS = 0.5
_JOIN_SECONDS = 1.0
_LATE_SECONDS = 0.1  # seconds between two searches for jobs that are too late
_BURST = 4  # times ``concurrency``: as many jobs may wait without overload

_around: contextvars.ContextVar[Callable[[], AbstractContextManager[None]]] = (
    contextvars.ContextVar("rag_eval_otel_around", default=nullcontext)
)
"""Makes the context manager within which other threads run calls for the current thread."""


# --- threads for calls ----------------------------------------------------------------------------


class DaemonExecutor(ThreadPoolExecutor):
    """An executor with at most ``max_workers`` threads, all of them daemons.

    An ordinary executor rejects calls while Python exits, when the last answers are scored. One
    thread starts together with this executor, because from Python 3.12 on none can be started while
    Python exits. Each thread works within ``around()``. A call that is cancelled before it has
    begun is dropped at once, with the texts to which it refers.
    """

    def __init__(
        self,
        max_workers: int = 16,
        *,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(max_workers)
        self._around = around
        self._waiting: dict[Future[Any], Callable[[], Any]] = {}
        self._turns: queue.SimpleQueue[Literal["call", "end"]] = queue.SimpleQueue()
        # Reentrant: a garbage collection may cancel calls while the lock is held.
        self._lock = threading.RLock()
        self._workers = 0
        self._busy = 0
        self._grow()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._busy += 1
            self._waiting[future] = partial(fn, *args, **kwargs)
        future.add_done_callback(self._drop_cancelled)
        if self._busy > self._workers:
            self._grow()
        self._turns.put("call")
        return future

    def _drop_cancelled(self, future: Future[Any]) -> None:
        with self._lock:
            if self._waiting.pop(future, None) is not None:
                self._busy -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Let the threads end after the submitted calls; return without waiting for the threads."""
        for _ in range(self._workers):
            self._turns.put("end")

    @property
    def has_threads(self) -> bool:
        """Whether at least one thread has started, so that submitted calls will run."""
        return self._workers > 0

    @property
    def is_free(self) -> bool:
        """Whether the submitted calls that have not begun will begin at once."""
        return self._busy <= self._workers

    def _grow(self) -> None:
        if self._workers < self._max_workers and _started(self._work, "rag-eval-otel-io"):
            self._workers += 1

    def _work(self) -> None:
        with self._around():
            while self._turns.get() == "call":
                self._call_next()

    def _call_next(self) -> None:
        with self._lock:
            future = next(iter(self._waiting), None)
            call = self._waiting.pop(future) if future is not None else None
        if future is None or call is None:  # it was cancelled
            return
        _fulfil(future, call)
        del future, call  # they may refer to the object whose deletion ends this thread
        with self._lock:
            self._busy -= 1


def _started(target: Callable[[], object], name: str) -> threading.Thread | None:
    """Return a started daemon thread, or None if the interpreter is shutting down."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _fulfil(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except StopIteration as error:  # asyncio cannot pass it on; a coroutine changes it like this
        future.set_exception(RuntimeError("StopIteration").with_traceback(error.__traceback__))
    except BaseException as error:  # noqa: BLE001  # raised where the result of the future is read
        future.set_exception(error)


class Workers:
    """Run calls that block or may hang, on at most ``limit`` daemon threads.

    The threads start with the first call and end with this object. A call runs in the context of
    its caller; on a thread of `BackgroundEvaluator`, the thread of the call counts as a thread of
    that evaluator, too. If the caller gives up, a call that has begun runs to its end, and one that
    waits for a thread is dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._executor: DaemonExecutor | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call()`` on a worker thread; return its result, or raise its exception."""
        if not self.prepare().has_threads:  # at exit, only the caller's thread is left
            return call()
        return await asyncio.wrap_future(self.submit(call))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run ``call()`` on a worker thread, in the context of the caller; return a future."""
        context, around = contextvars.copy_context(), _around.get()
        return self.prepare().submit(context.run, _call_within, around, call)

    def wait_for(self, call: Callable[[], bool], timeout: float) -> bool:
        """Return the result of ``call``, or False if it takes more than ``timeout`` seconds."""
        with self._lock:  # `close` must not come between
            future = self.submit(call) if self.prepare().has_threads else None
        if future is None:  # the interpreter is exiting, and can start no thread
            return call()
        if wait([future], timeout).done:
            return future.result()
        if not self.prepare().is_free:  # else a thread begins it at once
            future.cancel()
        return False

    def prepare(self) -> DaemonExecutor:
        """Start a thread now, because none can be started while the interpreter exits."""
        with self._lock:
            if self._executor is None:
                self._executor = DaemonExecutor(self._limit)
                weakref.finalize(self, self._executor.shutdown).atexit = False
            return self._executor

    def close(self) -> None:
        """End the threads. A later call starts a thread again."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


def _call_within(around: Callable[[], AbstractContextManager[None]], call: Callable[[], T]) -> T:
    with around():
        return call()


class SyncFirst:
    """Run ``call`` on a worker thread, or await ``acall`` if ``call`` is not implemented.

    They are the blocking and the asynchronous function of another library's client. The blocking
    one is tried first, because the other may be bound to another event loop.
    """

    def __init__(
        self,
        call: Callable[..., T],
        acall: Callable[..., Awaitable[T]],
        *,
        max_threads: int = 16,
    ) -> None:
        self._call, self._acall = call, acall
        self._workers = Workers(max_threads)
        self._is_sync = True

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_sync:
            try:
                return await self._workers.run(lambda: self._call(*args, **kwargs))
            except NotImplementedError:
                self._is_sync = False
        return await self._acall(*args, **kwargs)


class Sweeper:
    """Call ``sweep`` every ``seconds`` seconds on a daemon thread, from `wake` to `stop`."""

    def __init__(self, sweep: Callable[[], None], *, seconds: float = 0.05) -> None:
        self._sweep = sweep
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> bool:
        """Start the thread; return False after `stop`, or while the interpreter exits."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = _started(self._run, "rag-eval-otel-watch")
        return self._thread is not None

    def stop(self) -> None:
        """End the thread that calls ``sweep``. A later `wake` does not start a thread again."""
        self._stopped.set()

    def _run(self) -> None:
        silence()
        while not self._stopped.wait(self._seconds):
            self._sweep()


# --- the event loop that runs jobs ----------------------------------------------------------------

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
    thread starts with the first job. Instrumentation is suppressed for all calls of the jobs.

    Of the jobs that wait, the newest runs first. There is overload from the moment at which more
    than four times ``concurrency`` jobs wait until no job waits. During overload, a job that waits
    and whose result would be too late is given up (``overload``), so that time and money go to jobs
    that are still in time.

    `submit` makes no system call that releases the interpreter's lock, or else the judge's thread
    could run in place of the application's. An idle thread waits for the queue of jobs. A thread
    with jobs polls the queue when a job ends, and every ``POLL_SECONDS``, until ``LINGER_SECONDS``
    after its last job.
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
        # Reentrant: a garbage collection may end spans while the lock is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: set[Job] = set()
        self.is_beginning = False
        """Whether the thread is in ``begin`` of a job, which may submit others."""
        self._given_up: set[Job] = set()  # of those: the jobs whose `give_up` is running
        self._waits: list[set[Job]] = []
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.threads.clear()

    def submit(self, job: Job) -> bool:
        """Have ``job`` run on the evaluator's thread; return True if the job is accepted.

        Return False if there is no room, after a shutdown, and if Python exits before the thread
        has started. A job that another job submits is always accepted, because both share the same
        texts in memory, and a flush that waits for the first also waits for the second.
        """
        with self._lock:
            follows = self._thread is not None and self.is_current()
            taken = len(self._pending) - self.is_beginning  # what it submits takes its place
            room = taken < self._capacity and self._bytes + job.size <= self._max_bytes
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
                self._waits = [each for each in self._waits if each is not waited_for]

    def is_current(self) -> bool:
        """Return True if the caller runs on one of the evaluator's threads."""
        return threading.get_ident() in self.threads

    def shutdown(self, timeout: float, *, grace: float = _JOIN_SECONDS) -> bool:
        """Accept no more jobs, wait up to ``timeout`` seconds for jobs, and cancel the others.

        These have ``grace`` seconds to be cancelled. If a judge blocks the evaluator's thread, the
        calling thread gives them up. Return True if all jobs were done in time.
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
        self._thread = _started(partial(self._run, loop, executor), "rag-eval-otel")
        return self._thread is not None

    def _run(self, loop: _Loop, executor: DaemonExecutor) -> None:
        with self._own_thread():
            loop.run(executor)

    @contextmanager
    def _own_thread(self) -> Iterator[None]:
        """Suppress instrumentation on the current thread, and list the thread in ``threads``."""
        silence()
        _around.set(self._own_thread)
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
            with self._changed:
                self._given_up.discard(job)
                if job in self._pending:
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


_Slot: TypeAlias = "asyncio.Future[bool]"
"""True if the waiting job may run now, False if its result would be too late."""


class _Loop:
    """Run the ``jobs`` in an event loop on the thread of ``evaluator``.

    While there are no jobs, the event loop does not run, and the thread waits for the queue.
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
        self._mean = self._deviation = 0.0  # of the seconds that the last jobs took
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
            serving = self._loop.create_task(self._serve())
            while not serving.done():
                # A job that raises one of these stops the loop, which can be resumed.
                with suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_until_complete(serving)
        # This closes the judge's connections.
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

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
        if not (self._evaluator.is_pending(job) and self._begin(job)):
            return None
        if not await self._slot(job):
            return "overload"
        began = self._loop.time()
        try:
            if self._evaluator.is_pending(job):
                await job.run()
        finally:
            error = self._loop.time() - began - self._mean
            self._mean += error / 8
            self._deviation += (abs(error) - self._deviation) / 4
            self._free += 1
            self._call_next()
        return None

    def _begin(self, job: Job) -> bool:
        self._evaluator.is_beginning = True
        try:
            runs = job.begin()
            if not runs:
                self._evaluator.finished(job, why=None)
        finally:
            self._evaluator.is_beginning = False
        return runs

    async def _slot(self, job: Job) -> bool:
        """Wait until ``job`` may run; return False under overload, if its result would be late.

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
        return not self._is_overloaded or job.seconds_left > self._mean + 2 * self._deviation

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
