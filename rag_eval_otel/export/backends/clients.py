"""The clients of backends: each sends an `Annotation` as the backend's own object.

Address, key and project are in the environment variables of the backend's own package.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from http import HTTPStatus
from importlib import import_module
from typing import Any, Final

from rag_eval_otel.environment import first_set
from rag_eval_otel.export.backends.annotation import (
    IDENTIFIER,
    Annotation,
    BackendError,
    Rejection,
    reported,
)


def _without_none(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


class Phoenix:
    """Sends annotations of spans to Phoenix, which stores all annotations of a request or none."""

    def __init__(self) -> None:
        client: Any = import_module("phoenix.client").Client()
        self._spans = partial(client.spans.log_span_annotations, sync=True)
        self._traces = partial(client.traces.log_trace_annotations, sync=True)
        self._errors = (import_module("httpx").HTTPError,)

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Rejection]:
        """Write the annotations whose spans exist in Phoenix; return refusals for the others."""
        on_spans = [(each.span_hex, each) for each in annotations if each.span_hex is not None]
        on_traces = [(each.trace_hex, each) for each in annotations if each.span_hex is None]
        return [*self._write("span", on_spans), *self._write("trace", on_traces)]

    def _write(self, kind: str, annotations: list[tuple[str, Annotation]]) -> list[Rejection]:
        """Write pairs of a span id or trace id and its annotation; ``kind``: span or trace."""
        if not annotations:
            return []
        data = [
            {
                f"{kind}_id": target,
                "name": each.name,
                "annotator_kind": each.kind,
                "result": _without_none(
                    score=each.value, label=each.label, explanation=each.explanation
                ),
                "metadata": dict(each.metadata),
                "identifier": IDENTIFIER,
            }
            for target, each in annotations
        ]
        write = self._spans if kind == "span" else self._traces
        try:
            with reported(*self._errors):
                write(**{f"{kind}_annotations": data})
        except BackendError as error:
            body = error.body if error.status == HTTPStatus.NOT_FOUND else ""
            lost = {target for target, _ in annotations if target in body}
            if not lost:
                raise
            missing = BackendError(
                f"Phoenix has no {kind} {min(lost)}; export the spans to the same Phoenix, and all"
                " traces if a collector samples them",
                status=HTTPStatus.NOT_FOUND,
            )
            refused = [Rejection(annotation=a, error=missing) for t, a in annotations if t in lost]
            return refused + self._write(kind, [one for one in annotations if one[0] not in lost])
        return []


_ID, _MADE = f"{IDENTIFIER}.id", f"{IDENTIFIER}.made"
_SOURCES = {"LLM": "LLM_JUDGE", "CODE": "CODE", "HUMAN": "HUMAN"}


class MLflow:
    """Sends each score and each label to MLflow, as feedback on the span in ``tr-<trace id>``.

    MLflow assigns the id of a feedback, so a redelivered score is stored twice. Our id and the time
    are in the metadata, by which all but the newest are deleted after writing.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its import warns of parts of its own
            self._mlflow = import_module("mlflow")
            self._entities = import_module("mlflow.entities")
            self._traces: Any = import_module("mlflow.tracing.client").TracingClient()
        self._errors = (
            import_module("mlflow.exceptions").MlflowException,
            import_module("requests").RequestException,
        )

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Rejection]:
        """Write the feedback of each trace; refuse every annotation of a trace that failed."""
        traces: dict[str, list[Annotation]] = defaultdict(list)
        for annotation in annotations:
            traces[f"tr-{annotation.trace_hex}"].append(annotation)
        rejections: list[Rejection] = []
        for trace, group in traces.items():
            try:
                self._write(trace, group)
            except BackendError as error:  # noqa: PERF203  # each trace has its own result
                rejections += [Rejection(annotation=each, error=error) for each in group]
        return rejections

    def _write(self, trace: str, annotations: Sequence[Annotation]) -> None:
        stored: dict[str, list[tuple[float, str]]] = defaultdict(list)
        with reported(*self._errors):
            for annotation in annotations:
                self._log(trace, annotation)
            for assessment in self._traces.get_trace_info(trace).assessments:
                metadata = assessment.metadata or {}
                if _MADE in metadata:  # else it is of others
                    entry = float(metadata[_MADE]), assessment.assessment_id
                    stored[metadata[_ID]].append(entry)
            for same in stored.values():
                for _, surplus in sorted(same)[:-1]:
                    self._mlflow.delete_assessment(trace_id=trace, assessment_id=surplus)

    def _log(self, trace: str, annotation: Annotation) -> None:
        metadata = {key: str(value) for key, value in annotation.metadata.items()}
        kind, annotator = _SOURCES[annotation.kind], annotation.annotator
        for part in annotation.parts:
            self._mlflow.log_feedback(
                trace_id=trace,
                span_id=annotation.span_hex,
                name=part.name,
                value=part.value,
                rationale=annotation.explanation,
                source=self._entities.AssessmentSource(kind, annotator),
                metadata={**metadata, _ID: str(part.id), _MADE: f"{annotation.made:.6f}"},
            )


LANGFUSE_KEYS: Final = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")


class Langfuse:
    """Sends number and label to Langfuse as two scores of its span, with ids against duplicates."""

    def __init__(self) -> None:
        self.errors = (
            import_module("langfuse.api.core").ApiError,
            import_module("httpx").TransportError,
        )
        public, secret = (first_set([name]) for name in LANGFUSE_KEYS)
        # Not the class `langfuse.Langfuse`, which would add an exporter of spans.
        self.client = import_module("langfuse.api").LangfuseAPI(
            base_url=first_set(["LANGFUSE_BASE_URL", "LANGFUSE_HOST"])
            or "https://cloud.langfuse.com",
            username=public,
            password=secret,
            x_langfuse_public_key=public,
        )
        self._environment = first_set(["LANGFUSE_TRACING_ENVIRONMENT"])

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Rejection]:
        request = [score for each in annotations for score in self._scores(each)]
        with reported(*self.errors):
            answer = self.client.scores.create(request=request, request_options={"max_retries": 0})
        if getattr(answer, "rejected", 0):  # it does not say which of the batch
            msg = f"Langfuse rejected {answer.rejected} of {len(request)} scores"
            raise BackendError(msg, status=HTTPStatus.UNPROCESSABLE_ENTITY)
        return []

    def _scores(self, annotation: Annotation) -> Iterator[dict[str, Any]]:
        for part in annotation.parts:
            yield _without_none(
                id=str(part.id),
                traceId=annotation.trace_hex,
                observationId=annotation.span_hex,
                name=part.name,
                value=part.value,
                dataType="CATEGORICAL" if isinstance(part.value, str) else "NUMERIC",
                comment=annotation.explanation,
                metadata={"annotator_kind": annotation.kind, **annotation.metadata},
                environment=self._environment,
                timestamp=datetime.fromtimestamp(annotation.made, timezone.utc).isoformat(),
            )
