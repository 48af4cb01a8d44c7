"""Langfuse: each score, and each label, is a score of its observation, which is the span.

A Langfuse score has an id of ours, so that one sent twice replaces itself. The address and the keys
are read from ``LANGFUSE_BASE_URL`` (or ``LANGFUSE_HOST``), ``LANGFUSE_PUBLIC_KEY`` and
``LANGFUSE_SECRET_KEY``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib import import_module
from typing import Any

from rag_eval_otel.environment import first_set
from rag_eval_otel.export.backends.annotation import Annotation, BackendError, Refusal, reported

ADDRESS = "LANGFUSE_BASE_URL"
PUBLIC_KEY = "LANGFUSE_PUBLIC_KEY"
SECRET_KEY = "LANGFUSE_SECRET_KEY"  # noqa: S105  # a name, not a secret
_CLOUD = "https://cloud.langfuse.com"
_INVALID = 422


def api_client() -> Any:
    """Return the API client of the package ``langfuse``, with the address and keys that are set.

    The class `langfuse.Langfuse` is not used, because it adds an exporter to the tracer provider.
    """
    return import_module("langfuse.api").LangfuseAPI(
        base_url=first_set([ADDRESS, "LANGFUSE_HOST"]) or _CLOUD,
        username=first_set([PUBLIC_KEY]),
        password=first_set([SECRET_KEY]),
        x_langfuse_public_key=first_set([PUBLIC_KEY]),
    )


def errors() -> tuple[type[Exception], ...]:
    """Return the types of errors that the client raises."""
    return import_module("langfuse.api.core").ApiError, import_module("httpx").TransportError


class Langfuse:
    """Writes scores by the API client of the package ``langfuse``."""

    def __init__(self) -> None:
        self._errors = errors()
        self._client = api_client()
        self._environment = first_set(["LANGFUSE_TRACING_ENVIRONMENT"])

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Write the scores by one request."""
        request = [score for one in annotations for score in self._scores(one)]
        with reported(*self._errors):
            answer = self._client.scores.create(request=request, request_options={"max_retries": 0})
        if getattr(answer, "rejected", 0):  # it does not say which of the batch
            told = f"Langfuse rejected {answer.rejected} of {len(request)} scores"
            raise BackendError(told, status=_INVALID)
        return []

    def _scores(self, annotation: Annotation) -> Iterator[dict[str, Any]]:
        for part in annotation.parts:
            score = {
                "id": str(part.id),
                "traceId": annotation.trace_hex,
                "observationId": annotation.span_hex,
                "name": part.name,
                "value": part.value,
                "dataType": "CATEGORICAL" if isinstance(part.value, str) else "NUMERIC",
                "comment": annotation.explanation,
                "metadata": {"annotator_kind": annotation.kind, **annotation.metadata},
                "environment": self._environment,
                "timestamp": datetime.fromtimestamp(annotation.made, timezone.utc).isoformat(),
            }
            yield {key: value for key, value in score.items() if value is not None}
