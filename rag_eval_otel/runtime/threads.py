"""Daemon threads: the event loop that runs jobs, and a pool for calls that block or hang."""

from __future__ import annotations

import asyncio
import contextvars
import platform
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from rag_eval_otel.runtime.fork import call_in_child, leave_to_parent
from rag_eval_otel.runtime.guard import JUDGING, LimitedLog, judging, silence

T = TypeVar("T")

_POLL: Final = 0.01  # seconds between two looks at the queue while jobs run
_IDLE: Final = 0.5  # seconds of polling after the last job
_GRACE: Final = 1.0  # seconds in which cancelled jobs may clean up

_Call: TypeAlias = "tuple[Future[Any], list[Callable[[], Any]]]"
"""A future, and its call in a list, which is emptied when the call has ended or is cancelled."""


def start_thread(target: Callable[[], object], name: str) -> threading.Thread | None:
    thread = threading.Thread(target=target, name=f"rag-eval-otel{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


class Workers(ThreadPoolExecutor):
    """An executor with at most ``max_workers`` daemon threads, for calls that block or may hang."""

    def __init__(self, max_workers: int = 16) -> None:
        super().__init__(max_workers)
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        # Reentrant: a garbage collection may cancel calls while the lock is held.
        self._lock = threading.RLock()
        self._busy = 0  # calls that have not ended
        self._renew()

    def _renew(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._size = 0
        weakref.finalize(self, self._calls.put, None).atexit = False

    def prepare(self, count: int = 1) -> bool:
        """Start ``count`` threads in all, as none can start at exit; return False if none runs."""
        with self._lock:
            for _ in range(self._size, count):
                self._grow()
            return self._size > 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        call: list[Callable[[], Any]] = []
        call.append(partial(contextvars.copy_context().run, fn, *args, **kwargs))
        with self._lock:
            self._busy += 1
            if self._busy > self._size:
                self._grow()
            self._calls.put((future, call))
        future.add_done_callback(partial(self._done, call))
        return future

    def _done(self, call: list[Callable[[], Any]], _: Future[Any]) -> None:
        call.clear()
        with self._lock:
            self._busy -= 1

    def _grow(self) -> None:
        if self._size < self._max_workers and start_thread(partial(_work, self._calls), "-io"):
            self._size += 1

    async def run(self, call: Callable[[], T]) -> T:
        if not self.prepare():  # at exit, only the caller's thread is left
            return call()
        result: T = await asyncio.wrap_future(self.submit(call))
        return result

    def wait_for(self, call: Callable[[], bool], timeout: float) -> bool:
        """Return the result of ``call``, or False if it takes more than ``timeout`` seconds."""
        if not self.prepare():
            return call()
        future = self.submit(call)
        if wait([future], timeout).done:
            return bool(future.result())
        with self._lock:
            is_stuck = self._busy > self._size
        if is_stuck:  # else a thread begins it at once
            future.cancel()
        return False

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """End the threads after the submitted calls; a later `submit` starts a new thread."""
        with self._lock:
            self._calls.put(None)
            self._renew()


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    """Make calls until None comes. The pool's deletion puts None, so no reference to it is kept."""
    while (item := calls.get()) is not None:
        _fulfil(*item)
        del item
    calls.put(None)  # for the next thread


def _fulfil(future: Future[Any], call: list[Callable[[], Any]]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call[0]())
    except StopIteration as error:  # asyncio cannot pass it on; a coroutine changes it like this
        future.set_exception(RuntimeError("StopIteration").with_traceback(error.__traceback__))
    except BaseException as error:  # noqa: BLE001  # raised where the result of the future is read
        future.set_exception(error)


GivenUp: TypeAlias = Literal["shutdown", "error", "overload"]  # why a job was not completed


class Job(Protocol):
    """A unit of work for `BackgroundEvaluator`; each object counts as a separate job."""

    @property
    def size(self) -> int:
        """The approximate memory that this job keeps, in bytes."""

    @property
    def is_late(self) -> Callable[[], bool]:
        """Returns True once the span of this job was exported without the job's result."""

    def begin(self) -> bool:
        """Do the quick part of the work; return True if `run` must be called for the rest."""

    async def run(self) -> None:
        """Do the slow part of the work, at most ``concurrency`` jobs at the same time."""

    def give_up(self, why: GivenUp) -> None:
        """Clean up a job that was not completed; two threads may call this at a shutdown."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A job that only calls ``function``, or ``on_given_up(why)`` if it was not completed."""

    size: int
    function: Callable[[], object]
    on_given_up: Callable[[GivenUp], object]
    is_late: Callable[[], bool] = lambda: False

    def begin(self) -> bool:
        self.function()
        return False

    async def run(self) -> None: ...

    def give_up(self, why: GivenUp) -> None:
        self.on_given_up(why)


@dataclass(eq=False, repr=False)
class BackgroundEvaluator:
    """Runs jobs in an event loop on a thread, ``concurrency`` at a time, the newest first.

    The thread polls while jobs run, as a system call in `submit` to wake it would take the
    application's time. If more than four times ``concurrency`` wait, late jobs are given up.
    """

    concurrency: int = 16
    capacity: int = 1024
    max_bytes: float = float("inf")
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._workers = Workers()
        self._reset()
        call_in_child(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        leave_to_parent((self._tasks, self._waiting))
        self._reset()

    def _reset(self) -> None:
        # Reentrant: a garbage collection may end spans while the lock is held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: dict[Job, int] = {}  # with the number of flushes that had begun before
        self._flushes = 0
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._free = self.concurrency
        self._waiting: dict[Job, asyncio.Future[bool]] = {}  # the newest last; whether it may run
        self._is_overloaded = False
        self._tasks: set[asyncio.Task[GivenUp | None]] = set()
        self._next_poll: asyncio.Handle
        self._polls_until = 0.0
        self._is_stopping = False
        self._log = LimitedLog()

    def submit(self, job: Job) -> bool:
        """Queue ``job``; return False if there is no room or thread."""
        with self._lock:
            # A job that another job submits is always accepted: both share the texts in memory.
            follows = self._thread is not None and self.is_current()
            is_full = len(self._pending) >= self.capacity
            has_room = not is_full and self._bytes + job.size <= self.max_bytes
            may_start = has_room and not self.is_closed
            if not (follows or (may_start and (self._thread or self._start()))):
                return False
            oldest = min(self._pending.values(), default=self._flushes)
            self._pending[job] = oldest if follows else self._flushes
            self._bytes += job.size
            self._queue.put(job)
        return True

    def flush(self, timeout: float) -> bool:
        with self._changed:
            number, self._flushes = self._flushes, self._flushes + 1
            return self._changed.wait_for(
                lambda: all(each > number for each in self._pending.values()),
                0.0 if self.is_current() else timeout,
            )

    def is_current(self) -> bool:
        return judging() is self

    def shutdown(self, timeout: float, *, grace: float = _GRACE) -> bool:
        """Accept no more jobs; cancel those left after ``timeout`` seconds, then return False."""
        with self._lock:
            self.is_closed = True
        is_done = self.flush(timeout)
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if not self.is_current():
                thread.join(grace)
                with self._changed:
                    stuck, self._pending = self._pending, {}
                    self._changed.notify_all()
                for job in stuck:
                    job.give_up("shutdown")
        return is_done

    def _start(self) -> bool:
        monkey = sys.modules.get("gevent.monkey")
        if monkey is not None and monkey.is_module_patched("subprocess"):
            # `platform.platform`, which ``openai`` calls, would fork, and greenlets run twice.
            vars(platform.uname()).setdefault("processor", "")
        self._workers.prepare()  # once the interpreter exits, the new thread cannot start a thread
        self._thread = start_thread(self._run, "")
        return self._thread is not None

    def _run(self) -> None:
        silence()
        JUDGING.set(self)
        self._loop = loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.set_default_executor(self._workers)
        while not self._is_stopping:
            self._take(self._queue.get())
            self._is_idle = loop.create_future()
            self._poll()
            while not self._is_idle.done():
                # A job that raises one of these stops the loop, which can be resumed.
                with suppress(SystemExit, KeyboardInterrupt):
                    loop.run_until_complete(self._is_idle)
        # This closes the judge's connections.
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        self._workers.shutdown()

    def _poll(self) -> None:
        """Take a job from the queue, and poll again until there have been none for a while."""
        if self._tasks:
            self._polls_until = self._loop.time() + _IDLE
        try:
            self._take(self._queue.get_nowait())
        except queue.Empty:
            if self._tasks or (self._loop.time() < self._polls_until and not self._is_stopping):
                self._next_poll = self._loop.call_later(_POLL, self._poll)
            else:
                self._is_idle.set_result(None)
        else:  # not in a loop: the judge gets the first request before all have begun
            self._next_poll = self._loop.call_soon(self._poll)

    def _take(self, job: Job | None) -> None:
        if job is None:
            self._is_stopping = True
            for task in self._tasks:
                task.cancel()
            return
        task = self._loop.create_task(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(partial(self._close, job))

    async def _work(self, job: Job) -> GivenUp | None:
        if job not in self._pending:  # a shutdown has given it up
            return None
        if not job.begin():
            return None
        if self._free:
            self._free -= 1
        else:
            slot = self._waiting[job] = self._loop.create_future()
            self._is_overloaded |= len(self._waiting) > 4 * self.concurrency
            if not await slot:
                return "overload"
        try:
            if job in self._pending:
                await job.run()
        finally:
            self._free += 1
            self._choose()
        return None

    def _choose(self) -> None:
        """Let the newest job run; give up late ones only under overload: late scores are of use."""
        for job in [*reversed(self._waiting)]:
            is_late = self._is_overloaded and job.is_late()
            if is_late or self._free:
                slot = self._waiting.pop(job)
                if not slot.done():  # else it was cancelled
                    self._free -= not is_late
                    slot.set_result(not is_late)
        self._is_overloaded &= bool(self._waiting)

    def _close(self, job: Job, task: asyncio.Task[GivenUp | None]) -> None:
        self._tasks.discard(task)
        self._next_poll.cancel()
        self._poll()  # a job that was submitted meanwhile may take its place
        if task.cancelled():
            why: GivenUp | None = "shutdown"
        elif (error := task.exception()) is not None:
            self._log.write_error("a job", error)
            why = "error"
        else:
            why = task.result()
        try:
            if why is not None and job in self._pending:
                job.give_up(why)
        finally:
            with self._changed:
                if self._pending.pop(job, None) is not None:
                    self._bytes -= job.size
                self._changed.notify_all()
