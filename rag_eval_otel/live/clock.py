"""`Clock`: the thread of a pipeline that completes traces, keeps deadlines and exports held spans.

Nothing else exports a held span. So an exporter that blocks delays the deadlines of its own
pipeline only, and neither the application nor the judge. A judge or a metric that blocks delays no
span.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from rag_eval_otel.capture.trace import Held
from rag_eval_otel.live.store import Store
from rag_eval_otel.runtime.guard import silence
from rag_eval_otel.types import Ending

TICK: Final = 0.05  # seconds between two searches for complete traces
_IDLE: Final = 1.0  # seconds between two looks at open spans while nothing collects or is held
_STOPPED: Final = 2.0  # seconds by which a wait is late only if the process was stopped


class Clock:
    """Call ``sweep()`` every 50 ms, and ``leave(held)`` for all that leaves ``store``.

    ``leave`` returns False if another thread goes on with the item. ``is_idle()`` returns True if
    nothing needs to be swept. The thread is a daemon, starts with the first `start`, and ends after
    `stop` when the store is empty. A forked child must call `reset`.
    """

    def __init__(
        self,
        store: Store,
        *,
        sweep: Callable[[], None],
        leave: Callable[[Held], bool],
        is_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._sweep = sweep
        self._leave = leave
        self._is_idle = is_idle
        self._is_inline = False
        self._is_stopped = False
        self.reset()

    def reset(self) -> None:
        """Forget the thread, in a forked child."""
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._has_run = False
        self._wakes: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._waits = False  # whether the thread waits for the store to become non-empty
        self._sweep_at = 0.0

    def run_inline(self) -> None:
        """Start no thread and sweep nothing: spans leave on the thread that decides it.

        This is for replays and tests.
        """
        self._is_inline = True

    # --- on any thread ----------------------------------------------------------------------------

    def start(self) -> bool:
        """Start the thread if it does not run; return False if no thread can be started."""
        if self._thread is not None or self._is_inline:
            return True
        with self._lock:
            if self._thread is None:
                if not self._has_run:  # gevent may have replaced this class since the fork
                    self._wakes = queue.SimpleQueue()
                thread = threading.Thread(target=self._run, name="rag-eval-otel-clock", daemon=True)
                self._thread = thread  # a garbage collection may end spans during the start
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is shutting down
                    self._thread = None
                    return False
                self._has_run = True
        return True

    @property
    def is_awake(self) -> bool:
        """Whether the thread was started in this process."""
        return self._thread is not None

    def is_current(self) -> bool:
        """Return True if the caller runs on the clock's thread."""
        return self._thread is threading.current_thread()

    def wake(self) -> None:
        """Have the thread look at the store, which may have been empty."""
        if self.start() and self._waits:
            self._wakes.put(None)

    def release(self, held: Held, ending: Ending) -> bool:
        """Let ``held`` leave with ``ending``; return False if it leaves, or has left, already."""
        is_first = self._store.decide(held, ending)
        self.export()
        return is_first

    def seconds_left(self, held: Held) -> float:
        """Return the seconds for which the scores of ``held`` are awaited: see `Store`."""
        return self._store.seconds_left(held)

    def export(self) -> None:
        """Have everything exported that was decided to leave."""
        if not self._store.exit:
            return
        if self._is_inline or not self.start():
            while self._export_next():
                pass
        elif self._wakes.empty():  # else the thread looks at the store after what waits there
            self._wakes.put(None)

    def call(self, function: Callable[[], object], timeout: float) -> bool:
        """Have ``function`` called on the thread; return False after ``timeout`` seconds."""
        if self._is_inline or self.is_current() or not self.start():
            function()
            return True
        done = threading.Event()

        def run() -> None:
            try:
                function()
            finally:
                done.set()

        self._wakes.put(run)
        return done.wait(timeout)

    def stop(self) -> None:
        """Let the thread end when the store is empty."""
        self._is_stopped = True
        self._wakes.put(None)

    # --- on its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        silence()
        try:
            while not (self._is_stopped and self._has_nothing_to_do()):
                self._tick()
                self._wait()
        finally:  # if an exporter raises SystemExit, a new thread must export the other spans
            with self._lock:
                self._thread = None
            if not self._has_nothing_to_do():
                self.start()

    def _has_nothing_to_do(self) -> bool:
        return self._store.is_empty and self._wakes.empty()

    def _tick(self) -> None:
        """Complete traces if it is time, and export what leaves, one after the other."""
        self._sweep_if_due()
        while self._export_next():
            self._sweep_if_due()

    def _sweep_if_due(self) -> None:
        if time.monotonic() >= self._sweep_at:
            self._store.evicted.clear()
            try:
                self._sweep()
            finally:  # a sweep that takes long leaves time for others, too
                self._sweep_at = time.monotonic() + TICK

    def _export_next(self) -> bool:
        """Export the oldest item that leaves; return False if there is none.

        Deadlines are looked at before, so that they are kept between any two exports.
        """
        store = self._store
        if not self._is_inline:
            store.decide_due()
        try:
            held = store.exit.popleft()
        except IndexError:
            return False
        has_left = held.state != "left"
        try:
            has_left = has_left and self._leave(held)
        finally:
            if has_left:
                store.left(held)
        return True

    def _wait(self) -> None:
        """Wait for a moment, or until another thread decides something; do what it asks for."""
        self._waits = True
        is_idle = self._store.is_empty and self._is_idle()
        seconds = _IDLE if is_idle else max(0.0, self._sweep_at - time.monotonic())
        self._waits = is_idle
        began = time.monotonic()
        try:
            call = self._wakes.get(timeout=seconds)
        except queue.Empty:
            call = None
        self._waits = False
        passed = time.monotonic() - began
        if passed > seconds + _STOPPED:
            self._store.add_stopped(passed)
        while call is not None or not self._wakes.empty():
            if call is not None:
                call()
            call = None if self._wakes.empty() else self._wakes.get()
