"""Which attributes hold texts of users and models, in every dialect: one table."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from rag_eval_otel.capture.dialects import DIALECTS, native

Owner: TypeAlias = Literal["own", "foreign"]

_FOREIGN: Final = [pattern for dialect in DIALECTS for pattern in dialect.content]
_NAMES: Final = 4096  # remembered; there are fewer, but for those that are numbered

_IS_FOREIGN: Final = re.compile("|".join(f"(?:{pattern})" for pattern in _FOREIGN)).fullmatch
_IS_OWN: Final = re.compile("|".join(native.CONTENT)).fullmatch
_EVENTS: Final = tuple(
    (re.compile(name), re.compile(what))
    for dialect in DIALECTS
    for name, what in dialect.content_events
)


@lru_cache(_NAMES)
def owner_of(attribute: str, event: str | None = None) -> Owner | None:
    """Tell whose content ``attribute``, of a span or of its ``event``, holds; None if it is none.

    ``own`` is what the application said itself, in our own names, ``foreign`` that of a dialect.
    """
    if _IS_OWN(attribute):
        return "own"
    if _IS_FOREIGN(attribute) or (event is not None and _is_in_event(attribute, event)):
        return "foreign"
    return None


def _is_in_event(attribute: str, event: str) -> bool:
    return any(name.fullmatch(event) and what.fullmatch(attribute) for name, what in _EVENTS)
