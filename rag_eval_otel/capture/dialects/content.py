"""Which attributes hold texts of users and models, in every dialect: one table."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rag_eval_otel.capture.dialects import (
    genai,
    haystack,
    langfuse,
    langsmith,
    llamaindex,
    mlflow,
    native,
    openinference,
    traceloop,
    vectordb,
)

_FOREIGN: Final = (
    *genai.CONTENT,
    *haystack.CONTENT,
    *langfuse.CONTENT,
    *langsmith.CONTENT,
    *llamaindex.CONTENT,
    *mlflow.CONTENT,
    *openinference.CONTENT,
    *traceloop.CONTENT,
    *vectordb.CONTENT,
)
_FOREIGN_EVENTS: Final = (
    *genai.CONTENT_EVENTS,
    *llamaindex.CONTENT_EVENTS,
    *mlflow.CONTENT_EVENTS,
    *vectordb.CONTENT_EVENTS,
)
_NAMES: Final = 4096  # remembered; there are fewer, but for those that are numbered

_IS_FOREIGN: Final = re.compile("|".join(f"(?:{pattern})" for pattern in _FOREIGN)).fullmatch
_IS_OWN: Final = re.compile("|".join(native.CONTENT)).fullmatch
_EVENTS: Final = tuple((re.compile(name), re.compile(what)) for name, what in _FOREIGN_EVENTS)


@lru_cache(_NAMES)
def is_foreign(attribute: str, event: str | None = None) -> bool:
    """Tell whether ``attribute``, of a span or of its ``event``, holds content of a dialect."""
    if _IS_FOREIGN(attribute):
        return True
    return event is not None and any(
        name.fullmatch(event) and what.fullmatch(attribute) for name, what in _EVENTS
    )


@lru_cache(_NAMES)
def is_own(attribute: str, event: str | None = None) -> bool:
    """Tell whether ``attribute`` holds what the application said itself, in our own names."""
    del event  # they are called the same
    return _IS_OWN(attribute) is not None
