"""One trace per row, with its scores as on live traces, over OTLP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from rag_eval_otel import semconv
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results.rows import Row
from rag_eval_otel.runtime.providers import Providers, exporters
from rag_eval_otel.sinks.attributes import score_attributes
from rag_eval_otel.sinks.events import EventSink
from rag_eval_otel.types import Ending, SpanRef

_EVENTS = 1000  # sent at once: half of what waits in the SDK's queue before it drops
_SPAN = "evaluate row"


class TraceSender:
    """Sends rows in batches, and waits for each batch: nothing is dropped for want of room.

    ``failed`` counts the rows whose trace an exporter refused.
    """

    def __init__(
        self,
        dataset: str,
        *,
        traces: Sequence[Any],
        providers: Providers,
        explanations: Literal["off", "on"] = "off",
    ) -> None:
        """Send through the span exporters ``traces``, and events through ``providers``."""
        self.failed = 0
        self._dataset = dataset
        self._exporters = traces
        self._providers = providers
        self._explanations: Literal["off", "on"] = explanations
        self._events = EventSink(providers.logger_provider, explanations=explanations)
        self._resource = Resource.create()
        self._ids = RandomIdGenerator()
        self._spans: list[ReadableSpan] = []
        self._waiting = 0

    async def send(self, row: Row) -> None:
        """Take the trace of ``row``, and send what is waiting when it is enough."""
        context = self._context()
        self._spans.append(self._span(row, context))
        ref = SpanRef(trace_id=context.trace_id, span_id=context.span_id)
        self._events.emit(replace(row.evaluation, span=ref))
        self._waiting += len(row.scores)
        if self._waiting >= _EVENTS:
            await self.flush()

    async def flush(self) -> None:
        """Send what is waiting; not on the event loop, which has judges to talk to."""
        spans, self._spans, self._waiting = self._spans, [], 0
        await asyncio.to_thread(self._export, spans)

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        if spans:
            results = [exporter.export(spans) for exporter in self._exporters]
            self.failed += len(spans) * any(result.name != "SUCCESS" for result in results)
        self._providers.logger_provider.force_flush()

    def close(self) -> None:
        """Let the exporters go."""
        for exporter in self._exporters:
            exporter.shutdown()
        self._providers.shutdown()

    def _context(self) -> SpanContext:
        return SpanContext(
            self._ids.generate_trace_id(),
            self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )

    def _span(self, row: Row, context: SpanContext) -> ReadableSpan:
        end = time.time_ns()
        scored = row.evaluation
        return ReadableSpan(
            name=_SPAN,
            context=context,
            resource=self._resource,
            attributes={
                semconv.DATASET_NAME: self._dataset,
                semconv.DATASET_ROW: row.index,
                **score_attributes(
                    Ending(scored.status, evaluation=scored), explanations=self._explanations
                ),
            },
            start_time=end - int(scored.duration * 1e9),
            end_time=end,
            instrumentation_scope=InstrumentationScope(
                semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
            ),
        )


@asynccontextmanager
async def sending(
    dataset: str, *, explanations: Literal["off", "on"] = "off"
) -> AsyncIterator[TraceSender]:
    """Give a sender to where the ``OTEL_*`` variables say; all is sent once the context has ended.

    Raises `ConfigError` where they name no exporter of traces.
    """
    traces = list(exporters("traces"))
    if not traces:
        msg = "OTEL_TRACES_EXPORTER is none, so there is nowhere to send traces to"
        raise ConfigError(msg)
    providers = Providers.exporting(traces=(), metrics=(), logs=exporters("logs"))
    sender = TraceSender(dataset, traces=traces, providers=providers, explanations=explanations)
    try:
        yield sender
    finally:
        await sender.flush()
        await asyncio.to_thread(sender.close)
