"""A capture layer on its own: a real handler, recorder and pipeline, and nothing that waits.

Jobs run in the thread that submits them, so that spans are there as soon as a root has ended.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, Generation, LLMResult
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import Span, SpanContext, Tracer
from opentelemetry.util.types import Attributes

from rag_eval_otel.capture.langchain import LangChainCapture
from rag_eval_otel.capture.runs import Run, RunRecorder, RunTree
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.config import Config, ExportContent, Spans
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live.instrument import RagEvalSpanProcessor
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.scorer import TurnJob, TurnScorer, build_measurement
from rag_eval_otel.runtime.threads import BackgroundEvaluator
from rag_eval_otel.types import Ending, Evaluation, Sample, SkipReason
from replay import InlineEvaluator


class NotingInstruments(InstrumentSink):
    """Notes the reasons of skipped turns, and internal errors."""

    def __init__(self) -> None:
        super().__init__(MeterProvider())
        self.reasons: list[SkipReason] = []
        self.errors: list[str] = []
        self.outcomes: Counter[tuple[str, str | None]] = Counter()

    def turn(
        self, outcome: Any, reason: Any = None, *, turns: int = 1, verdict: Any = None
    ) -> None:
        self.outcomes[outcome, reason] += turns
        if outcome == "skipped":
            self.reasons += [reason] * turns

    def internal_error(self, place: str) -> None:
        self.errors.append(place)


class NotingMeasurement(Measurement):
    """Scores nothing; notes the samples."""

    samples: list[Sample]

    async def of_prepared(self, sample: Sample, _cut: Mapping[str, int]) -> Evaluation:
        self.samples.append(sample)
        return Evaluation(scores=())


class NotingScorer(TurnScorer):
    """Notes turns, with the identity of the span that stands for each."""

    turns: list[tuple[SpanContext, Turn]]

    async def score(self, job: TurnJob) -> Ending:
        self.turns.append((job.span, job.turn))
        return await super().score(job)


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A handler that records into ``recorder``, whose spans ``exporter`` gets."""

    exporter: InMemorySpanExporter
    pipeline: Pipeline
    handler: LangChainCapture
    provider: TracerProvider
    tracer: Tracer
    samples: list[Sample]
    turns: list[tuple[SpanContext, Turn]]
    """The submitted turns, with the identity of their span."""
    reasons: list[SkipReason]
    """Why there is no turn, or no sample of one."""
    errors: list[str]
    """Where something of ours failed."""
    outcomes: Counter[tuple[str, str | None]]
    """The counted turns by outcome and reason."""
    told: dict[int, Any] = field(default_factory=dict)
    """The outputs with which runs made by hand will end."""

    @property
    def recorder(self) -> RunRecorder:
        return self.pipeline.recorder

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    @property
    def truths(self) -> list[tuple[str, tuple[str, ...], str]]:
        return sorted(
            (s.question, tuple(p.text for p in s.contexts), s.answer) for s in self.samples
        )

    @contextmanager
    def within(self, name: str, attributes: Attributes = None) -> Iterator[Span]:
        with self.tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span
        self.flush()

    def flush(self) -> None:
        self.recorder.flush()
        self.pipeline.submit_ended()


def capture(
    *,
    spans: Spans = "essential",
    content: ExportContent = "foreign",
    raise_errors: bool = True,
    on_intake: Callable[[str], None] = lambda _: None,
    sampler: Sampler = ALWAYS_ON,
    metadata_keys: Sequence[str] = (),
    config: Config | None = None,
    evaluator: BackgroundEvaluator | None = None,
    **options: Any,
) -> Capture:
    """Put a capture layer together; ``options`` are the recorder's."""
    exporter, instruments = InMemorySpanExporter(), NotingInstruments()
    provider = TracerProvider(sampler=sampler)
    config = config or Config(
        judge="lexical",
        spans=spans,
        export_content=content,
        raise_errors=raise_errors,
        metadata_keys=tuple(metadata_keys),
    )
    usual = build_measurement(config)
    measurement = NotingMeasurement(metrics=(), judge=usual.judge, embedder=usual.embedder)
    object.__setattr__(measurement, "samples", [])
    scorer = NotingScorer(
        config,
        instruments=instruments,
        measurement=measurement,
        evaluator=evaluator or InlineEvaluator(),
    )
    scorer.turns = []
    pipeline = Pipeline(config, provider=provider, instruments=instruments, scorer=scorer)
    pipeline.clock.is_inline = True

    def finished(tree: RunTree) -> None:
        on_intake("finished")
        pipeline.finished(tree)

    pipeline.recorder = RunRecorder(finished, partial(on_intake, "waiting"), **options)
    processor = RagEvalSpanProcessor.of_pipeline(SimpleSpanProcessor(exporter), pipeline)
    provider.add_span_processor(processor)
    return Capture(
        exporter=exporter,
        pipeline=pipeline,
        handler=LangChainCapture(lambda: pipeline.recorder, edge=pipeline.edge("callback")),
        provider=provider,
        tracer=provider.get_tracer("test"),
        samples=measurement.samples,
        turns=scorer.turns,
        reasons=instruments.reasons,
        errors=instruments.errors,
        outcomes=instruments.outcomes,
    )


QUESTION, ANSWER, PAGE = "When was it founded?", "It was founded in 1987.", "Founded in 1987."
SHOWN: Sequence[BaseMessage] = (SystemMessage(PAGE), HumanMessage(QUESTION))
FOUND: Sequence[Document] = (Document(PAGE),)


def begin(
    captured: Capture,
    kind: Kind,
    number: int,
    *,
    under: int | None = None,
    asked: Any = None,
    told: Any = None,
    metadata: dict[str, Any] | None = None,
) -> Run:
    """Send the event that the run ``number`` has started under another; it will end with ``told``.

    A model is ``asked`` a list of messages, or a prompt of text.
    """
    above = None if under is None else UUID(int=under)
    event: Any = {"run_id": UUID(int=number), "parent_run_id": above, "metadata": metadata}
    handler = captured.handler
    event["name"] = f"{kind}{number}"
    if kind == "llm" and isinstance(asked, Sequence) and not isinstance(asked, str):
        handler.on_chat_model_start(None, [list(asked)], **event)
    elif kind == "llm":
        handler.on_llm_start(None, [asked] if asked else [], **event)
    else:
        getattr(handler, f"on_{kind}_start")(None, asked, **event)
    captured.told[number] = told
    return captured.recorder.runs[number]


def finish(captured: Capture, *runs: Run) -> None:
    """Send the events that ``runs`` have ended, one after the other."""
    for run in runs:
        told: Any = captured.told[run.id]
        ended: Any = {"run_id": UUID(int=run.id)}
        if run.parent is not None:
            ended["parent_run_id"] = UUID(int=run.parent)
        if run.kind == "llm":
            told = told if isinstance(told, LLMResult) else generated(told)
        elif run.kind == "retriever":
            told = told or []
        getattr(captured.handler, f"on_{run.kind}_end")(told, **ended)


def fail(captured: Capture, run: Run, error: BaseException) -> None:
    getattr(captured.handler, f"on_{run.kind}_error")(error, run_id=UUID(int=run.id))


def generated(told: str | AIMessage | None) -> LLMResult:
    if told is None:
        return LLMResult(generations=[])
    if isinstance(told, str):
        return LLMResult(generations=[[Generation(text=told)]])
    return LLMResult(generations=[[ChatGeneration(message=told)]])


def begin_turn(captured: Capture, number: int = 1) -> tuple[Run, Run, Run]:
    """Start a chain, let it retrieve, and start its model; give the runs, innermost first."""
    root = begin(captured, "chain", number, asked=QUESTION, told=ANSWER)
    search = begin(
        captured, "retriever", number + 1, under=number, asked=QUESTION, told=[Document(PAGE)]
    )
    finish(captured, search)
    answer = AIMessage(ANSWER)
    write = begin(captured, "llm", number + 2, under=number, asked=SHOWN, told=answer)
    return write, search, root


def run_turn(captured: Capture, number: int = 1) -> tuple[Run, Run, Run]:
    write, search, root = begin_turn(captured, number)
    finish(captured, write, root)
    return write, search, root


def said(text: str = ANSWER, **options: Any) -> LLMResult:
    return generated(AIMessage(text, **options))


class Events:
    """The events of one turn, sent by hand to a handler."""

    def __init__(self, captured: Capture) -> None:
        self.captured = captured
        self.handler = captured.handler
        self.root, self.search, self.call = uuid4(), uuid4(), uuid4()

    def start(self, inputs: object = QUESTION) -> None:
        self.handler.on_chain_start(None, inputs, run_id=self.root)

    def retrieve(self, documents: Any = FOUND, query: Any = QUESTION) -> None:
        self.look_up(query)
        self.find(documents)

    def look_up(self, query: Any = QUESTION) -> None:
        ids = {"run_id": self.search, "parent_run_id": self.root}
        self.handler.on_retriever_start(None, query, **ids)

    def find(self, documents: Any) -> None:
        self.handler.on_retriever_end(documents, run_id=self.search, parent_run_id=self.root)

    def ask(self, messages: Any = (SHOWN,)) -> None:
        ids = {"run_id": self.call, "parent_run_id": self.root}
        self.handler.on_chat_model_start(None, messages, **ids)

    def answer(self, response: Any = None) -> None:
        ids = {"run_id": self.call, "parent_run_id": self.root}
        self.handler.on_llm_end(response or said(), **ids)

    def end(self, outputs: object = ANSWER, **event: Any) -> Capture:
        self.handler.on_chain_end(outputs, run_id=self.root, **event)
        return self.captured

    def turn(self, *, inputs: Any = QUESTION, outputs: Any = ANSWER) -> Capture:
        self.start(inputs)
        self.retrieve()
        self.ask()
        self.answer()
        return self.end(outputs)

    def run(self, run_id: UUID) -> Run:
        return self.captured.recorder.runs[run_id.int]


class Spiteful:
    """A value that lets nobody look at it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Spiteful
        raise RuntimeError(name)
