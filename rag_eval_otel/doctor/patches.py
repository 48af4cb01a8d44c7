"""Looking on while others are made and called, by wrapping their functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def after(owner: Any, name: str, told: Callable[..., object]) -> None:
    """Call ``told(result, *args, **options)`` whenever the function ``name`` of ``owner`` returns.

    For a class's ``__init__`` the first of the arguments is what was made.
    """
    original = getattr(owner, name)

    @wraps(original)
    def wrapped(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        told(result, *args, **options)
        return result

    setattr(owner, name, wrapped)


def before(owner: Any, name: str, told: Callable[..., object]) -> None:
    """Call ``told(*args, **options)`` whenever the function ``name`` of ``owner`` is called."""
    original = getattr(owner, name)

    @wraps(original)
    def wrapped(*args: Any, **options: Any) -> Any:
        told(*args, **options)
        return original(*args, **options)

    setattr(owner, name, wrapped)
