"""Record the searches that applications make in LangChain vector stores without a retriever."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

from langchain_core.vectorstores import VectorStore

from rag_eval_otel.capture.langchain import LangChainCapture, active_run, note_search
from rag_eval_otel.capture.runs import SEARCHES
from rag_eval_otel.runtime.guard import Edge

_KINDS: Final = (
    "similarity_search",
    "similarity_search_by_vector",
    "similarity_search_with_relevance_scores",
    "similarity_search_with_score",
    "similarity_search_with_score_by_vector",
    "max_marginal_relevance_search",
    "max_marginal_relevance_search_by_vector",
)
_METHODS: Final = (*_KINDS, *(f"a{name}" for name in _KINDS))
_IS_WRAPPED: Final = "_rag_eval_otel_wrapped"

# Whether a search is running. If its method calls another search method, that is not recorded.
_SEARCHING: Final[ContextVar[bool]] = ContextVar("rag_eval_otel_searching", default=False)


def record_searches(edge: Edge) -> None:
    """Wrap the search methods of all vector store classes, also of classes defined later."""
    if LangChainCapture.outside is not None:
        return
    LangChainCapture.outside = LangChainCapture(lambda: SEARCHES, edge=edge)
    hook: Any = classmethod(_wrap_subclass)
    setattr(VectorStore, "__init_subclass__", hook)  # noqa: B010  # mypy forbids assigning it
    _wrap(VectorStore)


def _wrap_subclass(store: type[VectorStore], /, **options: Any) -> None:
    super(VectorStore, store).__init_subclass__(**options)
    _wrap(store)


def _wrap(store: type[Any]) -> None:
    for name in _METHODS:
        method = vars(store).get(name)
        if inspect.isfunction(method) and not hasattr(method, _IS_WRAPPED):
            with suppress(AttributeError, TypeError):  # a class whose methods cannot be replaced
                setattr(store, name, _recorded(method))
    for derived in store.__subclasses__():
        _wrap(derived)


def _recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def search_async(store: Any, *args: Any, **options: Any) -> Any:
        with _search(store, args, options) as results:
            results.append(await method(store, *args, **options))
        return results[0]

    @wraps(method)
    def search(store: Any, *args: Any, **options: Any) -> Any:
        with _search(store, args, options) as results:
            results.append(method(store, *args, **options))
        return results[0]

    wrapper = search_async if inspect.iscoroutinefunction(method) else search
    setattr(wrapper, _IS_WRAPPED, True)
    return wrapper


@contextmanager
def _search(store: object, args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Record a search, unless a retriever or prompt makes it; yield a list to put results into."""
    results: list[Any] = []
    handler, above = active_run() or (LangChainCapture.outside, None)
    run, is_within = None, above and (above.kind == "retriever" or above.is_prompt)
    if handler and not (is_within or _SEARCHING.get()):
        with handler.edge:
            query = args[0] if args else options.get("query")
            run = handler.search(above, type(store).__name__, query)
    if handler is None or run is None:
        yield results
        return
    token = _SEARCHING.set(True)
    try:
        yield results
    finally:
        _SEARCHING.reset(token)
        error = sys.exc_info()[1]
        with handler.edge:
            if error is None:
                handler.end(run, lambda results: note_search(*results), results)
            else:
                handler.failed(run, error)
