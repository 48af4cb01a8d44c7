"""Daemon threads: for blocking calls of coroutines, regular calls, and calls that may hang."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Literal, TypeVar

from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import silence

T = TypeVar("T")
_MAX_HUNG: Final = 4  # threads for calls that may hang
AROUND: contextvars.ContextVar[Callable[[], AbstractContextManager[None]]] = contextvars.ContextVar(
    "rag_eval_otel_around", default=nullcontext
)
"""Makes the context manager within which other threads run calls for the current thread."""


class DaemonExecutor(ThreadPoolExecutor):
    """An executor with at most ``max_workers`` threads, all of them daemons.

    An ordinary executor rejects calls while Python exits. The threads of this executor are daemons
    and still work then, so that the last RAG answers can be scored. One thread starts together with
    the executor, because from Python 3.12 on no thread can be started while Python exits. Each
    thread works within the context manager ``around()``. If a call is cancelled before it has
    begun, the call is dropped at once, together with the objects that the call refers to.
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
        """One item for each submitted call, and one item for each thread that must end."""
        # Reentrant: a garbage collection may cancel calls while the lock is held.
        self._lock = threading.RLock()
        self._workers = 0
        self._busy = 0
        self._grow()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` with its arguments on one of the threads; return a future."""
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
        """Drop the call of ``future`` if it was cancelled before a thread has begun the call."""
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
        if self._workers >= self._max_workers:
            return
        thread = threading.Thread(target=self._work, name="rag-eval-otel-io", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down: the existing threads do the work
            return
        self._workers += 1

    def _work(self) -> None:
        with self._around():
            while self._turns.get() == "call":
                self._call_next()

    def _call_next(self) -> None:
        """Run the oldest submitted call, if there is a call that is not cancelled."""
        with self._lock:
            future = next(iter(self._waiting), None)
            call = self._waiting.pop(future) if future is not None else None
        if future is None or call is None:
            return
        _fulfil(future, call)
        del future, call  # they may refer to the object whose deletion ends this thread
        with self._lock:
            self._busy -= 1


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
    """Run blocking calls for coroutines, on at most ``limit`` daemon threads.

    The threads start with the first call and end with this object. A forked child starts its own
    threads. A call runs in the context of its caller. If the caller runs on a thread of
    `BackgroundEvaluator`, the thread of the call is listed as a thread of that evaluator, too.

    If the caller is cancelled, a call that has begun runs to its end. A call that still waits for a
    thread is dropped at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Forget the threads, because they do not exist in a forked child."""
        self._lock = threading.Lock()
        self._executor: DaemonExecutor | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call()`` on a worker thread; return its result, or raise its exception."""
        if not self._started().has_threads:  # at exit, only the caller's thread is left
            return call()
        return await asyncio.wrap_future(self.submit(call))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run ``call()`` on a worker thread, in the context of the caller; return a future."""
        context, around = contextvars.copy_context(), AROUND.get()
        return self._started().submit(context.run, _call_within, around, call)

    def _started(self) -> DaemonExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = DaemonExecutor(self._limit)
                weakref.finalize(self, self._executor.shutdown).atexit = False
            return self._executor


class SyncFirst:
    """Run ``call`` on a worker thread, or await ``acall`` if ``call`` is not implemented.

    ``call`` is the blocking function of a client of another library, and ``acall`` is its
    asynchronous function. An asynchronous function may be bound to another event loop, so the
    blocking function is tried first.
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
        """Call the client and return its result, or raise its exception."""
        if self._is_sync:
            try:
                return await self._workers.run(lambda: self._call(*args, **kwargs))
            except NotImplementedError:
                self._is_sync = False
        return await self._acall(*args, **kwargs)


def _call_within(around: Callable[[], AbstractContextManager[None]], call: Callable[[], T]) -> T:
    with around():
        return call()


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

    @property
    def is_awake(self) -> bool:
        """Whether the thread was started in this process."""
        return self._thread is not None

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


class TimedCalls:
    """Call functions that may hang, such as the flush of an exporter, and wait a limited time.

    The functions run on daemon threads, in the context of the caller. A function that hangs keeps
    its thread. If all threads are kept, a function waits for a thread, and is dropped if its time
    is up. A forked child starts its own threads.
    """

    def __init__(self) -> None:
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._executor: DaemonExecutor | None = None

    def prepare(self) -> DaemonExecutor:
        """Start a thread now, because none can be started while the interpreter exits."""
        if self._executor is not None:
            return self._executor
        with self._lock:
            if self._executor is None:
                self._executor = DaemonExecutor(_MAX_HUNG)
                weakref.finalize(self, self._executor.shutdown).atexit = False
            return self._executor

    def call(self, function: Callable[[], bool], timeout: float) -> bool:
        """Return the result of ``function``, or False if it takes more than ``timeout`` seconds."""
        with self._lock:  # `close` must not come between
            executor = self.prepare()
            run = contextvars.copy_context().run
            future: Future[bool] | None = None
            if executor.has_threads:
                future = executor.submit(run, function)
        if future is None:  # the interpreter is exiting, and can start no thread
            return function()
        if wait([future], timeout).done:
            return future.result()
        if not executor.is_free:
            future.cancel()
        return False

    def close(self) -> None:
        """End the threads. A later call starts a thread again."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
