"""LangSmith: each score is a feedback on the run that LangSmith makes of the span.

The id of a run is the id of its span, with zeros before it. A feedback has an id of ours, so that
one sent twice replaces itself. The client reads the address, the key and the project from variables
such as ``LANGSMITH_ENDPOINT``, ``LANGSMITH_API_KEY`` and ``LANGSMITH_PROJECT``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from uuid import UUID

from rag_eval_otel.export.backends.annotation import (
    NOT_FOUND,
    Annotation,
    BackendError,
    Parallel,
    Refusal,
    backend_error,
    reported,
)


class LangSmith:
    """Writes feedback by the client of the package ``langsmith``."""

    def __init__(self) -> None:
        package = import_module("langsmith")
        self._utils: Any = import_module("langsmith.utils")
        self._requests: Any = import_module("requests")
        # The client's own queue would drop feedback silently, and its sampling is that of runs.
        self._client = package.Client(auto_batch_tracing=False, tracing_sampling_rate=1.0)
        self._statuses = {
            self._utils.LangSmithAuthError: 401,
            self._utils.LangSmithNotFoundError: NOT_FOUND,
            self._utils.LangSmithRateLimitError: 429,
            self._utils.LangSmithAPIError: 500,
            self._utils.LangSmithUserError: 400,
        }
        self._parallel = Parallel()
        self._project: UUID | None = None

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Write each feedback, several at a time; refuse those that failed."""
        if self._project is None:
            with self._reported():
                self._project = self._find_project()
        return self._parallel.send(self._write, [(one, [one]) for one in annotations])

    def _find_project(self) -> UUID:
        name = self._utils.get_tracer_project()
        try:
            found: UUID = self._client.read_project(project_name=name).id
        except self._utils.LangSmithNotFoundError as error:
            told = (
                f"LangSmith has no project {name!r}, which is made when its first span arrives;"
                " set LANGSMITH_PROJECT to the project to which the spans are exported"
            )
            raise BackendError(told, status=NOT_FOUND) from error
        return found

    def _write(self, annotation: Annotation) -> None:
        if annotation.span_id is None:
            told = "LangSmith has no feedback on a trace whose root span is not known"
            raise BackendError(told, status=400)
        with self._reported():
            self._client.create_feedback(
                run_id=UUID(int=annotation.span_id),
                key=annotation.name,
                score=annotation.value,
                value=annotation.label,
                comment=annotation.explanation,
                source_info={"annotator_kind": annotation.kind, **annotation.metadata},
                feedback_source_type="model" if annotation.kind == "LLM" else "api",
                feedback_id=annotation.id,
                session_id=self._project,
                stop_after_attempt=1,
            )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raise errors of the client as `BackendError`, with the HTTP status that each kind has."""
        try:
            with reported(self._requests.RequestException):
                yield
        except self._utils.LangSmithConflictError:  # stored before, by a request without an answer
            return
        except self._utils.LangSmithError as error:
            found = backend_error(_of_response(error))
            status = found.status or self._statuses.get(type(error))
            raise BackendError(str(found), status=status, retry_after=found.retry_after) from error


def _of_response(error: Exception) -> Exception:
    """Return the error with the response of the server, from which the client made ``error``.

    Several statuses have one type of error in LangSmith's client. Without a response, ``error`` is
    returned.
    """
    found: BaseException | None = error
    while found is not None and getattr(found, "response", None) is None:
        found = found.__context__
    return found if isinstance(found, Exception) else error
