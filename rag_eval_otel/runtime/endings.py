"""Do the last work of a process, however the process ends.

Python calls the functions of `atexit` only if the interpreter ends by itself. `call_at_end` also
covers the other endings that can be noticed::

    end of the program, sys.exit       atexit
    SIGTERM                            a signal handler in front of the handler that is there
    a forked child of multiprocessing  a Finalize, because such a child ends by os._exit
    a child of Celery's prefork pool   the signal worker_process_shutdown, for the same reason

Nothing can be done before SIGKILL and os._exit.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias

from rag_eval_otel.config import OnSigterm
from rag_eval_otel.runtime.fork import call_in_child, wait_to_fork

SignalHandler: TypeAlias = Callable[[int, "FrameType | None"], object]

_MAX_DEFER: Final = 0.5  # seconds that a signal waits for the main thread to leave our code
_REPEATED: Final = 1.0  # seconds after a SIGTERM in which further ones are the same request
_NAP: Final = 0.005  # seconds
_LAST: Final = -100  # the priority of our Finalize: after those of the application

_LOCKING: Final = ("rag_eval_otel.", "opentelemetry.sdk.", "logging")
"""Modules whose functions may hold a lock that the last work needs."""


class LastWork(Protocol):
    """Something that must finish its work before the process ends, such as a pipeline."""

    def drain(self) -> object:
        """Finish the work. Python is ending by itself, so exporters end after this call."""

    def drain_and_flush(self, timeout: float) -> object:
        """Finish the work and flush the exporters; they get no other call."""

    def flush(self, timeout: float) -> object:
        """Finish the work up to now, because the process may be killed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Registration:
    """Last work that `call_at_end` has registered, and its limit of time in seconds."""

    work: LastWork
    seconds: float
    on_sigterm: OnSigterm

    def cancel(self) -> None:
        """Do not call the work any more."""
        _process().remove(self)


def call_at_end(work: LastWork, *, seconds: float, on_sigterm: OnSigterm) -> Registration:
    """Call ``work`` before the process ends.

    ``seconds`` limits the time, except at the end of the interpreter. If ``on_sigterm`` is ``off``,
    nothing is done at SIGTERM.
    """
    made = Registration(work=work, seconds=seconds, on_sigterm=on_sigterm)
    _process().add(made)
    return made


@cache
def _process() -> _Process:
    return _Process()


class _Process:
    """The last work of this process, and the places that call it."""

    def __init__(self) -> None:
        self._registered: tuple[Registration, ...] = ()
        self._sigterm = _Sigterm(self)
        self._finalized_in = 0  # the process that has a Finalize of ours
        self._follows_forks = False
        self._follows_celery = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=wait_to_fork)
        call_in_child(self._after_fork)

    def add(self, made: Registration) -> None:
        self._registered = (*self._registered, made)
        atexit.register(made.work.drain)  # before meter and logger providers that are older
        if made.on_sigterm == "drain":
            self._sigterm.install()
        self._follow_children()
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            self._finalize()

    def remove(self, made: Registration) -> None:
        atexit.unregister(made.work.drain)
        self._registered = tuple(one for one in self._registered if one is not made)
        if not self.seconds_at_sigterm:
            self._sigterm.remove()

    @property
    def seconds_at_sigterm(self) -> float:
        """The time that the last work may take at SIGTERM; 0 if there is none."""
        return max((one.seconds for one in self._at_sigterm), default=0.0)

    @property
    def _at_sigterm(self) -> tuple[Registration, ...]:
        return tuple(one for one in self._last_first if one.on_sigterm == "drain")

    @property
    def _last_first(self) -> tuple[Registration, ...]:
        """The last work in the order of `atexit`."""
        return self._registered[::-1]

    def end_at_sigterm(self) -> None:
        _call_all([partial(one.work.drain_and_flush, one.seconds) for one in self._at_sigterm])

    def flush_at_sigterm(self) -> None:
        _call_all([partial(one.work.flush, one.seconds) for one in self._at_sigterm])

    def _after_fork(self) -> None:
        self._sigterm.enter_child()
        self._follow_children()

    def _follow_children(self) -> None:
        """Watch the children of multiprocessing and Celery, if these have been imported."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._follows_forks:
            self._follows_forks = True
            # A child forgets the finalizers of its parent, and then calls this.
            util.register_after_fork(self, _Process._finalize)
        signals = sys.modules.get("celery.signals")
        if signals is not None and not self._follows_celery:
            self._follows_celery = True
            signals.worker_process_shutdown.connect(self._end_child, weak=False)

    def _finalize(self) -> None:
        """Have the last work of this child of multiprocessing done before it calls os._exit."""
        if self._finalized_in != os.getpid():
            self._finalized_in = os.getpid()
            util: Any = sys.modules["multiprocessing.util"]
            util.Finalize(None, self._end_child, exitpriority=_LAST)

    def _end_child(self, **_: object) -> None:
        _call_all([partial(one.work.drain_and_flush, one.seconds) for one in self._last_first])


@dataclass(frozen=True, slots=True)
class _Handler:
    """A signal handler of ours, with the handler that was there before."""

    call: SignalHandler
    before: SignalHandler | signal.Handlers

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.call(signum, frame)


class _Sigterm:
    """Do the last work of ``process`` at SIGTERM, then let the signal do what it would have done.

    If the default handler is in place, the last work is done while the main thread waits, and the
    signal is raised again with the default handler. If the application or its server has a handler,
    only that handler is called, because it ends the process in its own way. Some servers, such as
    uvicorn, then restore the default handler and raise the signal again. So from the first SIGTERM
    on, our handler is set wherever the default handler is restored. In a forked child that is so
    from the beginning, because workers of gunicorn restore the default handler first.

    An application may set its handler later and call ours from it, as the one that was there. Then
    the application ends the process, and the pipeline is only flushed, on a thread of its own.

    Nothing is done if SIGTERM is ignored, if its handler is not a function of Python, and if no
    handler can be set: on other threads than the main one, and in a sub-interpreter.
    """

    def __init__(self, process: _Process) -> None:
        self._process = process
        self._set = signal.signal
        self._there = signal.signal
        self.reset()

    def reset(self) -> None:
        """Forget a SIGTERM of the parent process, if there is one."""
        self._ending_since: float | None = None
        self._deferred_since: float | None = None

    def enter_child(self) -> None:
        """Stay in place in a forked child, in which servers restore the default handler first."""
        self.reset()
        if self._process.seconds_at_sigterm:
            self._watch_restores()

    def install(self) -> None:
        """Set the handler, in front of the handler that is there."""
        if threading.current_thread() is not threading.main_thread():
            return
        there = signal.getsignal(signal.SIGTERM)
        with suppress(ValueError):  # signals work only in the main interpreter
            if there is signal.SIG_DFL:
                self._set(signal.SIGTERM, _Handler(self._end, there))
            elif callable(there) and not isinstance(there, _Handler):
                self._set(signal.SIGTERM, _Handler(partial(self._pass_on, there=there), there))

    def remove(self) -> None:
        """Restore the handler that was there, unless another one has replaced ours.

        A handler and a function `signal.signal` of ours that stay behind those of others have no
        effect any more.
        """
        there = signal.getsignal(signal.SIGTERM)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and isinstance(there, _Handler):
            with suppress(ValueError):
                self._set(signal.SIGTERM, there.before)
        if getattr(signal.signal, "__wrapped__", None) is self._set:
            signal.signal = self._there

    def _pass_on(self, signum: int, frame: FrameType | None, *, there: SignalHandler) -> None:
        """Call the handler ``there``, and do the last work if it ends by the default handler."""
        self._watch_restores()
        there(signum, frame)

    def _watch_restores(self) -> None:
        """Have `signal.signal` set our handler in place of the default one."""
        setter: object = signal.signal
        while setter is not None:  # another library may have put a function in front of ours
            if getattr(setter, "__wrapped__", None) is self._set:
                return
            setter = getattr(setter, "__wrapped__", None)

        there = signal.signal  # that of gevent, if it has replaced the original

        @wraps(self._set)
        def set_handler(signalnum: int, handler: Any) -> Any:
            if signalnum != signal.SIGTERM:
                return there(signalnum, handler)
            if handler == signal.SIG_DFL and self._process.seconds_at_sigterm:
                handler = _Handler(self._end, signal.SIG_DFL)
            return self._set(signalnum, handler)

        self._there = there

        signal.signal = set_handler

    def _end(self, signum: int, frame: FrameType | None) -> None:
        """Do the last work, and raise the signal again with the default handler."""
        has_work = self._process.seconds_at_sigterm > 0
        if not isinstance(signal.getsignal(signum), _Handler):  # a handler set later has called
            if has_work:
                self._watch_restores()
                _start(self._process.flush_at_sigterm)
        elif self._ending_since is not None:
            if time.monotonic() - self._ending_since > _REPEATED:
                self._raise(signum)
        elif not has_work:
            self._raise(signum)
        elif self._must_wait(frame):
            self._send_again(signum)
        elif os.getpid() == 1:  # the kernel spares the first process of a container
            _start(self._process.flush_at_sigterm)
        else:
            self._end_now(signum)

    def _end_now(self, signum: int) -> None:
        self._ending_since = time.monotonic()
        if _threads_are_greenlets():  # this may run in the hub, which must not wait
            _start(lambda: self._end_then_raise(signum))
            return
        try:
            thread = _start(self._process.end_at_sigterm)
            thread.join(self._process.seconds_at_sigterm)
        finally:
            self._raise(signum)

    def _end_then_raise(self, signum: int) -> None:
        try:
            self._process.end_at_sigterm()
        finally:
            self._raise(signum)

    def _raise(self, signum: int) -> None:
        self._set(signum, signal.SIG_DFL)
        signal.raise_signal(signum)

    def _must_wait(self, frame: FrameType | None) -> bool:
        """Return True if the main thread may hold a lock that the last work needs."""
        now = time.monotonic()
        self._deferred_since = self._deferred_since or now
        if now - self._deferred_since > _MAX_DEFER:
            return False
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).startswith(_LOCKING):
                return True
            frame = frame.f_back
        return False

    def _send_again(self, signum: int) -> None:
        main = threading.main_thread().ident
        kill = getattr(signal, "pthread_kill", None)  # Windows has none

        def send() -> None:
            time.sleep(_NAP)
            if kill is None or main is None:
                signal.raise_signal(signum)  # its handler runs on the main thread, too
            else:
                kill(main, signum)

        _start(send)


def _start(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, name="rag-eval-otel-end", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down
        call()
    return thread


def _call_all(calls: Sequence[Callable[[], object]]) -> None:
    """Call all functions at the same time, each on a thread, and wait for all of them."""
    for thread in [_start(call) for call in calls]:
        if thread.is_alive():
            thread.join()


def _threads_are_greenlets() -> bool:
    """Return True if gevent or eventlet has replaced the threads of the standard library."""
    monkey = sys.modules.get("gevent.monkey") or sys.modules.get("eventlet.patcher")
    is_patched = getattr(monkey, "is_module_patched", None) or getattr(
        monkey, "is_monkey_patched", None
    )
    return is_patched is not None and bool(is_patched("threading"))
