"""`call_in_child`: call a method of an object in each forked child, while the object exists."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

_Methods: TypeAlias = "dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]]"

_methods: _Methods = {}
"""The objects and their functions to call, the oldest first, by the id of the reference."""


def call_in_child(method: Callable[[], None]) -> None:
    """Call the bound ``method`` in every forked child process.

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


def _call_all() -> None:
    for reference, function in tuple(_methods.values()):
        owner = reference()
        if owner is not None:
            function(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_call_all)
