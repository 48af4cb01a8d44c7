"""`Annotation`: one score, label or feedback on a span, and the client that sends it to a backend.

A client says by `Refusal` and `BackendError` what the backend did not take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, Protocol, TypeAlias, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid5

from rag_eval_otel import semconv
from rag_eval_otel.capture.values import exportable
from rag_eval_otel.export.attributes import MAX_EXPLANATION
from rag_eval_otel.runtime.threads import DaemonExecutor
from rag_eval_otel.types import Evaluation, Feedback, Label, Score, SpanRef

Annotator: TypeAlias = Literal["LLM", "CODE", "HUMAN"]
Metadata: TypeAlias = Mapping[str, "str | int | float | bool"]

OVERALL = "rag.evaluation"
"""The name of the annotation with the overall label of a turn, which has no number."""

IDENTIFIER = "rag_eval_otel"
"""Says in backends that an annotation is from this library; equal names of others stay apart."""

_NO_JUDGE = frozenset({None, "lexical"})
_OVERHEAD = 700  # about how many bytes an annotation takes in memory beside its texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The number or the label of an annotation, with an id and a name of its own."""

    id: UUID
    name: str
    value: float | str


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """What a metric, the overall label or a person says about one span or one trace.

    - ``span_id``: None if the annotation is about a whole trace.
    - ``value``: the score on the scale of the metric, or None if there is only a label.
    - ``annotator``: the model that judged, or the name of the program.
    - ``made``: the time in seconds since the epoch.
    """

    name: str
    trace_id: int
    span_id: int | None
    value: float | None = None
    label: Label | None = None
    kind: Annotator
    annotator: str = IDENTIFIER
    explanation: str | None = None
    metadata: Metadata = field(default_factory=dict)
    made: float = field(default_factory=time.time)

    @property
    def trace_hex(self) -> str:
        """The trace id as 32 hexadecimal digits."""
        return f"{self.trace_id:032x}"

    @property
    def span_hex(self) -> str | None:
        """The span id as 16 hexadecimal digits; None if the annotation is about a trace."""
        return None if self.span_id is None else f"{self.span_id:016x}"

    @cached_property
    def id(self) -> UUID:
        """The same id for each attempt to send the annotation: of the span, the name, the kind."""
        return self._id_of(self.name)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The number and the label, for backends in which an object has one of them.

        Beside a number, the name of the label is ``<name>.label``.
        """
        label = self.name if self.value is None else f"{self.name}.label"
        return tuple(
            Part(id=self._id_of(name), name=name, value=value)
            for name, value in ((self.name, self.value), (label, self.label))
            if value is not None
        )

    def _id_of(self, name: str) -> UUID:
        kind = "HUMAN" if self.kind == "HUMAN" else "score"
        of = f"{IDENTIFIER}/{self.trace_hex}/{self.span_hex}/{kind}/{name}"
        return uuid5(NAMESPACE_URL, of)

    @cached_property
    def size(self) -> int:
        """About how many bytes the annotation takes in memory."""
        texts = (self.name, self.annotator, self.explanation or "", *map(str, self.metadata))
        values = [value for value in self.metadata.values() if isinstance(value, str)]
        return _OVERHEAD + 2 * sum(map(len, (*texts, *values)))


def annotations_of(
    evaluation: Evaluation, *, asking: frozenset[str], explanations: bool = False
) -> Iterator[Annotation]:
    """Yield an annotation for each score in ``evaluation`` that is a number, and the overall label.

    ``asking`` has the names of the metrics that ask the judge. The names of scores by the offline
    judge of a cascade begin with ``offline.``, as on the span.
    """
    span = evaluation.span
    if span is None:
        return
    is_offline = evaluation.sampling is not None and evaluation.sampling.stage == "offline"
    offline = evaluation if is_offline else evaluation.offline
    for prefix, by in ((f"{semconv.OFFLINE}.", offline), ("", None if is_offline else evaluation)):
        for score in () if by is None else by.scores:
            if by is not None and score.value is not None:
                made = _of_score(score, by, span=span, asking=asking)
                told = score.explanation if explanations and not prefix else None
                told = exportable(told[:MAX_EXPLANATION]) if told else None
                yield replace(made, name=f"{prefix}{made.name}", explanation=told)
    if evaluation.label is not None:
        yield Annotation(
            name=OVERALL,
            trace_id=span.trace_id,
            span_id=span.span_id,
            label=evaluation.label,
            kind="CODE",
            metadata=_metadata({"status": evaluation.status, "judge": evaluation.judge}),
        )


def annotation_of(feedback: Feedback) -> Annotation:
    """Return the annotation for the ``feedback`` of a person."""
    return Annotation(
        name=exportable(feedback.name),
        trace_id=feedback.trace_id,
        span_id=feedback.span_id,
        value=feedback.score,
        label=feedback.label,
        kind="HUMAN",
        annotator=exportable(feedback.name),
        explanation=None if feedback.comment is None else exportable(feedback.comment),
    )


def _of_score(
    score: Score, evaluation: Evaluation, *, span: SpanRef, asking: frozenset[str]
) -> Annotation:
    judged = score.name in asking and evaluation.judge not in _NO_JUDGE
    probability = None if evaluation.sampling is None else evaluation.sampling.probability
    found = {
        "version": score.version or None,
        "threshold": score.threshold,
        "judge": evaluation.judge,
        "normalized_score": score.normalized,
        "reason": score.reason,
        "sampling_probability": probability,
    }
    return Annotation(
        name=exportable(score.name),
        trace_id=span.trace_id,
        span_id=span.span_id,
        value=score.value,
        label=score.label,
        kind="LLM" if judged else "CODE",
        annotator=exportable(evaluation.judge or IDENTIFIER) if judged else IDENTIFIER,
        metadata=_metadata(found),
    )


def _metadata(found: Mapping[str, str | float | None]) -> dict[str, str | float]:
    given = {key: value for key, value in found.items() if value is not None}
    return {k: exportable(v) if isinstance(v, str) else float(v) for k, v in given.items()}


# --- the client of a backend ----------------------------------------------------------------------

T = TypeVar("T")
NOT_FOUND: Final = 404
SERVER_ERROR: Final = 500
_AGAIN: Final = frozenset({408, 409, 425, 429})


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

    Its message is safe to log: a response may quote texts of users or the key, and the message of
    ``error`` an address with a password, so it has neither.
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
    kind = type(error).__name__
    return BackendError(
        kind if status is None else f"HTTP {status} ({kind})",
        status=status,
        body=str(getattr(response, "text", "") or getattr(error, "body", "")),
        retry_after=after,
    )


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
