"""Read the searches of clients of vector databases; Spring AI records only the query."""

from __future__ import annotations

from typing import Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import Span, value
from rag_eval_otel.capture.step import Kind, Step

_RESULT = "db.query.result"  # an event
_QUERY = "db.vector.query.content"


def _kind(view: Span) -> Kind | None:
    is_search = _QUERY in view.attributes or any(name == _RESULT for name, _ in view.events)
    return "retriever" if is_search else None


def _to_step(view: Span, _: Kind) -> Step:
    results = [attributes for name, attributes in view.events if name == _RESULT]
    found = [{"text": r.get(f"{_RESULT}.document"), "id": r.get(f"{_RESULT}.id")} for r in results]
    return build.retrieval(view, inputs=value(view, _QUERY), documents=found or None)


CONVENTION: Final = Convention(
    name="vectordb",
    kind=_kind,
    to_step=_to_step,
    marks=frozenset({"db.system", "db.system.name"}),
    content=(r"db\.query\.embeddings\.vector", r"db\.vector\.query\.content"),
    content_events=(
        (r"db\.query\.result", r"db\.query\.result\.(document|metadata|vector)"),
        (r"db\.(query|search)\.embeddings", r".*vector"),
    ),
)
