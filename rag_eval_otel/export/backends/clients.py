"""The clients of backends: each sends an `Annotation` as the backend's own object.

Address, key and project are in the environment variables of the backend's own package.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from importlib import import_module
from typing import Any, Final
from uuid import UUID

from rag_eval_otel.environment import first_set
from rag_eval_otel.export.backends.annotation import (
    IDENTIFIER,
    Annotation,
    BackendError,
    Parallel,
    Refusal,
    reported,
)


def _without_none(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


class Phoenix:
    """Phoenix: an annotation of the span. Phoenix stores all annotations of a request or none."""

    def __init__(self) -> None:
        client: Any = import_module("phoenix.client").Client()
        self._spans = partial(client.spans.log_span_annotations, sync=True)
        self._traces = partial(client.traces.log_trace_annotations, sync=True)
        self._errors = (import_module("httpx").HTTPError,)

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Write the annotations whose spans exist in Phoenix; return refusals for the others."""
        on_spans = [(each.span_hex, each) for each in annotations if each.span_hex is not None]
        on_traces = [(each.trace_hex, each) for each in annotations if each.span_hex is None]
        return [*self._write("span", on_spans), *self._write("trace", on_traces)]

    def _write(self, kind: str, annotations: list[tuple[str, Annotation]]) -> list[Refusal]:
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
                f"Phoenix has no span {min(lost)}; export the spans to the same Phoenix, and all"
                " traces if a collector samples them",
                status=HTTPStatus.NOT_FOUND,
            )
            refused = [Refusal(annotation=a, error=missing) for t, a in annotations if t in lost]
            return refused + self._write(kind, [one for one in annotations if one[0] not in lost])
        return []


_ID, _MADE = f"{IDENTIFIER}.id", f"{IDENTIFIER}.made"
_SOURCES = {"LLM": "LLM_JUDGE", "CODE": "CODE", "HUMAN": "HUMAN"}


class MLflow:
    """MLflow: each score, and each label, is a feedback of its span in ``tr-<trace id>``.

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
        self._parallel = Parallel()

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Write the feedback of each trace; refuse all annotations of a trace that failed."""
        traces: dict[str, list[Annotation]] = defaultdict(list)
        for annotation in annotations:
            traces[f"tr-{annotation.trace_hex}"].append(annotation)
        return self._parallel.send(lambda trace: self._write(trace, traces[trace]), traces.items())

    def _write(self, trace: str, annotations: Sequence[Annotation]) -> None:
        stored: dict[str, list[tuple[float, str]]] = defaultdict(list)
        with reported(*self._errors):
            for annotation in annotations:
                self._log(trace, annotation)
            for assessment in self._traces.get_trace_info(trace).assessments:
                metadata = assessment.metadata or {}
                made = float(metadata.get(_MADE, 0))
                stored[metadata.get(_ID, "")].append((made, assessment.assessment_id))
            stored.pop("", None)  # of others
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


class LangSmith:
    """LangSmith: a feedback with our id, on the run that has the id of the span."""

    def __init__(self) -> None:
        package = import_module("langsmith")
        utils: Any = import_module("langsmith.utils")
        # The client's own queue would drop feedback silently, and its sampling is that of runs.
        self._client = package.Client(auto_batch_tracing=False, tracing_sampling_rate=1.0)
        self._name = utils.get_tracer_project()
        self._missing, self._conflict = utils.LangSmithNotFoundError, utils.LangSmithConflictError
        self._errors = import_module("requests").RequestException, utils.LangSmithError
        self._parallel = Parallel()
        self._project: UUID | None = None

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        if self._project is None:
            self._project = self._find_project()
        return self._parallel.send(self._write, [(each, [each]) for each in annotations])

    def _find_project(self) -> UUID:
        try:
            with reported(*self._errors):
                project: UUID = self._client.read_project(project_name=self._name).id
                return project
        except BackendError as error:
            if not isinstance(error.__cause__, self._missing):
                raise
            raise BackendError(
                f"LangSmith has no project {self._name!r}, which is made when its first span"
                " arrives; set LANGSMITH_PROJECT to the project to which the spans are exported",
                status=HTTPStatus.NOT_FOUND,
            ) from error

    def _write(self, annotation: Annotation) -> None:
        if annotation.span_id is None:
            msg = "LangSmith has no feedback on a trace whose root span is not known"
            raise BackendError(msg, status=HTTPStatus.BAD_REQUEST)
        with reported(*self._errors), suppress(self._conflict):  # stored before, without an answer
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


LANGFUSE_KEYS: Final = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")


class Langfuse:
    """Langfuse: one score for the number and one for the label, on the span, with ids of ours."""

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

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
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


class Opik:
    """Opik: each score is a feedback score of its span, with the label as its category.

    Opik makes the id of a span from the time of its trace, which is not known here, and a hash of
    its OpenTelemetry id, so the span is searched by the end of its id. A redelivered score replaces
    the first of its name. Metadata is in the reason, as a feedback score has no other place for it.
    """

    def __init__(self) -> None:
        self._client: Any = import_module("opik").Opik(_show_misconfiguration_message=False)
        types: Any = import_module("opik.rest_api.types.feedback_score_batch_item")
        self._item = types.FeedbackScoreBatchItem
        self._errors = (
            import_module("opik.rest_api.core.api_error").ApiError,
            import_module("httpx").HTTPError,
        )
        self._parallel = Parallel()

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Search the spans in parallel, and write the scores of those that exist by one request."""
        spans: dict[int | None, list[Annotation]] = defaultdict(list)
        for annotation in annotations:
            spans[annotation.span_id].append(annotation)
        ids: dict[int | None, str] = {}
        refusals = self._parallel.send(
            lambda span: ids.update({span: self._find(span)}), spans.items()
        )
        scores = [
            self._score(each, ids[each.span_id]) for each in annotations if each.span_id in ids
        ]
        if scores:
            with reported(*self._errors):
                self._client.rest_client.spans.score_batch_of_spans(
                    scores=scores, request_options={"max_retries": 0}
                )
        return refusals

    def _find(self, span_id: int | None) -> str:
        if span_id is None:
            msg = "Opik has no feedback score on a trace whose span is not known"
            raise BackendError(msg, status=HTTPStatus.BAD_REQUEST)
        with reported(*self._errors):
            spans = self._client.search_spans(
                filter_string=f'id ends_with "{end_of_opik_id(span_id)}"', max_results=1
            )
        if not spans:
            raise BackendError(
                f"Opik has no span {span_id:016x} in the project"
                f" {self._client.config.project_name!r}; set OPIK_PROJECT_NAME to the project to"
                " which the spans are exported",
                status=HTTPStatus.NOT_FOUND,
            )
        return str(spans[0].id)

    def _score(self, annotation: Annotation, span: str) -> Any:
        value, label = annotation.value, annotation.label
        facts = [f"{annotation.kind} {annotation.annotator}"]
        facts += [f"{key}: {text}" for key, text in annotation.metadata.items()]
        return self._item(
            id=span,
            name=annotation.name,
            value=float(label == "pass") if value is None else value,
            category_name=label,
            reason="\n".join(filter(None, [annotation.explanation, "; ".join(facts)])),
            source="sdk",
            project_name=self._client.config.project_name,
        )


def end_of_opik_id(span_id: int) -> str:
    """Return the last 12 hexadecimal digits of Opik's id of the span, a part of its hash."""
    return sha256(span_id.to_bytes(8, "big")).digest()[4:10].hex()
