"""`call_in_child`: call a method of an object in each forked child, while the object exists."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

_methods: dict[int, weakref.WeakMethod[Any]] = {}
"""The methods to call, the oldest first, by the id of the reference."""


def call_in_child(method: Callable[[], None]) -> None:
    """Call the bound ``method`` in every forked child process.

    The object of the method is referred to weakly. After the object is deleted, nothing is called,
    and nothing of it is kept.
    """
    reference = weakref.WeakMethod(method, lambda gone: _methods.pop(id(gone), None))
    _methods[id(reference)] = reference


def _call_all() -> None:
    for reference in tuple(_methods.values()):
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_call_all)
