"""`Sweeper`: calls something again and again, on a thread of its own, once it has been woken."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rag_eval_otel.suppression import silence


class Sweeper:
    """Calls ``sweep`` every ``seconds`` from the first `wake` on, until `stop`.

    The thread is a daemon and does not survive a fork: after `reset`, a child starts its own.
    """

    def __init__(self, sweep: Callable[[], None], *, seconds: float = 0.05) -> None:
        """Start nothing yet."""
        self._sweep = sweep
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Forget the thread."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> bool:
        """Begin; False where no thread can be started any more."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                thread = threading.Thread(target=self._run, name="rag-eval-otel-watch", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is shutting down
                    return False
                self._thread = thread
        return self._thread is not None

    def stop(self) -> None:
        """Call no more."""
        self._stopped.set()

    def _run(self) -> None:
        silence()
        stopped = self._stopped
        while not stopped.wait(self._seconds):
            self._sweep()
