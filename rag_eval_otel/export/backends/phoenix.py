"""Phoenix: each score is an annotation of its span, with number, label and explanation.

Phoenix keeps one annotation for each span, name and identifier. An annotation that is sent twice
replaces itself. The client reads the address and the key from variables such as
``PHOENIX_ENDPOINT`` and ``PHOENIX_API_KEY``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rag_eval_otel.export.backends.annotation import (
    IDENTIFIER,
    NOT_FOUND,
    Annotation,
    BackendError,
    Refusal,
    reported,
)


class Phoenix:
    """Writes annotations by the client of the package ``arize-phoenix-client``."""

    def __init__(self) -> None:
        self._client = import_module("phoenix.client").Client()
        self._errors = (import_module("httpx").HTTPError,)

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Write the annotations whose spans exist; refuse the others as ``not_found``."""
        on_spans = [one for one in annotations if one.span_id is not None]
        on_traces = [one for one in annotations if one.span_id is None]
        return [*self._write(on_spans, of="span"), *self._write(on_traces, of="trace")]

    def _write(self, annotations: Sequence[Annotation], *, of: str) -> list[Refusal]:
        """Write annotations of spans or traces.

        Phoenix writes all annotations of a request or none, and names the spans that are missing.
        """
        if not annotations:
            return []
        try:
            with reported(*self._errors):
                self._request(annotations, of=of)
        except BackendError as error:
            told = error.body if error.status == NOT_FOUND else ""
            lost = [one for one in annotations if _target(one) in told]
            if not lost:
                raise
            left = [one for one in annotations if _target(one) not in told]
            return [*map(_refusal, lost), *self._write(left, of=of)]
        return []

    def _request(self, annotations: Sequence[Annotation], *, of: str) -> None:
        data = [{f"{of}_id": _target(one), **_fields(one)} for one in annotations]
        if of == "span":
            self._client.spans.log_span_annotations(span_annotations=data, sync=True)
        else:
            self._client.traces.log_trace_annotations(trace_annotations=data, sync=True)


def _target(annotation: Annotation) -> str:
    return annotation.span_hex or annotation.trace_hex


def _fields(annotation: Annotation) -> dict[str, Any]:
    result = {
        "score": annotation.value,
        "label": annotation.label,
        "explanation": annotation.explanation,
    }
    return {
        "name": annotation.name,
        "annotator_kind": annotation.kind,
        "result": {key: value for key, value in result.items() if value is not None},
        "metadata": dict(annotation.metadata),
        "identifier": IDENTIFIER,
    }


def _refusal(annotation: Annotation) -> Refusal:
    told = (
        f"Phoenix has no span {_target(annotation)}; export the spans to the same Phoenix, and all"
        " traces if a collector samples them"
    )
    return Refusal(annotation=annotation, error=BackendError(told, status=NOT_FOUND))
