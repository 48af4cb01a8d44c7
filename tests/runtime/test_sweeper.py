"""The sweeper: one thread, begun late, gone when told, and a new one after a fork."""

from __future__ import annotations

import threading

from rag_eval_otel.runtime.guard import is_silent
from rag_eval_otel.runtime.threads import Sweeper


class Swept:
    """Counts sweeps, and tells when there were some."""

    def __init__(self, enough: int = 3) -> None:
        self.threads: list[threading.Thread] = []
        self.silent: list[bool] = []
        self.done = threading.Event()
        self._enough = enough

    def __call__(self) -> None:
        self.threads.append(threading.current_thread())
        self.silent.append(is_silent())
        if len(self.threads) >= self._enough:
            self.done.set()


def test_it_begins_when_woken_and_sweeps_again_and_again() -> None:
    """Before `wake` there is no thread; then one, a daemon, without instrumentation."""
    swept = Swept()
    sweeper = Sweeper(swept, seconds=0.001)
    assert swept.threads == []
    assert sweeper.wake()
    assert sweeper.wake()
    assert swept.done.wait(30)
    sweeper.stop()
    assert len(set(swept.threads)) == 1
    assert swept.threads[0].daemon
    assert all(swept.silent)


def test_it_ends_when_told() -> None:
    """Once stopped, the thread is gone, and it can't be woken any more."""
    swept = Swept(1)
    sweeper = Sweeper(swept, seconds=0.001)
    sweeper.wake()
    assert swept.done.wait(30)
    sweeper.stop()
    swept.threads[0].join(30)
    assert not swept.threads[0].is_alive()
    late = Sweeper(Swept(), seconds=0.001)
    late.stop()
    assert not late.wake()
