"""Renew objects, such as those with locks and threads, in a forked child."""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

_Methods: TypeAlias = "dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]]"

_methods: _Methods = {}  # the objects and their functions, by the id of the reference
_of_parent: list[object] = []


def call_in_child(method: Callable[[], None]) -> None:
    """Call the bound ``method`` in every forked child, and again if gevent patches that child."""
    bound: Any = method

    # Not a `weakref.WeakMethod`, which prints an error if it is deleted at the exit of Python. The
    # globals of this module may be gone then, too.
    def forget(gone: weakref.ref[Any], methods: _Methods = _methods) -> None:
        methods.pop(id(gone), None)

    reference = weakref.ref(bound.__self__, forget)
    _methods[id(reference)] = (reference, bound.__func__)


def leave_to_parent(item: object) -> None:
    """Keep ``item`` for ever: deleting it in this child would close the parent's connections."""
    _of_parent.append(item)


def _call_all(event: object = None) -> None:
    if event is None or type(event).__name__ == "GeventDidPatchAllEvent":
        for reference, function in tuple(_methods.values()):
            owner = reference()
            if owner is not None:
                function(owner)


def _after_fork() -> None:
    _call_all()
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and not monkey.is_module_patched("threading"):
        events = importlib.import_module("gevent.events")
        if _call_all not in events.subscribers:
            events.subscribers.append(_call_all)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
