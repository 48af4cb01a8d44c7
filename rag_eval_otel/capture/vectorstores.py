"""Record the searches that applications make in LangChain vector stores without a retriever.

LangChain has no callback event for these searches. So while `VectorStoreSearches` is installed, the
search methods of all vector store classes are wrapped. A search that is made within a recorded
LangChain run is recorded as a retrieval below that run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

from langchain_core.vectorstores import VectorStore

from rag_eval_otel.capture.langchain import LangChainCapture, active_run
from rag_eval_otel.capture.runs import Run

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
_ORIGINAL: Final = "_rag_eval_otel_original"
_USERS: Final = "_rag_eval_otel_users"

_SEARCHING: Final[ContextVar[bool]] = ContextVar("rag_eval_otel_searching", default=False)
"""Whether a search is running. If its method calls another search method, that is not recorded."""


class VectorStoreSearches:
    """Records searches of LangChain vector stores while this object is installed.

    Several such objects may be installed at the same time.
    """

    def install(self) -> None:
        """Wrap the search methods of all vector store classes, also of classes defined later."""
        users: set[int] | None = vars(VectorStore).get(_USERS)
        if users is not None:
            users.add(id(self))
            return
        setattr(VectorStore, _USERS, {id(self)})
        hook: Any = classmethod(_wrap_subclass)
        setattr(VectorStore, "__init_subclass__", hook)  # noqa: B010  # mypy forbids assigning it
        for store in _stores():
            _wrap(store)

    def remove(self) -> None:
        """Restore the search methods, unless another `VectorStoreSearches` is still installed."""
        users: set[int] = vars(VectorStore).get(_USERS, set())
        users.discard(id(self))
        if users or _USERS not in vars(VectorStore):
            return
        delattr(VectorStore, _USERS)
        del VectorStore.__init_subclass__
        for store in _stores():
            _unwrap(store)


def _stores() -> Iterator[type]:
    left: list[type] = [VectorStore]
    while left:
        store = left.pop()
        yield store
        left += store.__subclasses__()


def _wrap_subclass(store: type[VectorStore], /, **options: Any) -> None:
    super(VectorStore, store).__init_subclass__(**options)
    if _USERS in vars(VectorStore):
        _wrap(store)


def _wrap(store: type) -> None:
    for name in _METHODS:
        method = vars(store).get(name)
        if inspect.isfunction(method) and not hasattr(method, _ORIGINAL):
            with suppress(AttributeError, TypeError):  # a class whose methods cannot be replaced
                setattr(store, name, _recorded(method))


def _unwrap(store: type) -> None:
    for name in _METHODS:
        original = getattr(vars(store).get(name), _ORIGINAL, None)
        if original is not None:
            setattr(store, name, original)


def _recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``method``, the search method of a vector store, wrapped to record each search."""
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def searched_async(store: Any, *args: Any, **options: Any) -> Any:
            with _search(store, args, options) as note:
                found = await method(store, *args, **options)
                note(found)
            return found

        wrapper: Callable[..., Any] = searched_async
    else:

        @wraps(method)
        def searched(store: Any, *args: Any, **options: Any) -> Any:
            with _search(store, args, options) as note:
                found = method(store, *args, **options)
                note(found)
            return found

        wrapper = searched
    setattr(wrapper, _ORIGINAL, method)
    return wrapper


@contextmanager
def _search(
    store: object, args: Sequence[Any], options: Mapping[str, Any]
) -> Iterator[Callable[[Any], None]]:
    """Record a vector store search, and yield a function that takes the documents it has found.

    ``args`` and ``options`` are the arguments of the search method. If the search must not be
    recorded, the function ignores the documents.
    """
    active = None if _SEARCHING.get() else active_run()
    begun = None if active is None else _begin(*active, store, args, options)
    if begun is None:
        yield _ignore
        return
    handler, run = begun
    found: list[Any] = []
    token = _SEARCHING.set(True)
    try:
        yield found.extend
    finally:
        _SEARCHING.reset(token)
        error = sys.exc_info()[1]
        with handler.edge:
            if error is None:
                handler.found(run, found)
            else:
                handler.failed(run, error)


def _begin(
    handler: LangChainCapture,
    above: Run,
    store: object,
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> tuple[LangChainCapture, Run] | None:
    if above.kind == "retriever" or above.is_prompt:  # a prompt searches for examples
        return None
    with handler.edge:
        query = args[0] if args else options.get("query")
        run = handler.search(above, type(store).__name__)
        if run is not None:
            run.asked = query if isinstance(query, str) else None
            return handler, run
    return None


def _ignore(_found: Any) -> None:
    """Do nothing. This takes the found documents of a vector store search that is not recorded."""
