"""`Annotation`: one score, label or feedback on a span. `Client`: sends it to a backend.

A client returns a `Refusal` for an annotation that failed, and raises `BackendError` if all failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

from rag_eval_otel.capture.values import exportable
from rag_eval_otel.export.attributes import MAX_EXPLANATION
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.types import Evaluation, Feedback, Label

Annotator: TypeAlias = Literal["LLM", "CODE", "HUMAN"]

OVERALL = "rag.evaluation"  # the name of the annotation with the label of a turn
IDENTIFIER = "rag_eval_otel"  # marks annotations of this library in backends
_NO_JUDGE = frozenset({None, "lexical"})


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
    label: Label | None = None
    kind: Annotator
    annotator: str = IDENTIFIER
    explanation: str | None = None
    metadata: Mapping[str, str | float] = field(default_factory=dict)
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
        path = f"{IDENTIFIER}/{self.trace_hex}/{self.span_hex}/{kind}/{name}"
        return uuid5(NAMESPACE_URL, path)


def annotations_of(
    evaluation: Evaluation, *, asking: frozenset[str], explanations: bool = False
) -> Iterator[Annotation]:
    """Yield an annotation for each score in ``evaluation`` with a number, then the overall label.

    ``asking`` has the names of the metrics that ask the judge. Nothing is yielded without a span.
    """
    if evaluation.span is None:
        return
    on_span = partial(
        Annotation, trace_id=evaluation.span.trace_id, span_id=evaluation.span.span_id
    )
    for prefix, judged in evaluation.judged:
        sampling = judged.sampling
        for score in judged.scores:
            if score.value is None:
                continue
            by_model = score.name in asking and judged.judge not in _NO_JUDGE
            text = score.explanation if explanations and not prefix else None
            yield on_span(
                name=exportable(prefix + score.name),
                value=score.value,
                label=score.label,
                kind="LLM" if by_model else "CODE",
                annotator=exportable(judged.judge or IDENTIFIER) if by_model else IDENTIFIER,
                explanation=exportable(text[:MAX_EXPLANATION]) if text else None,
                metadata=_metadata(
                    version=score.version or None,
                    threshold=score.threshold,
                    judge=judged.judge,
                    normalized_score=score.normalized,
                    reason=score.reason,
                    sampling_probability=None if sampling is None else sampling.probability,
                ),
            )
    if evaluation.label is not None:
        metadata = _metadata(status=evaluation.status, judge=evaluation.judge)
        yield on_span(name=OVERALL, label=evaluation.label, kind="CODE", metadata=metadata)


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


def _metadata(**values: str | float | None) -> dict[str, str | float]:
    return {
        name: exportable(value) if isinstance(value, str) else float(value)
        for name, value in values.items()
        if value is not None
    }


T = TypeVar("T")
_AGAIN: Final = frozenset({408, 409, 425, 429})


class BackendError(Exception):
    """A request to a backend failed. ``status`` is its HTTP status, or None without a response.

    ``body`` is the text of the response. It may quote texts of users and must not be logged.
    ``retry_after`` is the number of seconds after which the backend allows the next request.
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
class Refusal:
    """An annotation of a batch that the backend did not store, and the error."""

    annotation: Annotation
    error: BackendError


class Client(Protocol):
    """The connection to one backend. Its methods are called from one thread at a time."""

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Send ``annotations``, and return a refusal for each that the backend did not store.

        Return when the backend has stored the others. An annotation that is sent again must not be
        stored twice. Raise `BackendError` if none was stored, or if it is not known which were.
        """


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """Convert an exception of these ``kinds``, raised in the ``with`` block, to `BackendError`."""
    try:
        yield
    except kinds as error:
        raise backend_error(error) from error


def backend_error(error: Exception) -> BackendError:
    """Return a `BackendError` with status and type of ``error``, whose message may quote texts."""
    source: Any = error
    while source is not None and getattr(source, "response", None) is None:
        source = source.__context__  # some errors are raised while handling another one
    response = getattr(source, "response", None)
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


class Parallel:
    """Sends several requests at a time, for backends that take one object in a request."""

    def __init__(self) -> None:
        self._executor = Workers(8)
        self._executor.prepare()  # none can be started at exit

    def send(
        self, function: Callable[[T], None], groups: Iterable[tuple[T, Sequence[Annotation]]]
    ) -> list[Refusal]:
        """Call ``function(key)`` for each group; refuse the groups for which it fails."""
        calls = [(self._executor.submit(function, key), annotations) for key, annotations in groups]
        refusals: list[Refusal] = []
        for future, group in calls:
            try:
                future.result()
            except BackendError as error:  # noqa: PERF203  # each call has its own result
                refusals += [Refusal(annotation=one, error=error) for one in group]
        return refusals
