"""Score the rows of a dataset, and write each row to a file or send it over OTLP."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import openinference
from rag_eval_otel.config import ScoreEvents
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.attributes import EventSink, SpanScores
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.runtime.providers import Providers, exporters
from rag_eval_otel.tools.dataset import Run
from rag_eval_otel.tools.files import writing
from rag_eval_otel.tools.gate import GateCheck
from rag_eval_otel.tools.read import Dataset, check_needs
from rag_eval_otel.tools.rows import TEXTS, Row
from rag_eval_otel.tools.stats import Summary, Totals
from rag_eval_otel.types import Ending, SpanRef

_EVENTS = 1000  # events in one batch: half of the SDK's queue, which drops events if it is full


class TraceSender:
    """Sends each scored row of a dataset over OTLP, in batches: a span, metrics and log records."""

    def __init__(self, dataset: str, *, scores: SpanScores) -> None:
        self.failed = 0  # rows that an exporter did not accept
        self._dataset = dataset
        self._scores = scores
        self._exporters = list(exporters("traces"))
        if not self._exporters:
            raise ConfigError("OTEL_TRACES_EXPORTER is none, so there is nowhere to send traces to")
        # Metrics and spans have the same service name: dashboards show each score once.
        self._providers = Providers.exporting(
            traces=(), metrics=exporters("metrics"), logs=exporters("logs")
        )
        self._instruments = InstrumentSink(self._providers.meter_provider)
        self._events = EventSink(self._providers.logger_provider, explanations=scores.explanations)
        self._resource = Resource.create()
        self._ids = RandomIdGenerator()
        self._spans: list[ReadableSpan] = []
        self._waiting = 0

    async def send(self, row: Row) -> None:
        ref = SpanRef(trace_id=self._ids.generate_trace_id(), span_id=self._ids.generate_span_id())
        self._spans.append(self._span(row, ref))
        evaluation = replace(row.evaluation, span=ref)
        # Turns are not counted: `RagEvaluatorLost` would fire when the job has ended.
        self._instruments.record(evaluation)
        if self._scores.events != "span":
            self._events(evaluation)
        self._waiting += len(row.scores)
        if self._waiting >= _EVENTS:
            await self.flush()

    async def flush(self) -> None:
        """Send the spans and events that wait, and return when the exporters have taken them."""
        spans, self._spans, self._waiting = self._spans, [], 0

        def export() -> None:
            if spans:
                results = [exporter.export(spans) for exporter in self._exporters]
                self.failed += len(spans) * any(result.name != "SUCCESS" for result in results)
            self._providers.logger_provider.force_flush()

        await asyncio.to_thread(export)

    async def close(self) -> None:
        await self.flush()
        for exporter in self._exporters:
            await asyncio.to_thread(exporter.shutdown)
        await asyncio.to_thread(self._providers.shutdown)

    def _span(self, row: Row, ref: SpanRef) -> ReadableSpan:
        end = time.time_ns()
        scored = row.evaluation
        sampled = TraceFlags(TraceFlags.SAMPLED)
        span = ReadableSpan(
            name="evaluate row",
            context=SpanContext(ref.trace_id, ref.span_id, is_remote=False, trace_flags=sampled),
            resource=self._resource,
            attributes={
                openinference.SPAN_KIND: "EVALUATOR",
                semconv.DATASET_NAME: self._dataset,
                semconv.DATASET_ROW: row.index,
            },
            start_time=end - int(scored.duration * 1e9),
            end_time=end,
            instrumentation_scope=InstrumentationScope(
                semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
            ),
        )
        return self._scores.copy(span, Ending(scored.status, evaluation=scored))


async def export(
    dataset: Dataset,
    run: Run,
    *,
    output: Path | None = None,
    texts: Literal["off", "on"] = "off",
    otlp: Literal["off", "on"] = "off",
    explanations: bool = False,
    score_events: ScoreEvents = "log",
    check: GateCheck | None = None,
) -> tuple[Totals, int]:
    """Score each row of ``dataset`` by ``run``, and write it to ``output`` or send it.

    Each row is also added to ``check``, a gate on the run. Scored rows are not kept in memory.
    Return the summary of all rows, and the number of rows that could not be sent.
    """
    check_needs(run.measurement.metrics, dataset)
    async with AsyncExitStack() as stack:
        summary = Summary(run.names)
        write = None
        if output is not None:
            further = (*(TEXTS if texts == "on" else ()), *dataset.origin)
            write = stack.enter_context(writing(output, run.names, further=further))
        sender = None
        if otlp == "on":
            scores = SpanScores(explanations=explanations, events=score_events)
            sender = TraceSender(dataset.name, scores=scores)
            stack.push_async_callback(sender.close)
        async for row in await stack.enter_async_context(aclosing(run.rows(dataset))):
            summary.add(row.evaluation)
            if check is not None:
                check.add(row)
            if write is not None:
                write(row)
            if sender is not None:
                await sender.send(row)
        if sender is not None:
            await sender.flush()
        return summary.totals(stopped=run.stopped), sender.failed if sender else 0
