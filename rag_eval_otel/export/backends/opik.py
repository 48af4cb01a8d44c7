"""Opik: each score is a feedback score of its span, with the label as its category.

Opik makes the id of a span from the time of its trace and a hash of its OpenTelemetry id. The time
is not known here, so the span is searched by the end of its id. A span has one feedback score of a
name, so that one sent twice replaces itself. A feedback score has no metadata: version, threshold
and kind of annotator are in its reason. The client reads the address, the key and the project from
variables such as ``OPIK_URL_OVERRIDE``, ``OPIK_API_KEY`` and ``OPIK_PROJECT_NAME``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from typing import Any

from rag_eval_otel.export.backends.annotation import (
    NOT_FOUND,
    Annotation,
    BackendError,
    Parallel,
    Refusal,
    reported,
)

_MAX_KNOWN = 1000  # spans whose ids are kept, for the scores of the same turn
_PASSED = {"pass": 1.0, "fail": 0.0}


class Opik:
    """Writes feedback scores by the client of the package ``opik``."""

    def __init__(self) -> None:
        self._client: Any = import_module("opik").Opik(_show_misconfiguration_message=False)
        types: Any = import_module("opik.rest_api.types.feedback_score_batch_item")
        self._item = types.FeedbackScoreBatchItem
        self._errors = (
            import_module("opik.rest_api.core.api_error").ApiError,
            import_module("httpx").HTTPError,
        )
        self._parallel = Parallel()
        self._known: OrderedDict[int, str] = OrderedDict()

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Find the spans, several at a time, and write the feedback scores by one request."""
        spans = {one.span_id for one in annotations}
        refusals = self._parallel.send(
            self._find, [(id_, [a for a in annotations if a.span_id == id_]) for id_ in spans]
        )
        refused = {one.annotation.id for one in refusals}
        scores = [self._score(one) for one in annotations if one.id not in refused]
        if scores:
            with reported(*self._errors):
                self._client.rest_client.spans.score_batch_of_spans(
                    scores=scores, request_options={"max_retries": 0}
                )
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return refusals

    def _find(self, span_id: int | None) -> None:
        """Search the id that Opik gave to the span."""
        if span_id is None:
            told = "Opik has no feedback score on a trace whose span is not known"
            raise BackendError(told, status=400)
        if span_id in self._known:
            return
        with reported(*self._errors):
            found = self._client.search_spans(
                filter_string=f'id ends_with "{end_of_id(span_id)}"', max_results=1
            )
        if not found:
            told = (
                f"Opik has no span {span_id:016x} in the project"
                f" {self._client.config.project_name!r}; set OPIK_PROJECT_NAME to the project to"
                " which the spans are exported"
            )
            raise BackendError(told, status=NOT_FOUND)
        self._known[span_id] = str(found[0].id)

    def _score(self, annotation: Annotation) -> Any:
        value = annotation.value
        return self._item(
            id=self._known[annotation.span_id or 0],
            name=annotation.name,
            value=_PASSED[annotation.label or "fail"] if value is None else value,
            category_name=annotation.label,
            reason=_reason(annotation),
            source="sdk",
            project_name=self._client.config.project_name,
        )


def end_of_id(span_id: int) -> str:
    """Return the last digits of the id that Opik gives to the span: a part of its hash."""
    return sha256(span_id.to_bytes(8, "big")).digest()[4:10].hex()


def _reason(annotation: Annotation) -> str:
    told = [f"{annotation.kind} {annotation.annotator}"]
    told += [f"{key}: {value}" for key, value in annotation.metadata.items()]
    return "\n".join(filter(None, [annotation.explanation, "; ".join(told)]))
