"""Spans in, scored spans out: an application with the pipeline attached, judges and embedders.

There is no network: spans of the real SDK are started and ended in any order, and exporters keep
them. `App.turn` writes a turn as OpenInference does, `App.record` as an application itself.
"""

import asyncio
import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pytest
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from rag_eval_otel import Handle, instrument
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.live.instrument import RagEvalSpanProcessor, pipeline_of
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.store import Store
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Replies

try:
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter
except ImportError:  # its name before OpenTelemetry 1.39
    from opentelemetry.sdk._logs.export import InMemoryLogExporter as InMemoryLogRecordExporter  # type: ignore[attr-defined,no-redef]

KIND = "openinference.span.kind"
STATUS = "rag.evaluation.status"
SCORED = ("scored", None)
"""Status and reason of a turn with all its scores, as `App.counted` has them."""

QUESTION, ANSWER = "When was Borealis founded?", "Borealis was founded in 1987."
CONTEXT = "History: Borealis was founded in 1987."
RECORDED: Mapping[str, Any] = {
    "rag.question": QUESTION,
    "rag.contexts": [CONTEXT],
    "rag.answer": ANSWER,
}
"""The attributes with which an application records a turn on its span."""

Source: TypeAlias = Literal["spans", "runs"]
SOURCES = pytest.mark.parametrize("source", get_args(Source))
"""The source of a turn: an ended span of the application, or LangChain runs."""


def good_answers(task: Task[Any]) -> object:
    sentences = enumerate(dict(task.inputs).get("sentences", ()), start=1)
    return {
        "ReverseQuestion": {"question": QUESTION, "noncommittal": 0},
        "Statements": {"statements": ["claim"]},
        "Verdicts": {"verdicts": [{"index": 1, "reason": "said", "verdict": 1}]},
        "SupportedSentences": {
            "verdicts": [{"index": i, "reason": "said", "verdict": 1} for i, _ in sentences]
        },
        "JudgedStatements": {"statements": [{"statement": "claim", "verdict": 1}]},
        "Rating": {"rating": 2, "reason": "backed"},
    }[task.reply.__name__]


def good_judge() -> FakeJudge:
    return FakeJudge(good_answers)


class OnesEmbedder:
    """Gives every text the same direction."""

    async def embed(self, texts: Sequence[str]) -> Any:
        return np.ones((len(texts), 3))


def usual_options(**more: Any) -> dict[str, Any]:
    """Return the options of a pipeline that is content with every answer."""
    return {"judge": good_judge(), "embedder": OnesEmbedder(), "raise_errors": True, **more}


class GatedJudge:
    """A content judge who answers once `open` was called; ``asked`` is set at the first request."""

    model = "gated"

    def __init__(self) -> None:
        self.asked: Future[None] = Future()
        self._gate: Future[None] = Future()
        self._judge = good_judge()

    def open(self) -> None:
        if not self._gate.done():
            self._gate.set_result(None)

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        if not self.asked.done():
            self.asked.set_result(None)
        await asyncio.wrap_future(self._gate)
        return await self._judge.reply(tasks)


class GatedExporter(InMemorySpanExporter):
    """An exporter that blocks from the time when `close` was called until `open` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self._gate = threading.Event()
        self._gate.set()

    def close(self) -> None:
        self._gate.clear()

    def open(self) -> None:
        self._gate.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self._gate.is_set():
            self.entered.set()
            self._gate.wait(60)
        return super().export(spans)


def points_of(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Collect metrics, and return the data points of each by its name."""
    data = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@dataclass(frozen=True, kw_only=True)
class App:
    """A traced application, its exported spans, and its counters."""

    provider: TracerProvider
    logger_provider: LoggerProvider
    tracer: Tracer
    handle: Handle
    exporter: Any
    events: InMemoryLogRecordExporter
    reader: InMemoryMetricReader

    @property
    def processor(self) -> RagEvalSpanProcessor:
        assert self.handle.processor is not None
        return self.handle.processor

    @property
    def store(self) -> Store:
        return self.pipeline.store

    def let_leave(self) -> None:
        store = self.store
        with store._changed:  # noqa: SLF001
            assert store._changed.wait_for(lambda: not store.count("leaving"), 60)  # noqa: SLF001

    @property
    def pipeline(self) -> Pipeline:
        return pipeline_of(self.handle)

    @staticmethod
    def below(parent: Span | None) -> Context:
        return Context() if parent is None else set_span_in_context(parent)

    def plain(self, name: str, parent: Span | None = None) -> Span:
        tracer = self.provider.get_tracer("app")
        return tracer.start_span(name, context=self.below(parent))

    def step(self, kind: str, parent: Span | None = None, **attributes: Any) -> Span:
        attributes = {KIND: kind, **attributes}
        return self.tracer.start_span(
            kind.lower(), context=self.below(parent), attributes=attributes
        )

    def chain(self, number: int = 1, parent: Span | None = None) -> Span:
        return self.step("CHAIN", parent, **answered(number))

    def retrieve(self, number: int, parent: Span | None) -> Span:
        span = self.step("RETRIEVER", parent, **retrieved(number))
        span.end()
        return span

    def generate(self, number: int, parent: Span | None) -> Span:
        span = self.step("LLM", parent, **generated(number))
        span.end()
        return span

    def within(
        self, name: str = "ask", attributes: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Span]:
        """Have a current span of the application itself."""
        tracer = self.provider.get_tracer("app")
        return tracer.start_as_current_span(name, attributes=attributes)

    def record(self, number: int = 1, **more: Any) -> Span:
        """Start and end a span with a turn that the application has recorded."""
        recorded = {
            "rag.question": asked(number),
            "rag.contexts": told(number),
            "rag.answer": said(number),
        }
        tracer = self.provider.get_tracer("app")
        span = tracer.start_span("turn", context=Context(), attributes={**recorded, **more})
        span.end()
        return span

    def turns(self, number: int, source: Source = "spans") -> None:
        """Make turns whose spans are called ``chain``, or ``invoke_workflow chain``."""
        for made in range(number):
            if source == "spans":
                self.turn(made)
            else:
                from runs import run_chain  # noqa: PLC0415  # some programs do without LangChain

                run_chain(self.handle.callback, "chain", f"{QUESTION} {made}")

    def turn(self, number: int = 1, parent: Span | None = None) -> Span:
        chain = self.chain(number, parent)
        self.retrieve(number, chain)
        self.generate(number, chain)
        chain.end()
        return chain

    def exported(self) -> list[ReadableSpan]:
        spans = self.exporter.get_finished_spans()
        return [span for span in spans if span.name != "evaluate turn"]

    def carriers(self) -> list[ReadableSpan]:
        """Return the spans for what came after the span of its turn had left."""
        return [span for span in self.exporter.get_finished_spans() if span.name == "evaluate turn"]

    def names(self) -> list[str]:
        return [span.name for span in self.exported()]

    def exported_texts(self) -> str:
        """Return all that was exported as one text: spans, log records and metrics."""
        logs = [data.log_record for data in self.events.get_finished_logs()]
        return str([*map(ReadableSpan.to_json, self.exported()), logs, points_of(self.reader)])

    def judged(self) -> list[Mapping[str, Any]]:
        """Return the attributes of the exported spans that have the status of a turn."""
        found = [span.attributes or {} for span in self.exported()]
        return [attributes for attributes in found if STATUS in attributes]

    def attributes_of(self, span: Span) -> Mapping[str, Any]:
        own = span.get_span_context().span_id
        (found,) = [one for one in self.exported() if one.context.span_id == own]
        return found.attributes or {}

    def status_of(self, span: Span) -> Any:
        return self.attributes_of(span).get(STATUS)

    def each_left_once(self) -> bool:
        return set(Counter(span.context.span_id for span in self.exported()).values()) <= {1}

    def statuses(self) -> Counter[Any]:
        return Counter((span.attributes or {}).get(STATUS) for span in self.exported())

    def counted(self) -> dict[tuple[Any, Any], int]:
        """Return how many turns the counter has, by status and reason."""
        counts = Counter[tuple[Any, Any]]()
        for point in self.points("rag.evaluation.turns"):
            counts[_key(point.attributes)] += point.value
        return dict(counts)

    def counted_by(self, name: str, attribute: str) -> dict[Any, int]:
        return {point.attributes[attribute]: int(point.value) for point in self.points(name)}

    def points(self, name: str) -> list[Any]:
        return points_of(self.reader).get(name, [])

    def score_events(self) -> list[Any]:
        records = (data.log_record for data in self.events.get_finished_logs())
        return [one for one in records if one.event_name == "gen_ai.evaluation.result"]

    def scored_spans(self) -> Counter[int]:
        """Return the ids of the spans with score events; a span counts once for each metric."""
        found = self.score_events()
        names = {(one.attributes or {})["gen_ai.evaluation.name"] for one in found}
        every = Counter(one.span_id or 0 for one in found)
        return Counter({span: count // len(names) for span, count in every.items()})


def collecting_size(store: Store) -> int:
    """Return the bytes of the spans and log records of incomplete traces in ``store``."""
    return store._bytes + store._logs.size  # noqa: SLF001


def remote(flags: int, context: Context | None = None) -> Context:
    caller = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(caller), context or Context())


def asked(number: int) -> str:
    return f"Who founded company number {number}?"


def told(number: int) -> list[str]:
    return [
        f"Company {number} was founded by Ada the {number}th.",
        f"Company {number} makes kites.",
    ]


def said(number: int) -> str:
    return f"Company number {number} was founded by Ada the {number}th."


def answered(number: int) -> dict[str, Any]:
    return {"input.value": asked(number), "output.value": said(number)}


def retrieved(number: int) -> dict[str, Any]:
    texts = told(number)
    documents = {f"retrieval.documents.{i}.document.content": t for i, t in enumerate(texts)}
    return {"input.value": asked(number), **documents}


def generated(number: int) -> dict[str, Any]:
    """Return the attributes of an LLM whose prompt has the retrieved texts."""
    return {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "\n\n".join([*told(number), asked(number)]),
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": said(number),
        "output.value": said(number),
    }


@contextmanager
def attached(
    *, provider: TracerProvider | None = None, exporter: SpanExporter | None = None, **options: Any
) -> Iterator[App]:
    """Attach the pipeline to ``provider``; everything is shut down at the end."""
    exporter = exporter or InMemorySpanExporter()
    events, reader = InMemoryLogRecordExporter(), InMemoryMetricReader()
    provider = provider or TracerProvider()
    is_local = isinstance(exporter, InMemorySpanExporter)
    provider.add_span_processor((SimpleSpanProcessor if is_local else BatchSpanProcessor)(exporter))
    loggers, meters = LoggerProvider(), MeterProvider([reader])
    loggers.add_log_record_processor(SimpleLogRecordProcessor(events))
    # A turn is dropped if its span would leave before its scores: a busy machine is slow.
    options = usual_options(**{"hold_seconds": 60, **options})
    handle = instrument(
        tracer_provider=provider, meter_provider=meters, logger_provider=loggers, **options
    )
    app = App(
        provider=provider,
        logger_provider=loggers,
        tracer=provider.get_tracer("openinference.instrumentation.fake"),
        handle=handle,
        exporter=exporter,
        events=events,
        reader=reader,
    )
    try:
        yield app
        handle.shutdown()
        assert handle.stats.pending == 0, handle.stats  # each found turn has one outcome
    finally:
        handle.shutdown()
        provider.shutdown()
        loggers.shutdown()
        meters.shutdown()


def _key(attributes: Mapping[str, Any] | None) -> tuple[Any, Any]:
    found = attributes or {}
    return found["status"], found.get("reason")


@dataclass(frozen=True)
class Row:
    """A test of the fault matrix: it records figures and asserts the invariants of all faults."""

    properties: list[tuple[str, object]]
    output: Callable[[], str]

    def measured(self, name: str, value: object) -> None:
        self.properties.append(("measured", json.dumps([name, str(value)])))

    def counted(self, app: App, name: str = "turns by outcome") -> dict[tuple[Any, Any], int]:
        """Record and return the turns by outcome."""
        counted = app.counted()
        self.measured(name, {" ".join(map(str, key)): n for key, n in counted.items()})
        return counted

    def check(
        self, app: App, *, turns: int, spans: int | None = None, secrets: Sequence[str] = ()
    ) -> None:
        """Assert the invariants after ``app`` has drained.

        - ``turns``: the number of turns that it has made (I2, the conservation law).
        - ``spans``: the number of spans that it has ended, each of which leaves exactly once.
        - ``secrets``: texts that no log line and no output may contain (I4).
        """
        assert sum(app.counted().values()) == turns, app.counted()
        stats = app.handle.stats
        assert (stats.captured, stats.pending, stats.held) == (turns, 0, 0)
        exported = app.exported()
        assert app.each_left_once(), "a span was exported twice"
        assert spans in {None, len(exported)}
        for found in (span.attributes or {} for span in exported):
            scores = [v for k, v in found.items() if re.match(r"rag\.evaluation\..*\.score$", k)]
            assert all(isinstance(one, float) and math.isfinite(one) for one in scores)
            assert not scores or found[STATUS] in {"scored", "partial"}  # I7
        output = self.output()
        assert not [secret for secret in secrets if secret in output]
