"""`JudgeSpans`: make a span of each request to a judge, below the evaluated span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from rag_eval_otel import semconv
from rag_eval_otel.export.attributes import exportable_attributes
from rag_eval_otel.judge.limits import is_usable, outcome_of, status_of
from rag_eval_otel.judge.usage import Exchange
from rag_eval_otel.live.langchain_spans import messages_json
from rag_eval_otel.prices import Prices
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Replies

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

_STANDARD: Final[Mapping[str, str]] = {  # names of providers in the semantic conventions
    "azure": "azure.ai.openai",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpans:
    """Makes the spans of the option ``judge_spans``, by the GenAI semantic conventions."""

    tracer: Tracer
    prices: Prices
    with_texts: bool
    edge: Edge

    def write(self, parent: SpanContext, exchange: Exchange) -> None:
        """Export a span for ``exchange`` below the span ``parent`` of the turn, at once."""
        meter = exchange.scope.meter
        if meter is None or meter.part == "embedder":
            return
        with self.edge:
            span = self.tracer.start_span(
                f"{semconv.OPERATION_CHAT} {meter.model}",
                context=set_span_in_context(NonRecordingSpan(parent), Context()),
                kind=SpanKind.CLIENT,
                start_time=exchange.began,
            )
            attributes = self._attributes(exchange, meter.model)
            span.set_attributes(exportable_attributes(attributes))
            if (error := attributes[semconv.ERROR_TYPE]) is not None:
                span.set_status(StatusCode.ERROR, str(error))
            span.end()

    def _attributes(self, exchange: Exchange, model: str) -> dict[str, AttributeValue | None]:
        error, reply, provider = exchange.error, exchange.reply, exchange.provider
        usage = reply.usage if isinstance(reply, Replies) and reply.usage.tokens else None
        answered = reply.model if isinstance(reply, Replies) else None
        costs = [self.prices.cost(each, usage) for each in (answered, model)] if usage else []
        cost = next((cost for cost in costs if cost is not None), None)
        outcome = None if error is None else outcome_of(error)
        if isinstance(reply, Replies) and not is_usable(reply):
            outcome = "unparsable"
        prompt = [(each["role"], each["content"]) for each in exchange.messages]
        said = [("assistant", exchange.text)] if exchange.text else []
        return {
            semconv.GEN_AI_OPERATION_NAME: semconv.OPERATION_CHAT,
            semconv.GEN_AI_PROVIDER_NAME: _STANDARD.get(provider, provider) or None,
            semconv.GEN_AI_REQUEST_MODEL: model,
            semconv.GEN_AI_RESPONSE_MODEL: answered,
            semconv.GEN_AI_FINISH_REASONS: (exchange.finish,) if exchange.finish else None,
            semconv.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens if usage else None,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: usage.completion_tokens if usage else None,
            semconv.EVALUATION_COST: cost,
            semconv.EVALUATION_CURRENCY: None if cost is None else self.prices.currency,
            semconv.ERROR_TYPE: outcome,
            semconv.HTTP_STATUS: None if error is None else status_of(error),
            semconv.GEN_AI_INPUT_MESSAGES: messages_json(prompt) if self.with_texts else None,
            semconv.GEN_AI_OUTPUT_MESSAGES: messages_json(said) if self.with_texts else None,
        }
