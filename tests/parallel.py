"""Threads and forked children of tests."""

import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

_Test = TypeVar("_Test", bound=Callable[..., object])


def at_once(*works: Callable[[], object]) -> None:
    """Do ``works`` at once, each in a thread of its own, and wait until all have ended."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def forking(test: _Test) -> _Test:
    ignored = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    return ignored(pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")(test))


def in_child(work: Callable[[], object]) -> bool:
    """Tell whether ``work`` returns something true in a forked child, which ends then."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # a child that is stuck dies of it
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def refuse_threads(patch: pytest.MonkeyPatch) -> None:
    """Let no thread start any more, as while the interpreter exits."""

    def refuse(_: threading.Thread) -> None:
        msg = "can't create new thread at interpreter shutdown"
        raise RuntimeError(msg)

    patch.setattr(threading.Thread, "start", refuse)
