"""`call_in_child`: call a method of an object in each forked child, while the object exists."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def call_in_child(method: Callable[[], None]) -> None:
    """Call the bound ``method`` in every forked child process.

    The object of the method is referred to weakly. After the object is deleted, nothing is called.
    """
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
