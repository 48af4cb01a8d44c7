"""Scores as ``gen_ai.evaluation.result`` log events, parented to the evaluated span.

OpenTelemetry's logs API is still underscored; this is the only module that touches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from opentelemetry import _logs

from rag_eval_otel import semconv
from rag_eval_otel.sinks.attributes import MAX_EXPLANATION, exportable_attributes
from rag_eval_otel.sinks.refs import span_context
from rag_eval_otel.types import Evaluation, Score

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue


class EventSink:
    """Emits one event per score; works for scores that come after their span has left."""

    def __init__(
        self,
        logger_provider: _logs.LoggerProvider | None = None,
        *,
        explanations: Literal["off", "on"] = "off",
    ) -> None:
        """Emit through ``logger_provider``, by default the global one."""
        provider = logger_provider or _logs.get_logger_provider()
        self._logger = provider.get_logger(semconv.SCOPE, schema_url=semconv.GEN_AI_SCHEMA_URL)
        self._explanations = explanations

    def emit(self, evaluation: Evaluation) -> None:
        """Emit the events of ``evaluation``."""
        context = span_context(evaluation.span)
        for score in evaluation.scores:
            self._logger.emit(
                event_name=semconv.EVALUATION_EVENT,
                context=context,
                severity_number=_logs.SeverityNumber.INFO,
                attributes=exportable_attributes(self._attributes(score, evaluation)),
            )

    def _attributes(
        self, score: Score, evaluation: Evaluation
    ) -> Iterator[tuple[str, AttributeValue]]:
        yield from evaluation.about.items()
        yield semconv.GEN_AI_EVALUATION_NAME, score.name
        if score.value is not None:
            yield semconv.GEN_AI_EVALUATION_SCORE_VALUE, score.value
        if score.label is not None:
            yield semconv.GEN_AI_EVALUATION_SCORE_LABEL, score.label
        if score.status == "error" and score.reason is not None:
            yield semconv.ERROR_TYPE, score.reason
        if score.reason is not None:
            yield semconv.EVALUATION_REASON, score.reason
        if score.version:
            yield semconv.EVALUATION_VERSION, score.version
        if evaluation.judge is not None:
            yield semconv.EVALUATION_JUDGE, evaluation.judge
        if self._explanations == "on" and score.explanation:
            yield semconv.GEN_AI_EVALUATION_EXPLANATION, score.explanation[:MAX_EXPLANATION]
