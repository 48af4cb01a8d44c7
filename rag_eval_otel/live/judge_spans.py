"""Make a span of each request to a judge, below the evaluated span (option ``judge_spans``)."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context

from rag_eval_otel import semconv
from rag_eval_otel.export.backends.annotation import exportable_attributes
from rag_eval_otel.judge.endpoint import Attempt, status_of
from rag_eval_otel.judge.usage import Meter
from rag_eval_otel.live.langchain_spans import PROVIDERS, messages_json
from rag_eval_otel.prices import Prices
from rag_eval_otel.types import Replies


def write_judge_span(
    parent: trace.SpanContext,
    attempt: Attempt,
    meter: Meter,
    *,
    tracer: trace.Tracer,
    prices: Prices,
    shows: bool,
) -> None:
    """Export a span of ``attempt`` below the turn's span ``parent``; ``shows``: with its texts."""
    notes, outcome, error = meter.notes, attempt.outcome, attempt.error
    provider, finish, text = notes.get("provider"), notes.get("finish"), notes.get("text")
    reply = attempt.reply if isinstance(attempt.reply, Replies) else Replies(parts=(), model="")
    costs = [prices.cost(name, reply.usage) for name in (reply.model, meter.model)]
    cost = next((cost for cost in costs if cost is not None), None) if reply.usage.tokens else None
    messages = notes.get("messages", ()) if shows else ()
    asked = [(each["role"], each["content"]) for each in messages]
    said = [("assistant", str(text))] if shows and text else []
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_PROVIDER_NAME: PROVIDERS.get(str(provider), (provider,))[0],
        semconv.GEN_AI_REQUEST_MODEL: meter.model,
        semconv.GEN_AI_RESPONSE_MODEL: reply.model or None,
        semconv.GEN_AI_FINISH_REASONS: (finish,) if finish else None,
        semconv.GEN_AI_USAGE_INPUT_TOKENS: reply.usage.prompt_tokens or None,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: reply.usage.completion_tokens or None,
        semconv.EVALUATION_COST: cost,
        semconv.EVALUATION_CURRENCY: None if cost is None else prices.currency,
        semconv.ERROR_TYPE: None if outcome == "ok" else outcome,
        semconv.HTTP_STATUS: None if error is None else status_of(error),
        semconv.GEN_AI_INPUT_MESSAGES: messages_json(asked),
        semconv.GEN_AI_OUTPUT_MESSAGES: messages_json(said),
    }
    context = trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())
    name, kind = f"chat {meter.model}", trace.SpanKind.CLIENT
    span = tracer.start_span(name, context=context, kind=kind, start_time=attempt.sent)
    span.set_attributes(exportable_attributes(attributes))
    if outcome != "ok":
        span.set_status(trace.StatusCode.ERROR, outcome)
    span.end()
