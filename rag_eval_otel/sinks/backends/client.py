"""The client of a backend: what it sends, and how it says what the backend did not take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from rag_eval_otel.runtime.workers import DaemonExecutor
from rag_eval_otel.sinks.backends.annotations import Annotation

T = TypeVar("T")
NOT_FOUND: Final = 404
SERVER_ERROR: Final = 500
_AGAIN: Final = frozenset({408, 409, 425, 429})
_EXPLAINED: Final = frozenset({401, 403, NOT_FOUND})
_CREDENTIALS: Final = re.compile(r"//[^/@\s]+@")


class BackendError(Exception):
    """A request to a backend failed. ``status`` is its HTTP status, or None without a response.

    ``body`` is the text of the response. It may quote texts of users and must not be logged.
    ``retry_after`` is the number of seconds after which the backend allows the next request.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later, whatever arrives meanwhile."""
        status = self.status
        return status is None or status in _AGAIN or status >= SERVER_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An annotation that a backend did not take, although it took others of the batch.

    The status of ``error`` decides what happens next, as for a whole batch: at 404 the span may
    arrive later.
    """

    annotation: Annotation
    error: BackendError


class Client(Protocol):
    """The connection to one backend. It is used on one thread at a time."""

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Send ``annotations``, wait until the backend has stored them, and return the refusals.

        The backend must not store an annotation twice if this is called with it again. Raise
        `BackendError` if none is stored, or if that is not known.
        """


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of these ``kinds``, which a client raises, as `BackendError`."""
    try:
        yield
    except kinds as error:
        raise backend_error(error) from error


def backend_error(error: Exception) -> BackendError:
    """Return a `BackendError` with the HTTP status that ``error`` or its response has.

    Its message is safe to log. A response may quote texts of users, so the message has the words of
    a response only if they are about the key or about something that is missing.
    """
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    if status is None and hasattr(error, "get_http_status_code"):  # MLflow
        status = error.get_http_status_code()
    headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
    after = None
    with suppress(ValueError):  # it may be a date
        after = max(0.0, float(headers.get("retry-after") or headers.get("Retry-After") or "-"))
    status = status if isinstance(status, int) else None
    return BackendError(
        _message(error, status),
        status=status,
        body=str(getattr(response, "text", "") or getattr(error, "body", "")),
        retry_after=after,
    )


def _message(error: Exception, status: int | None) -> str:
    """Return the first line of the message of ``error``, without passwords in addresses."""
    if status is not None and status not in _EXPLAINED:
        return f"HTTP {status} ({type(error).__name__})"
    has_headers = isinstance(getattr(error, "headers", None), Mapping)  # with cookies, in its text
    told = f"HTTP {status}: {getattr(error, 'body', '')}" if has_headers else str(error)
    return _CREDENTIALS.sub("//", told.partition("\n")[0]) or type(error).__name__


class Parallel:
    """Calls a function for many annotations, on several daemon threads.

    It is for backends that take one annotation in each request.
    """

    def __init__(self, threads: int = 8) -> None:
        self._executor = DaemonExecutor(threads)

    def send(
        self, function: Callable[[T], None], groups: Iterable[tuple[T, Sequence[Annotation]]]
    ) -> list[Refusal]:
        """Call ``function(key)`` for each key of ``groups``, and return the refusals.

        If a call raises `BackendError`, all annotations of its group are refused.
        """
        calls = [
            (self._executor.submit(copy_context().run, function, key), annotations)
            for key, annotations in groups
        ]
        refusals: list[Refusal] = []
        for future, group in calls:
            try:
                future.result()
            except BackendError as error:  # noqa: PERF203  # each call has its own result
                refusals += [Refusal(annotation=one, error=error) for one in group]
        return refusals
