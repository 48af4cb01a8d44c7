"""`Annotation`: one score, label or feedback on a span. `Client`: sends it to a backend.

A client returns a `Rejection` for each annotation that failed, or raises `BackendError` for all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias
from uuid import NAMESPACE_URL, UUID, uuid5

from rag_eval_otel.capture.values import exportable
from rag_eval_otel.types import Evaluation, Feedback, Score, SpanRef

Annotator: TypeAlias = Literal["LLM", "CODE", "HUMAN"]

OVERALL = "rag.evaluation"  # the name of the annotation with the label of a turn
IDENTIFIER = "rag_eval_otel"  # marks annotations of this library in backends
MAX_EXPLANATION = 1024  # characters
_NO_MODEL = ("lexical", "local")  # how the names of judges begin that are no language models
_NOWHERE = SpanRef(trace_id=0, span_id=0)
_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Part(NamedTuple):
    """The number or the label of an `Annotation`, for backends that store them separately."""

    id: UUID
    name: str
    value: float | str


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """The result of a metric, the overall label or a person's feedback on one span or one trace.

    - ``span_id``: None if the annotation is about a whole trace.
    - ``value``: the score on the scale of the metric, or None if there is only a label.
    - ``annotator``: the judge's model, the name of the feedback, or this library.
    - ``made``: the time of its creation, in seconds since the epoch.
    """

    name: str
    trace_id: int
    span_id: int | None
    value: float | None = None
    label: str | None = None
    kind: Annotator
    annotator: str = IDENTIFIER
    explanation: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    made: float = field(default_factory=time.time)

    @property
    def trace_hex(self) -> str:
        return f"{self.trace_id:032x}"

    @property
    def span_hex(self) -> str | None:
        return None if self.span_id is None else f"{self.span_id:016x}"

    @cached_property
    def id(self) -> UUID:
        """An id made from span, name and kind, so that a backend can deduplicate redeliveries."""
        return self._id_of(self.name)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The number and the label as separate objects; one that is None is left out."""
        label = self.name if self.value is None else f"{self.name}.label"
        named: Iterable[tuple[str, float | str | None]]
        named = ((self.name, self.value), (label, self.label))
        return tuple(Part(self._id_of(name), name, v) for name, v in named if v is not None)

    def _id_of(self, name: str) -> UUID:
        kind = "HUMAN" if self.kind == "HUMAN" else "score"
        return uuid5(NAMESPACE_URL, f"{IDENTIFIER}/{self.trace_hex}/{self.span_hex}/{kind}/{name}")


def annotations_of(evaluation: Evaluation, *, explanations: bool = False) -> Iterator[Annotation]:
    """Yield an annotation for each score in ``evaluation`` with a number, then the overall label.

    The scores of a cascade's offline judge come after those of the judge.
    """
    ref = evaluation.span or _NOWHERE
    for prefix, judged in evaluation.judged:
        is_explained = explanations and not prefix
        for score in judged.scores:
            if score.value is not None:
                name = prefix + score.name
                yield score_annotation(score, judged, name, ref=ref, is_explained=is_explained)
    if evaluation.label is not None:
        said = {"judge": evaluation.judge, "status": evaluation.status}
        yield Annotation(
            name=OVERALL,
            trace_id=ref.trace_id,
            span_id=ref.span_id,
            label=evaluation.label,
            kind="CODE",
            metadata=exportable_attributes(said),
        )


def score_annotation(
    score: Score, judged: Evaluation, name: str, *, ref: SpanRef = _NOWHERE, is_explained: bool
) -> Annotation:
    """Return the annotation ``name`` of a score with a number in ``judged``."""
    is_model = not (judged.judge or "lexical").startswith(_NO_MODEL)
    by_model = is_model and score.name not in judged.computed
    text = score.explanation if is_explained else None
    return Annotation(
        name=exportable(name),
        trace_id=ref.trace_id,
        span_id=ref.span_id,
        value=score.value,
        label=score.label,
        kind="LLM" if by_model else "CODE",
        annotator=exportable(judged.judge or IDENTIFIER) if by_model else IDENTIFIER,
        explanation=exportable(text[:MAX_EXPLANATION]) if text else None,
        metadata=_metadata_of(score, judged),
    )


def _metadata_of(score: Score, evaluation: Evaluation) -> dict[str, Any]:
    sampling, places = evaluation.sampling, score.unsupported
    metadata = {
        "judge": evaluation.judge,
        "threshold": score.threshold,
        "version": score.version or None,
        "tokens": score.usage.tokens or None,
        "cost": score.cost,
        "normalized_score": score.normalized,
        "reason": score.reason,
        "sampling_probability": None if sampling is None else sampling.probability,
        "history_messages": evaluation.messages or None,
        "unsupported_count": None if places is None else len(places),
        "unsupported_offsets": [*chain(*places)] if places else None,
    }
    return exportable_attributes(metadata)


def annotation_of(feedback: Feedback) -> Annotation:
    return Annotation(
        name=exportable(feedback.name),
        trace_id=feedback.trace_id,
        span_id=feedback.span_id,
        value=feedback.score,
        label=feedback.label,
        kind="HUMAN",
        annotator=exportable(feedback.name),
        explanation=exportable(feedback.comment or "")[:MAX_EXPLANATION] or None,
    )


def exportable_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``attributes`` without None; lone surrogates, which UTF-8 lacks, are replaced."""
    return {
        name: exportable(value) if isinstance(value, str) and not value.isascii() else value
        for name, value in attributes.items()
        if value is not None
    }


def openinference_object(annotation: Annotation, number: int) -> dict[str, str | float]:
    """Return the span attributes of ``annotation`` by OpenInference, with the index ``number``."""
    term = "annotation" if annotation.kind == "HUMAN" else "evaluation"
    has_metadata = annotation.metadata and annotation.value is not None
    leaves = {
        "name": annotation.name,
        "score": annotation.value,
        "label": annotation.label,
        "annotator_kind": annotation.kind,
        "identifier": IDENTIFIER,
        "metadata": _json(annotation.metadata) if has_metadata else None,
        "explanation": annotation.explanation,
    }
    prefix = f"{term}s.{number}.{term}."
    return {prefix + leaf: value for leaf, value in leaves.items() if value is not None}


_AGAIN: Final = frozenset({408, 409, 425, 429})


class BackendError(Exception):
    """A request to a backend failed. ``status`` is its HTTP status, or None without a response.

    ``body`` is the text of the response. It may quote texts of users and must not be logged.
    ``retry_after`` is the number of seconds that the backend asks to wait, or 0.
    """

    def __init__(
        self, message: str, *, status: int | None = None, body: str = "", retry_after: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status, self.body, self.retry_after = status, body, retry_after

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later: a timeout, rate limit or server error."""
        status = self.status
        return status is None or status in _AGAIN or status >= HTTPStatus.INTERNAL_SERVER_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An annotation of a batch that the backend did not store, and the error."""

    annotation: Annotation
    error: BackendError


class Client(Protocol):
    """The connection to one backend. Its methods are called from one thread at a time."""

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Rejection]:
        """Send ``annotations``, and return a refusal for each that the backend did not store.

        Return when the backend has stored the others. An annotation that is sent again must not be
        stored twice. A `BackendError` means that none was stored, or that this is unknown.
        """


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """Convert an exception of these ``kinds``, raised in the ``with`` block, to `BackendError`."""
    try:
        yield
    except kinds as error:
        raise backend_error(error) from error


def backend_error(error: Exception) -> BackendError:
    """Return a `BackendError` with status, type, body and pause of ``error``, not its message."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    if status is None and hasattr(error, "get_http_status_code"):  # MLflow
        status = error.get_http_status_code()
    headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
    after = 0.0
    with suppress(ValueError):  # it may be a date
        after = max(0.0, float(headers.get("retry-after") or headers.get("Retry-After") or "0"))
    status = status if isinstance(status, int) else None
    kind = type(error).__name__
    return BackendError(
        kind if status is None else f"HTTP {status} ({kind})",
        status=status,
        body=str(getattr(response, "text", "") or getattr(error, "body", "")),
        retry_after=after,
    )
