"""What an application says itself: `record_question`, `record_retrieval`, `record_answer`.

For RAG written by hand, and for retrievers that nothing records or that run in another process.
Each speaks of the span that is current, and wins over what was recorded there. Nothing is attached
and no handler is needed: the texts are on the span, for whoever reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import Span, get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects.documents import passage_of
from rag_eval_otel.capture.text import exportable
from rag_eval_otel.config import ErrorMode, error_mode
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Passage

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue


_PAIR = 2  # a document and its score
_ACCEPTED = (
    "a str, a Passage, a dict with 'text', 'content' or 'page_content', an object with such a text"
    " (LangChain, Haystack) or with get_content() (LlamaIndex), or a pair of one of these and its"
    " score"
)


def record_question(text: str) -> None:
    """Say what the user asked, on the current span; the last call of a span counts.

    A span is one turn: give each question its own. Where the current span is not recorded, nothing
    happens. What is no str is a `TypeError`, which is raised under pytest and where
    ``RAG_EVAL_ERRORS=raise``; elsewhere it is logged once and counted, and the application goes on.
    """
    _record(lambda span: span.set_attribute(semconv.QUESTION, _text("record_question", text)))


def record_answer(text: str) -> None:
    """Say what was answered, on the current span; the last call of a span counts.

    Of a stream, what was said in all, before the span ends. Errors are those of `record_question`.
    """
    _record(lambda span: span.set_attribute(semconv.ANSWER, _text("record_answer", text)))


def record_retrieval(query: str, documents: Collection[object]) -> None:
    """Say what was searched and what was found, best first, on the current span.

    ``documents`` are the contexts of the turn: those that the model is shown. Each is a text, a
    `Passage`, a dict with ``text``, ``content`` or ``page_content`` (and ``id``, ``score``), a
    document of LangChain or Haystack, a node of LlamaIndex, or a pair of one of these and its
    score; ``[]`` where nothing was found. Of several calls in a turn, on one span or on spans
    below, all count, in order, each text once. Errors are those of `record_question`.
    """

    def write(span: Span) -> None:
        found: dict[str, AttributeValue] = {
            semconv.RETRIEVAL_QUERY: _text("record_retrieval", query),
            semconv.RETRIEVAL_DOCUMENTS: _listed(documents),
            semconv.DOCUMENT_COUNT: len(documents),
        }
        span.add_event(semconv.RETRIEVAL_EVENT, found)
        span.set_attribute(semconv.RETRIEVAL_RECORDED, value=True)

    _record(write)


def _record(write: Callable[[Span], object]) -> None:
    with _edge(error_mode()):
        span = get_current_span()
        if span.is_recording():
            write(span)


@cache
def _edge(mode: ErrorMode) -> Edge:
    """Return the border to the application, which remembers what it has logged."""
    return Edge("record", on_error=_count, mode=mode)


def _count(place: str) -> None:
    meter = get_meter_provider().get_meter(semconv.SCOPE, schema_url=semconv.GEN_AI_SCHEMA_URL)
    counter = meter.create_counter(
        semconv.ERRORS, unit="{error}", description="Failures of this library, by place."
    )
    counter.add(1, {semconv.PLACE: place})


def _text(caller: str, text: object) -> str:
    if isinstance(text, str):
        return exportable(text)
    msg = f"{caller}() takes the text as a str, not {type(text).__name__}"
    raise TypeError(msg)


def _listed(documents: object) -> str:
    """Return ``documents`` as JSON; texts, ids and scores alone."""
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Collection):
        msg = (
            f"record_retrieval() takes a list of documents, not {type(documents).__name__};"
            " pass [document] for one and [] for none"
        )
        raise TypeError(msg)
    return json.dumps([_entry(_passage(one)) for one in documents], ensure_ascii=False)


def _entry(passage: Passage) -> dict[str, object]:
    score = None if passage.score is None else float(passage.score)  # numpy's is not for JSON
    name = None if passage.id is None else exportable(passage.id)
    told = score if score is not None and isfinite(score) else None
    entry = {"content": exportable(passage.text), "id": name, "score": told}
    return {key: value for key, value in entry.items() if value is not None}


def _passage(document: object) -> Passage:
    if isinstance(document, tuple) and len(document) == _PAIR and _is_number(document[1]):
        inner = _passage(document[0])
        return Passage(text=inner.text, id=inner.id, score=float(document[1]))
    found = _told_by(document)
    if found is None:
        msg = f"a document is {_ACCEPTED}, not {type(document).__name__}"
        raise TypeError(msg)
    return found


def _told_by(document: object) -> Passage | None:
    if isinstance(document, Passage):
        return document
    if isinstance(document, str):
        return Passage(text=document)
    if isinstance(document, Mapping):
        return passage_of(document)
    text = _text_in(document)
    return None if text is None else Passage(text=text, id=_id_of(document), score=_score(document))


def _text_in(document: Any) -> str | None:
    if callable(getattr(document, "get_content", None)):
        found = document.get_content()
        return found if isinstance(found, str) else None
    texts = (getattr(document, name, None) for name in ("page_content", "content", "text"))
    return next((text for text in texts if isinstance(text, str)), None)


def _id_of(document: object) -> str | None:
    names = (getattr(document, name, None) for name in ("id", "node_id", "id_"))
    return next((str(name) for name in names if name is not None), None)


def _score(document: object) -> float | None:
    found = getattr(document, "score", None)
    return float(found) if _is_number(found) else None  # type: ignore[arg-type]  # just checked


def _is_number(value: object) -> bool:
    """Tell whether ``value`` is a number; those of numpy, which vector stores return, too."""
    return not isinstance(value, bool | str) and hasattr(value, "__float__")
