"""Check the values that users pass as fields of a `Sample`, with errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def require_text(name: str, value: object) -> None:
    """Raise `TypeError` unless ``value`` is a string; ``name`` is its name in the message."""
    if not isinstance(value, str):
        msg = f"{name} must be a str, not {type(value).__name__}; pass '' where there is none."
        raise TypeError(msg)


def checked_ids(name: str, value: object) -> tuple[str, ...]:
    """Return the ids in ``value``, a sequence, as strings; raise `TypeError` for anything else."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        msg = f"{name} must be a sequence of ids, not {type(value).__name__}; pass [id]."
        raise TypeError(msg)
    return tuple(str(item) for item in value)


def checked_grades(value: Iterable[Any], *, ids: int) -> tuple[float, ...]:
    """Return ``value``, the grades of relevant documents, as floats; check them first.

    ``ids`` is the number of relevant documents. Raises `ValueError` for a grade that is not a
    finite number of 0 or more, and if the number of grades is neither 0 nor ``ids``.
    """
    grades = tuple(value)
    for grade in grades:
        is_number = isinstance(grade, int | float) and not isinstance(grade, bool)
        if not (is_number and 0 <= grade < math.inf):
            msg = f"a grade must be a finite number, 0 or more, not {grade!r}"
            raise ValueError(msg)
    if grades and len(grades) != ids:
        msg = f"{len(grades)} grades for {ids} relevant_ids; pass one for each, or none"
        raise ValueError(msg)
    return tuple(float(grade) for grade in grades)


def checked_texts(name: str, value: object) -> dict[Any, str]:
    """Return a copy of ``value``; raise `TypeError` unless it is a mapping to strings."""
    if not isinstance(value, Mapping):
        msg = f"{name} must be a mapping to texts, not {type(value).__name__}"
        raise TypeError(msg)
    for key, text in value.items():
        require_text(f"{name}[{key!r}]", text)
    return dict(value)


def checked_contexts(contexts: object, passage: type[T]) -> tuple[T, ...]:
    """Return ``contexts``, a sequence of strings or passages, as objects of the class ``passage``.

    Raises `TypeError` for anything else.
    """
    if isinstance(contexts, str) or not isinstance(contexts, Iterable):
        msg = (
            f"Sample.contexts must be a sequence of str or Passage, not {type(contexts).__name__};"
            " pass [text] for a single context and [] for none."
        )
        raise TypeError(msg)
    return tuple(_passage(item, passage) for item in contexts)


def _passage(item: object, passage: type[T]) -> T:
    if isinstance(item, passage):
        return item
    if isinstance(item, str):
        return passage(text=item)  # type: ignore[call-arg]
    msg = f"A context must be a str or a Passage, not {type(item).__name__}."
    raise TypeError(msg)
