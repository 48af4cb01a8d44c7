"""Read the question, contexts and answer that the application itself recorded on a span.

Recorded texts take precedence over the texts that an instrumentation captured. Question and answer
are in the attributes ``rag.question`` and ``rag.answer``. The contexts are in the attribute
``rag.contexts``, or in one event ``rag.retrieval`` for each call of `record_retrieval`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rag_eval_otel import semconv
from rag_eval_otel.capture.documents import passages_in
from rag_eval_otel.capture.span import PlainSpan
from rag_eval_otel.capture.step import Part, Step
from rag_eval_otel.capture.values import CUT, HIDDEN, Lost, is_marker, normalised, read
from rag_eval_otel.types import Passage

PARTS: Final[Mapping[str, Part]] = {
    semconv.QUESTION: "input",
    semconv.ANSWER: "output",
    semconv.CONTEXTS: "documents",
    semconv.RETRIEVAL_RECORDED: "documents",
}
"""Names of attributes that the application records, and the part of a turn that each one shows."""

CONTENT: Final = (
    r"rag\.(question|contexts|answer)",
    r"rag\.retrieval\.(query|documents)",
)
"""Regular expressions for the attributes of spans and span events that contain texts."""

LISTS: Final = frozenset({semconv.CONTEXTS, semconv.RETRIEVAL_DOCUMENTS})
"""The attributes that contain a list, often as JSON. The other attributes contain one text."""


def with_recorded(view: PlainSpan, step: Step) -> Step:
    """Return ``step`` with the texts that the application itself recorded on the span ``view``.

    ``step`` is the call that the span describes. The recorded texts replace the texts that an
    instrumentation captured.
    """
    found: dict[Part, Any] = {
        "input": _text(view, semconv.QUESTION),
        "output": _text(view, semconv.ANSWER),
        "documents": _contexts(view),
    }
    said = {part: value for part, value in found.items() if value is not None}
    known: dict[Any, Any] = {p: value for p, value in said.items() if not isinstance(value, Lost)}
    lost: dict[Any, None] = dict.fromkeys(part for part in said if part not in known)
    return replace(
        step,
        **{**lost, **known},
        kind="chain" if step.kind == "other" else step.kind,
        query=_query(view),
        recorded=frozenset(said),
        hidden=(step.hidden - said.keys()) | {p for p, v in said.items() if v is HIDDEN},
        cut=(step.cut - said.keys()) | {p for p, v in said.items() if v is CUT},
        flat=False,
    )


def _text(view: PlainSpan, name: str) -> str | Lost | None:
    found = view.attributes.get(name)
    return _whole(found, view.value_limit) if isinstance(found, str) and found.strip() else None


def _whole(text: str, limit: int | None) -> str | Lost:
    """Return ``text``, or a `Lost` if it was redacted or is as long as the SDK's length limit."""
    if is_marker(text):
        return HIDDEN
    return CUT if limit is not None and len(text) >= limit else text


def _contexts(view: PlainSpan) -> tuple[Passage, ...] | Lost | None:
    """Return the contexts that the application recorded on the span ``view``, each text once.

    The contexts are in the attribute ``rag.contexts`` and in all events ``rag.retrieval``. If one
    of them was redacted, shortened or dropped, return a `Lost`. If none was recorded, return None.
    """
    limit = view.value_limit
    events = list(_retrievals(view))
    if semconv.RETRIEVAL_RECORDED in view.attributes and (view.dropped_events or not events):
        return CUT  # a dropped event may have held documents
    found = [_listed(event.get(semconv.RETRIEVAL_DOCUMENTS), limit) for event in events]
    found = [CUT if passages is None else passages for passages in found]
    if semconv.CONTEXTS in view.attributes:
        found.insert(0, _listed(view.attributes[semconv.CONTEXTS], limit))
    lost = next((one for one in found if isinstance(one, Lost)), None)
    if lost is not None:
        return lost
    known = [one for one in found if one is not None and not isinstance(one, Lost)]
    return tuple(distinct_passages(p for passages in known for p in passages)) if known else None


def _listed(found: Any, limit: int | None) -> tuple[Passage, ...] | Lost | None:
    """Return the documents in ``found``: a sequence of texts, or JSON that lists documents.

    ``limit`` is the SDK's length limit. If a text was redacted or shortened, return a `Lost`.
    """
    if isinstance(found, str):
        data = read(found, limit=limit)
        passages = data if isinstance(data, Lost) else passages_in(data)
    elif isinstance(found, Sequence):
        passages = tuple(Passage(text=str(text)) for text in found)
    else:
        return None
    if isinstance(passages, Lost) or passages is None:
        return passages
    texts = [_whole(passage.text, limit) for passage in passages]
    return next((text for text in texts if isinstance(text, Lost)), passages)


def _query(view: PlainSpan) -> str | None:
    queries = (event.get(semconv.RETRIEVAL_QUERY) for event in _retrievals(view))
    return next((query for query in queries if isinstance(query, str)), None)


def _retrievals(view: PlainSpan) -> Iterator[Mapping[str, Any]]:
    if semconv.RETRIEVAL_RECORDED in view.attributes:
        yield from (found for name, found in view.events if name == semconv.RETRIEVAL_EVENT)


def distinct_passages(passages: Iterable[Passage]) -> Iterable[Passage]:
    """Return ``passages`` in their order, without passages that repeat an earlier text."""
    by_text: dict[str, Passage] = {}
    for passage in passages:
        by_text.setdefault(normalised(passage.text), passage)
    return by_text.values()
