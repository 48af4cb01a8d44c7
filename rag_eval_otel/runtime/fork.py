"""Forks: renew objects in the child (`call_in_child`), and fork at no bad moment (`wait_to_fork`).

gunicorn's workers for gevent replace the threads of the standard library in the child, after the
fork. With ``--preload`` the objects exist by then, so the methods are called once more: what they
create must belong to the threads that the child uses.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias, TypeVar

from rag_eval_otel.runtime.installed import IMPORT_FILE, is_importing

_Methods: TypeAlias = "dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]]"

_methods: _Methods = {}
"""The objects and their functions to call, the oldest first, by the id of the reference."""


def call_in_child(method: Callable[[], None]) -> None:
    """Call the bound ``method`` in every forked child process.

    The method is called again if the child then replaces its threads with greenlets of gevent.
    The object of the method is referred to weakly. After the object is deleted, nothing is called,
    and nothing of it is kept.
    """
    bound: Any = method

    # Not a `weakref.WeakMethod`, which prints an error if it is deleted at the exit of Python. The
    # globals of this module may be gone then, too.
    def forget(gone: weakref.ref[Any], methods: _Methods = _methods) -> None:
        methods.pop(id(gone), None)

    reference = weakref.ref(bound.__self__, forget)
    _methods[id(reference)] = (reference, bound.__func__)


_of_parent: list[object] = []


def leave_to_parent(found: object) -> None:
    """Keep ``found``, which belongs to an event loop of the parent, until this child ends.

    Parent and child share the selector of that loop. If a connection of the loop were deleted in
    the child, the parent would wait for its replies in vain.
    """
    _of_parent.append(found)


def _call_all() -> None:
    for reference, function in tuple(_methods.values()):
        owner = reference()
        if owner is not None:
            function(owner)


def _after_fork() -> None:
    _call_all()
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and not monkey.is_module_patched("threading"):
        events = importlib.import_module("gevent.events")
        if _after_patch not in events.subscribers:
            events.subscribers.append(_after_patch)


def _after_patch(event: object) -> None:
    """Call all methods when gevent has replaced the threads of this process."""
    if type(event).__name__ == "GeventDidPatchAllEvent":
        _call_all()


# --- before a fork --------------------------------------------------------------------------------

_Function = TypeVar("_Function", bound=Callable[..., object])

_FINISHED_BEFORE: Final[set[CodeType]] = set()
_MAX_FORK_WAIT: Final = 10.0  # seconds that a fork waits for threads of ours
_NAP: Final = 0.005  # seconds
_THREADS: Final = "rag-eval-otel"  # the names of all our threads begin with it
_WAITING: Final = "acquire"  # the function of `IMPORT_FILE` that waits for a module's lock


def finish_before_fork(function: _Function) -> _Function:
    """Mark ``function``: a fork waits until no thread of ours is in it.

    A library in C may hold a lock while ``function`` calls it, as OpenSSL does while it makes a TLS
    context. In a child that is forked then, nothing ever unlocks it.
    """
    _FINISHED_BEFORE.add(function.__code__)
    return function


def wait_to_fork(timeout: float = _MAX_FORK_WAIT) -> bool:
    """Wait until a fork leaves no lock of ours locked; return False after ``timeout`` seconds.

    This is called before each fork. A child that is forked while a thread imports a module can
    never import that module, because the thread that has its lock does not exist in the child. The
    same holds for the locks of functions that `finish_before_fork` marks.
    """
    until = time.monotonic() + timeout
    is_inside = is_importing(sys._getframe())  # noqa: SLF001  # documented, but not public
    while any(_must_end(frame, is_inside=is_inside) for frame in _frames_of_ours()):
        if time.monotonic() > until:
            return False
        time.sleep(_NAP)
    return True


def _frames_of_ours() -> list[FrameType]:
    """Return what the other threads of ours run."""
    this = threading.get_ident()
    ours = [
        thread.ident
        for thread in threading.enumerate()
        if thread.name.startswith(_THREADS) and thread.ident != this
    ]
    frames = sys._current_frames() if ours else {}  # noqa: SLF001  # documented, but not public
    return [frames[ident] for ident in ours if ident in frames]


def _must_end(frame: FrameType, *, is_inside: bool) -> bool:
    """Return True if a fork must wait for the thread that runs ``frame``.

    If the forking thread is inside an import (``is_inside``), it does not wait for a thread that
    waits for an import, because that may be the same import, and both would wait for ever.
    """
    waits = frame.f_code.co_filename == IMPORT_FILE and frame.f_code.co_name == _WAITING
    return (is_importing(frame) or _is_unfinished(frame)) and not (is_inside and waits)


def _is_unfinished(frame: FrameType | None) -> bool:
    """Return True if the thread that runs ``frame`` is in a function that a fork must wait for."""
    while frame is not None:
        if frame.f_code in _FINISHED_BEFORE:
            return True
        frame = frame.f_back
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
