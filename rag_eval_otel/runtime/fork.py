"""Renew objects in a forked child.

gunicorn's workers for gevent replace the threads of the standard library in the child, after the
fork. With ``--preload`` the objects exist by then, so the methods are called once more: what they
create must belong to the threads that the child uses.
"""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
