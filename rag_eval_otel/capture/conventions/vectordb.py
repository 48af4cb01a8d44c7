"""Read spans of vector database clients (Chroma, Qdrant, ...) into steps (calls in a trace).

If the client records the search results, they are in span events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.conventions.convention import Convention
from rag_eval_otel.capture.span import PlainSpan, SpanView, word
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.types import Passage

_RESULT = "db.query.result"
_SEARCHES = frozenset({"query", "search", "similarity_search", "query_points", "get"})


def kind(view: SpanView) -> Kind | None:
    if "db.system" not in view.attributes and "db.system.name" not in view.attributes:
        return None
    return "retriever" if any(name == _RESULT for name, _ in view.events) else _by_operation(view)


def _by_operation(view: SpanView) -> Kind | None:
    """Return ``"retriever"`` if the span ``view`` is a vector search, else None.

    This is called for a span without recorded search results.
    """
    vector = any(key.startswith(("db.vector.", "db.chroma.query")) for key in view.attributes)
    return "retriever" if vector and word(view, "db.operation") in _SEARCHES else None


def to_step(view: PlainSpan, of: Kind) -> Step:
    del of
    results = [attributes for name, attributes in view.events if name == _RESULT]
    texts = [result.get(f"{_RESULT}.document") for result in results]
    complete = bool(results) and all(isinstance(text, str) for text in texts)
    documents = tuple(map(_passage, results)) if complete else None
    return build.retrieval(view, inputs=None, documents=documents)


def _passage(result: Mapping[str, Any]) -> Passage:
    name = result.get(f"{_RESULT}.id")
    text = str(result[f"{_RESULT}.document"])
    return Passage(text=text, id=None if name is None else str(name))


CONVENTION: Final = Convention(
    name="vectordb",
    kind=kind,
    to_step=to_step,
    marks=frozenset({"db.system", "db.system.name"}),
    content=(r"db\.query\.embeddings\.vector",),
    content_events=(
        (r"db\.query\.result", r"db\.query\.result\.(document|metadata|vector)"),
        (r"db\.(query|search)\.embeddings", r".*vector"),
    ),
)
