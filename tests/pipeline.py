"""A whole pipeline in a few lines: a provider, a receiver, and turns without LangChain."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.trace import Span, Tracer

from otlp_receiver import OtlpReceiver, ReceivedSpan
from rag_eval_otel import Handle, Passage, instrument
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turns import Turn, find_turns
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.runtime.providers import Providers
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Replies

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


def turn(
    question: str = QUESTION, contexts: Sequence[str] = (CONTEXT,), answer: str = ANSWER
) -> Turn:
    """Return the turn of a chain that retrieved ``contexts`` and then asked a model."""
    documents = tuple(Passage(text=text) for text in contexts)
    prompt = "\n".join((*contexts, question))
    steps = (
        Step(
            id=1,
            parent=None,
            kind="chain",
            name="rag",
            start=1,
            end=9,
            input=question,
            output=answer,
        ),
        Step(
            id=2,
            parent=1,
            kind="retriever",
            name="r",
            start=2,
            end=3,
            input=question,
            documents=documents,
        ),
        Step(
            id=3,
            parent=1,
            kind="llm",
            name="m",
            start=4,
            end=5,
            input=prompt,
            output=answer,
            prompt=(prompt,),
        ),
    )
    (found,) = find_turns(steps)
    return found


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


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A provider with the pipeline attached, exporting to ``receiver``."""

    providers: Providers
    handle: Handle
    receiver: OtlpReceiver
    tracer: Tracer
    source: Source = "spans"
    numbers: Iterator[int] = field(default_factory=count)
    stopped: list[bool] = field(default_factory=list)

    def stop(self) -> None:
        if not self.stopped:
            self.stopped.append(True)
            self.providers.shutdown()

    def start_turn(self, name: str = "turn", **options: Any) -> Span:
        given = dict(options.pop("attributes", {}))
        recorded = {key: value for key, value in RECORDED.items() if key not in given}
        return self.tracer.start_span(name, attributes={**given, **recorded}, **options)

    def run_turns(self, number: int) -> list[str]:
        names = [f"turn {next(self.numbers)}" for _ in range(number)]
        if self.source == "runs":
            from runs import run_chain  # noqa: PLC0415  # some programs do without LangChain

            for name in names:
                run_chain(self.handle.callback, name)
            return [f"invoke_workflow {name}" for name in names]
        for span in [self.start_turn(name) for name in names]:
            span.end()
        return names

    def turns_in(self, spans: Iterable[ReceivedSpan]) -> list[ReceivedSpan]:
        return [span for span in spans if span.name.rpartition(" ")[0].endswith("turn")]

    def arrived(self, names: Iterable[str], *, wait: bool = False) -> list[ReceivedSpan]:
        expected = Counter(names)
        spans = self.receiver.spans()
        if wait:
            each = 3 if self.source == "runs" else 1
            spans = self.receiver.wait_for_spans(each * expected.total())
        turns = self.turns_in(spans)
        assert Counter(span.name for span in turns) == expected
        assert len({span.span_id for span in spans}) == len(spans)
        if self.source == "runs":
            inner = Counter(span.name for span in spans if span not in turns)
            assert inner == {"retrieval": len(turns), "chat": len(turns)}
        return turns


def statuses(spans: Iterable[ReceivedSpan]) -> Counter[Any]:
    return Counter(span.attributes.get("rag.evaluation.status") for span in spans)


@contextmanager
def running(
    *,
    protocol: str = "http",
    receiver: OtlpReceiver | None = None,
    source: Source = "spans",
    **options: Any,
) -> Iterator[Pipeline]:
    """Run a pipeline with real exporters; the providers are shut down at the end.

    `Pipeline.run_turns` makes spans of the application, or LangChain runs.
    """
    # A turn is dropped if its span would leave before its scores: a busy machine is slow.
    usual = {"judge": good_judge(), "embedder": OnesEmbedder(), "hold_seconds": 60}
    options = {**usual, "raise_errors": True, **options}
    with receiver or OtlpReceiver() as target:
        exporter: Any = HttpExporter(endpoint=f"{target.http_endpoint}/v1/traces", timeout=2)
        if protocol == "grpc":
            exporter = GrpcExporter(endpoint=target.grpc_endpoint, insecure=True, timeout=2)
        providers = Providers.exporting(
            traces=[exporter],
            metrics=[OTLPMetricExporter(endpoint=f"{target.http_endpoint}/v1/metrics")],
            logs=[OTLPLogExporter(endpoint=f"{target.http_endpoint}/v1/logs")],
        )
        handle = instrument(
            tracer_provider=providers.tracer_provider,
            meter_provider=providers.meter_provider,
            logger_provider=providers.logger_provider,
            **options,
        )
        tracer = providers.tracer_provider.get_tracer("app")
        app = Pipeline(
            providers=providers, handle=handle, receiver=target, tracer=tracer, source=source
        )
        try:
            yield app
        finally:
            app.stop()


def turns_counted(receiver: OtlpReceiver) -> dict[tuple[str, str | None], int]:
    """Return the newest value of ``rag.evaluation.turns`` by status and reason."""
    return {
        (str(p.attributes["status"]), p.attributes.get("reason")): int(p.value or 0)
        for p in receiver.metrics()
        if p.name == "rag.evaluation.turns"
    }
