"""An app that another instrumentation traces, with our processor on its provider.

Our callback handler is not used, so turns are read from foreign spans only. Each scored span
carries its sample, so that tests can compare it with the truth.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Condition, current_thread
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from apps import company
from apps.parts import handbook, join
from conversations import TOPICS, Ask, alone, turns_of
from corpus.kit import Truth
from live import OnesEmbedder, good_judge
from otlp_receiver import OtlpReceiver, ReceivedSpan
from rag_eval_otel import Handle, Sample, Score, instrument
from rag_eval_otel.judge.tasks import AskLike, Task
from rag_eval_otel.metrics import Faithfulness
from rag_eval_otel.runtime.sdk import Providers
from rag_eval_otel.types import EmbedFn, Replies

STATUS = "rag.evaluation.status"
SCORE = "rag.evaluation.faithfulness.score"
TOLD = "rag.evaluation.told.explanation"
PATIENCE = 60.0


class SpanCount(SpanProcessor):
    """Keeps the spans that start, by the app or by the judge on our thread, and those that end.

    Behind our processor, those that end are those that it has passed on.
    """

    def __init__(self) -> None:
        self.by_app: list[tuple[int, int]] = []
        self.by_judge: list[str] = []
        self.passed_on: list[tuple[int, int]] = []
        self._changed = Condition()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        context, scope = span.get_span_context(), span.instrumentation_scope
        is_own = scope is not None and scope.name == "rag_eval_otel"
        if current_thread().name.startswith("rag-eval-otel") and not is_own:
            self.by_judge.append(span.name)
        else:
            self.by_app.append((context.trace_id, context.span_id))

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        with self._changed:
            self.passed_on.append((span.context.trace_id, span.context.span_id))
            self._changed.notify_all()

    def waiting(self) -> list[tuple[int, int]]:
        return list((Counter(self.by_app) - Counter(self.passed_on)).elements())

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(predicate, PATIENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A metric whose explanation is its sample."""

    name: str = "told"
    needs: frozenset[str] = frozenset()
    asks: tuple[Any, ...] = ()

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        del ask, embed
        contexts = [passage.text for passage in sample.contexts]
        messages = [tuple(message) for message in sample.history]
        parts = [sample.question, contexts, sample.answer, messages, sample.query]
        told = json.dumps(parts, ensure_ascii=False)
        return Score(name=self.name, value=1.0, explanation=told)


class StoppableJudge:
    """A judge with constant verdicts that does not answer while it is stopped."""

    model = "stoppable"

    def __init__(self) -> None:
        self._judge = good_judge()
        self._open: Future[None] = Future()
        self._open.set_result(None)

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        await asyncio.wrap_future(self._open)
        return await self._judge.reply(tasks)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._open = Future()
        try:
            yield
        finally:
            self._open.set_result(None)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The received spans and counts of one use of the app."""

    spans: list[ReceivedSpan]
    outcomes: Counter[tuple[str, str | None]]

    @property
    def truths(self) -> Counter[Truth]:
        return Counter(truth_on(span) for span in self.spans if TOLD in span.attributes)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """An instrumented provider, and the spans that have arrived from it."""

    handle: Handle
    providers: Providers
    receiver: OtlpReceiver
    judge: StoppableJudge
    count: SpanCount = field(default_factory=SpanCount)

    @property
    def provider(self) -> TracerProvider:
        return self.providers.tracer_provider

    def run(self, use: Callable[[], object]) -> Run:
        spans, outcomes = len(self.receiver.spans()), self._outcomes()
        copy_context().run(use)
        self.handle.flush(PATIENCE)
        return Run(spans=self.receiver.spans()[spans:], outcomes=self._outcomes() - outcomes)

    def _outcomes(self) -> Counter[tuple[str, str | None]]:
        self.providers.meter_provider.force_flush()
        points = (p for p in self.receiver.metrics() if p.name == "rag.evaluation.turns")
        newest = {frozenset(point.attributes.items()): point for point in points}
        counts = Counter[tuple[str, str | None]]()
        for point in newest.values():
            of = (str(point.attributes["status"]), point.attributes.get("reason"))
            counts[of] += int(point.value or 0)
        return counts


def _truth(question: str) -> Truth:
    pages = handbook().invoke(question)
    answer = company.answer(question, join(pages))
    contexts = tuple(page.page_content for page in pages)
    return Truth(question=question, contexts=contexts, answer=answer)


QUESTIONS = (company.FOUNDED, company.SPARS, company.TOWING, company.SAILMAKER)
"""Of those no two pages come second, which every vector store would order in its own way."""
TRUTHS = {question: _truth(question) for question in QUESTIONS}


def truth_on(span: ReceivedSpan) -> Truth:
    assert span.attributes[STATUS] == "scored"
    assert isinstance(span.attributes[SCORE], float)
    question, contexts, answer, *_ = json.loads(span.attributes[TOLD])
    return Truth(question=question, contexts=tuple(contexts), answer=answer)


def assert_conversed(
    watch: Watched, ask: Ask, *, is_rewritten: bool = False, has_history: bool = True
) -> None:
    """Assert that all turns of the conversations are scored, with the messages before each."""
    turns: dict[str, tuple[str, list[list[str]]]] = {}

    def use() -> None:
        for question, answer, history in turns_of(ask):
            turns[question] = (answer, [list(message) for message in history if has_history])

    run = watch.run(use)
    assert run.outcomes == {("scored", None): 8}
    told = [json.loads(span.attributes[TOLD]) for span in run.spans if TOLD in span.attributes]
    assert turns == {
        question: (answer.strip(), history) for question, _, answer, history, _ in told
    }
    for topic, asked in TOPICS.items():
        queries = {query for question, *_, query in told if question in asked} - {None}
        rewritten = {alone(topic, one) for one in asked} if is_rewritten else set()
        assert rewritten >= queries >= rewritten - {alone(topic, asked[0])}


@contextmanager
def instrumented(*instrumentors: Any, **options: Any) -> Iterator[None]:
    for one in instrumentors:
        one.instrument(**options)
    try:
        yield
    finally:
        for one in reversed(instrumentors):
            one.uninstrument()


@contextmanager
def watched() -> Iterator[Watched]:
    judge = StoppableJudge()
    with OtlpReceiver() as receiver:
        base = receiver.http_endpoint
        providers = Providers.exporting(
            traces=[OTLPSpanExporter(endpoint=f"{base}/v1/traces")],
            metrics=[OTLPMetricExporter(endpoint=f"{base}/v1/metrics")],
            logs=[],
        )
        handle = instrument(
            tracer_provider=providers.tracer_provider,
            meter_provider=providers.meter_provider,
            logger_provider=providers.logger_provider,
            judge=judge,
            embedder=OnesEmbedder(),
            metrics=(Told(), Faithfulness()),
            explanations=True,
            score_attributes="rag",
            hold_seconds=PATIENCE,
            raise_errors=True,
        )
        app = Watched(handle=handle, providers=providers, receiver=receiver, judge=judge)
        providers.tracer_provider.add_span_processor(app.count)
        try:
            yield app
        finally:
            providers.shutdown()
