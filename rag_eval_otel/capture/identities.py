"""Whose turn it was: session, user and conversation, by whatever names they were recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from rag_eval_otel import semconv
from rag_eval_otel.capture.text import exportable

Scalar: TypeAlias = "str | bool | int | float"

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    semconv.SESSION_ID: ("session.id", "session_id", "langfuse_session_id", "mlflow.trace.session"),
    semconv.USER_ID: ("user.id", "user_id", "langfuse_user_id", "mlflow.trace.user", "enduser.id"),
    semconv.GEN_AI_CONVERSATION_ID: ("gen_ai.conversation.id", "conversation_id", "thread_id"),
}
"""Standard names, and what is called so in metadata of LangChain and of tracing libraries."""

_PREFIXES: Final = (
    "langfuse.observation.metadata.",
    "langfuse.trace.metadata.",
    "langsmith.metadata.",
    "metadata.",
    "traceloop.association.properties.",
)
_KNOWN: Final = frozenset(name for names in _NAMES.values() for name in names)


def metadata_in(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the attributes of a span tell about whose turn it is, by the bare names."""
    found = _listed(attributes.get("metadata"))
    for name, value in attributes.items():
        prefix = next((one for one in _PREFIXES if name.startswith(one)), None)
        if prefix is not None:
            found.setdefault(name.removeprefix(prefix), _unquoted(value))
        elif name in _KNOWN:
            found[name] = value
    return found


def _listed(metadata: object) -> dict[str, Any]:
    """Return metadata that is one attribute: JSON."""
    with suppress(ValueError, RecursionError):
        found = json.loads(metadata) if isinstance(metadata, str) else None
        if isinstance(found, dict):
            return found
    return {}


def _unquoted(value: object) -> object:
    """Return a text that Langfuse wrote as JSON."""
    if isinstance(value, str) and value[:1] == value[-1:] == '"':
        with suppress(ValueError):
            return json.loads(value)
    return value


def about(metadata: Iterable[Mapping[str, Any]], keys: Iterable[str] = ()) -> dict[str, Scalar]:
    """Return who a turn was for, by the standard names, and what the user wants kept by ``keys``.

    What comes first counts. A session that is nobody's conversation is one.
    """
    merged: dict[str, Any] = {}
    for one in metadata:
        for name, value in one.items():
            if value is not None and value != "":
                merged.setdefault(name, value)
    found: dict[str, Scalar] = {}
    for standard, names in _NAMES.items():
        known = next((merged[name] for name in names if name in merged), None)
        if known and isinstance(known, str | int) and known is not True:
            found[standard] = exportable(str(known))
    if semconv.SESSION_ID in found:
        found.setdefault(semconv.GEN_AI_CONVERSATION_ID, found[semconv.SESSION_ID])
    for key in keys:
        value = merged.get(key)
        if isinstance(value, str | bool | int | float):
            found[semconv.METADATA_PREFIX + key] = value
    return found
