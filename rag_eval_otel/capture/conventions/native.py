"""Read the question, contexts and answer that the application itself recorded on a span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel import semconv
from rag_eval_otel.capture.documents import distinct, passages_in
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.step import Part, Step, history_in
from rag_eval_otel.capture.values import CUT, HIDDEN, Lost, read
from rag_eval_otel.types import Message, Passage

PARTS: Final[Mapping[str, Part]] = {  # what the application records in each attribute
    semconv.QUESTION: "input",
    semconv.ANSWER: "output",
    semconv.HISTORY: "history",
    semconv.CONTEXTS: "documents",
    semconv.RETRIEVAL_RECORDED: "documents",
}

CONTENT: Final = (
    *(name for name in PARTS if name != semconv.RETRIEVAL_RECORDED),
    semconv.RETRIEVAL_QUERY,
    semconv.RETRIEVAL_DOCUMENTS,
)
LISTS: Final = frozenset({semconv.CONTEXTS, semconv.HISTORY, semconv.RETRIEVAL_DOCUMENTS})


def with_recorded(view: Span, step: Step) -> Step:
    events: list[Mapping[str, Any]] = []
    if semconv.RETRIEVAL_RECORDED in view.attributes:
        events = [values for name, values in view.events if name == semconv.RETRIEVAL_EVENT]
    values: dict[Part, Any] = {
        "input": _text(view, semconv.QUESTION),
        "output": _text(view, semconv.ANSWER),
        "documents": _contexts(view, events),
        "history": _history(view),
    }
    said = {part: value for part, value in values.items() if value is not None}
    texts: dict[Any, Any] = {p: None if isinstance(v, Lost) else v for p, v in said.items()}
    queries = (event.get(semconv.RETRIEVAL_QUERY) for event in events)
    return replace(
        step,
        **texts,
        kind="chain" if step.kind == "other" else step.kind,
        query=next((query for query in queries if isinstance(query, str)), None),
        recorded=frozenset(said),
        hidden=(step.hidden - said.keys()) | {p for p, v in said.items() if v is HIDDEN},
        cut=(step.cut - said.keys()) | {p for p, v in said.items() if v is CUT},
        flat=False,
    )


def _history(view: Span) -> tuple[Message, ...] | None:
    if semconv.HISTORY not in view.attributes:
        return None
    data = read(view.attributes[semconv.HISTORY], limit=view.value_limit)
    return history_in({"chat_history": data})


def _text(view: Span, name: str) -> str | Lost | None:
    text = view.attributes.get(name)
    is_text = isinstance(text, str) and bool(text.strip())
    return read(text, limit=view.value_limit, opening="") if is_text else None


def _contexts(view: Span, events: Sequence[Mapping[str, Any]]) -> tuple[Passage, ...] | Lost | None:
    """Return the recorded contexts, each text once, or None; a `Lost` if one is redacted or cut."""
    if semconv.RETRIEVAL_RECORDED in view.attributes and (view.dropped_events or not events):
        return CUT  # a dropped event may have held documents
    lists = [_listed(event.get(semconv.RETRIEVAL_DOCUMENTS), view) for event in events]
    first = _listed(view.attributes.get(semconv.CONTEXTS), view)
    known: list[Passage] = []
    for passages in (*(() if first is None else (first,)), *lists):
        if passages is None or isinstance(passages, Lost):
            return passages or CUT
        known += passages
    return distinct(known) if events or first is not None else None


def _listed(data: Any, view: Span) -> tuple[Passage, ...] | Lost | None:
    data = read(data, limit=view.value_limit) if isinstance(data, str) else data
    if isinstance(data, Lost) or data is None:
        return data
    passages = passages_in(data)
    texts = [read(one.text, limit=view.value_limit, opening="") for one in passages or ()]
    return next((text for text in texts if isinstance(text, Lost)), passages)
