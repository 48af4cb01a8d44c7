"""`DaemonExecutor`: the threads an event loop borrows, for name look-ups and blocking models."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any


class DaemonExecutor(ThreadPoolExecutor):
    """An executor whose threads are daemons, at most ``max_workers`` of them.

    The interpreter waits at exit for the threads of an ordinary one, and refuses it new work just
    when the last scores are on their way. One thread is there from the start, since Python 3.12
    starts none while it exits. Each thread works inside of ``around()``.
    """

    def __init__(
        self,
        max_workers: int = 16,
        *,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Start the first thread."""
        super().__init__(max_workers)
        self._around = around
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._workers = 0
        self._busy = 0
        self._grow()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` on one of the threads."""
        future: Future[Any] = Future()
        with self._lock:
            self._busy += 1
        if self._busy > self._workers:
            self._grow()
        self._calls.put(lambda: _fulfil(future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Let the threads go once they have done what was submitted; waits for none of them."""
        for _ in range(self._workers):
            self._calls.put(None)

    def _grow(self) -> None:
        if self._workers >= self._max_workers:
            return
        thread = threading.Thread(target=self._work, name="rag-eval-otel-io", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down: those there must do
            return
        self._workers += 1

    def _work(self) -> None:
        with self._around():
            while (call := self._calls.get()) is not None:
                call()
                with self._lock:
                    self._busy -= 1


def _fulfil(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  # handed to whoever waits for the future
        future.set_exception(error)
