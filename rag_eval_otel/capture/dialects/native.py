"""What the application itself has said about a turn, on whatever span: it wins over all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects.documents import passages_in
from rag_eval_otel.capture.dialects.values import read, usable
from rag_eval_otel.capture.fragment import Fragment, Part
from rag_eval_otel.capture.view import SpanView
from rag_eval_otel.types import Passage

_NAMES = (semconv.QUESTION, semconv.CONTEXTS, semconv.ANSWER)


def speaks(view: SpanView) -> bool:
    """Tell whether the application has said anything on ``view``."""
    attributes = view.attributes
    return any(name in attributes for name in _NAMES)


def with_explicit(view: SpanView, fragment: Fragment) -> Fragment:
    """Return ``fragment`` with what the application said in place of what was recorded."""
    parts: set[Part] = set()
    question = _text(view, semconv.QUESTION)
    answer = _text(view, semconv.ANSWER)
    contexts = _passages(view.attributes.get(semconv.CONTEXTS))
    if question is not None:
        fragment = replace(fragment, input=question)
        parts.add("input")
    if answer is not None:
        fragment = replace(fragment, output=answer)
        parts.add("output")
    if contexts is not None:
        fragment = replace(fragment, documents=contexts)
        parts.add("documents")
    return replace(
        fragment,
        kind="chain" if fragment.kind == "other" else fragment.kind,
        explicit=frozenset(parts),
        hidden=fragment.hidden - parts,
        cut=fragment.cut - parts,
        flat=False,
    )


def _text(view: SpanView, name: str) -> str | None:
    found = view.attributes.get(name)
    return usable(found) if isinstance(found, str) else None


def _passages(found: Any) -> tuple[Passage, ...] | None:
    """Return the contexts: a sequence of texts, or JSON listing texts or documents."""
    if isinstance(found, Sequence) and not isinstance(found, str):
        return tuple(Passage(text=str(text)) for text in found)
    return passages_in(read(found)) if isinstance(found, str) else None
