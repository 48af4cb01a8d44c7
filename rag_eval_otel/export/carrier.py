"""`Carrier`: a span for scores and feedback that come after the span of the turn was exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Tracer, get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions.openinference import SPAN_KIND
from rag_eval_otel.export.attributes import SpanScores, span_context
from rag_eval_otel.export.backends.annotation import Annotation, annotation_of
from rag_eval_otel.types import Ending, Feedback, SpanRef

_NAMES = (semconv.SESSION_ID, semconv.USER_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """Writes spans ``evaluate turn`` of OpenInference, each with one link to the span of a turn.

    An exported span cannot be changed, so each is the root of a new trace. None is written if
    ``scores.form`` is ``rag``, which has no attributes of OpenInference.
    """

    tracer: Tracer
    scores: SpanScores

    def write(self, target: SpanRef, ending: Ending) -> None:
        """Write the scores in ``ending``, if there are any, and each feedback."""
        about = {} if ending.evaluation is None else ending.evaluation.about
        parts = [part for part in self.scores.parts_of(ending) if isinstance(part, Annotation)]
        self._write(target, parts, about, ending)
        for feedback in ending.feedback:
            self.write_feedback(feedback, about)

    def write_feedback(self, feedback: Feedback, about: Mapping[str, Any]) -> None:
        if feedback.span_id is not None:  # else there is no span to link to
            self._write(feedback.span, [annotation_of(feedback)], about, Ending())

    def _write(
        self, target: SpanRef, found: list[Annotation], about: Mapping[str, Any], ending: Ending
    ) -> None:
        if not found or self.scores.form == "rag":
            return
        linked = get_current_span(span_context(target)).get_span_context()
        known = {name: about[name] for name in _NAMES if name in about}
        span = self.tracer.start_span(
            "evaluate turn",
            context=Context(),
            kind=SpanKind.INTERNAL,
            links=[Link(linked)],
            attributes={SPAN_KIND: "EVALUATOR", **known},
        )
        self.scores.write(span, ending, found)
        span.end()
