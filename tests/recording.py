"""A capture layer on its own: a real handler, recorder and exporter, and an intake that notes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import SpanContext, Tracer

from rag_eval_otel.capture.langchain import LangChainCapture
from rag_eval_otel.capture.record import RunRecorder
from rag_eval_otel.capture.runs import Run
from rag_eval_otel.capture.sample import extract
from rag_eval_otel.capture.spans import SpanWriter
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.capture.turn import Turn
from rag_eval_otel.config import ContentCapture, ErrorMode, Spans
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Passage, Sample, SkipReason


@dataclass(kw_only=True)
class NotingIntake:
    """Notes what it is handed; ``on_call`` is called first, with the name of the method."""

    accepts: bool = True
    on_call: Callable[[str], None] = lambda _: None
    expected: list[tuple[SpanContext, Turn]] = field(default_factory=list)
    submitted: list[tuple[SpanContext, Turn]] = field(default_factory=list)
    refusals: list[SkipReason] = field(default_factory=list)

    def withdraw(self, span: SpanContext, turn: Turn) -> None:
        """Forget the span that stood for a turn."""
        self.expected.remove((span, turn))

    def expect(self, span: SpanContext, turn: Turn, *, instead: Turn | None = None) -> bool:
        """Note the span that stands for a turn, where it accepts one."""
        self.on_call("expect")
        if instead is not None:
            self.withdraw(span, instead)
        if self.accepts:
            self.expected.append((span, turn))
        return self.accepts

    def submit(self, turn: Turn, span: SpanContext) -> None:
        """Note a turn without a span."""
        self.on_call("submit")
        self.submitted.append((span, turn))

    def skipped(self, reason: SkipReason) -> None:
        """Note why there is no turn."""
        self.on_call("skipped")
        self.refusals.append(reason)

    @property
    def extracted(self) -> list[Sample | SkipReason]:
        """What becomes of the turns."""
        return [extract(turn) for _, turn in (*self.expected, *self.submitted)]

    @property
    def samples(self) -> list[Sample]:
        """The samples of the turns."""
        return [found for found in self.extracted if isinstance(found, Sample)]

    @property
    def reasons(self) -> list[SkipReason]:
        """Why there is no turn, or no sample of one."""
        return [*self.refusals, *(f for f in self.extracted if not isinstance(f, Sample))]


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A handler that records into ``recorder``, which exports to ``exporter``."""

    intake: NotingIntake
    exporter: InMemorySpanExporter
    recorder: RunRecorder
    handler: LangChainCapture
    provider: TracerProvider
    tracer: Tracer
    errors: list[str]

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans exported so far."""
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        """Return the exported span called ``name``."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    @property
    def truths(self) -> list[tuple[str, tuple[str, ...], str]]:
        """The samples as question, contexts and answer, sorted."""
        return sorted(
            (s.question, tuple(p.text for p in s.contexts), s.answer) for s in self.intake.samples
        )


def capture(
    *,
    spans: Spans = "essential",
    content: ContentCapture = "off",
    mode: ErrorMode = "raise",
    intake: NotingIntake | None = None,
    sampler: Sampler = ALWAYS_ON,
    metadata_keys: Sequence[str] = (),
    **options: Any,
) -> Capture:
    """Put a capture layer together; ``options`` are the recorder's."""
    exporter, errors = InMemorySpanExporter(), list[str]()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    edge = Edge("callback", on_error=errors.append, mode=mode)
    noting = intake or NotingIntake()
    writer = SpanWriter(tracer=tracer, spans=spans, content=content, metadata_keys=metadata_keys)
    recorder = RunRecorder(writer, noting, edge=edge, **options)
    return Capture(
        intake=noting,
        exporter=exporter,
        recorder=recorder,
        handler=LangChainCapture(lambda: recorder, edge=edge),
        provider=provider,
        tracer=tracer,
        errors=errors,
    )


# --- runs without LangChain -----------------------------------------------------------------------

QUESTION, ANSWER, PAGE = "When was it founded?", "It was founded in 1987.", "Founded in 1987."


def begin(
    captured: Capture, kind: Kind, number: int, *, under: int | None = None, **texts: Any
) -> Run:
    """Start the run ``number`` under another; ``texts`` are set on it."""
    run = captured.recorder.start(
        kind,
        UUID(int=number),
        parent=None if under is None else UUID(int=under),
        name=f"{kind}{number}",
        metadata=texts.pop("metadata", {}),
    )
    assert run is not None
    for name, value in texts.items():
        setattr(run, name, value)
    return run


def finish(captured: Capture, *runs: Run) -> None:
    """End ``runs``, one after the other."""
    for run in runs:
        captured.recorder.end(run, time.time_ns())


def begin_turn(captured: Capture, number: int = 1) -> tuple[Run, Run, Run]:
    """Start a chain, let it retrieve, and start its model; give the runs, innermost first."""
    root = begin(captured, "chain", number, input=QUESTION)
    documents = (Passage(text=PAGE),)
    search = begin(
        captured, "retriever", number + 1, under=number, input=QUESTION, documents=documents
    )
    finish(captured, search)
    root.output = ANSWER
    shown = (("system", PAGE), ("human", QUESTION))
    write = begin(
        captured, "llm", number + 2, under=number, input=QUESTION, messages=shown, output=ANSWER
    )
    return write, search, root


def run_turn(captured: Capture, number: int = 1) -> tuple[Run, Run, Run]:
    """Run a whole turn."""
    write, search, root = begin_turn(captured, number)
    finish(captured, write, root)
    return write, search, root
