"""A RAG app that another instrumentation traces, with our callback and our scores.

The app and our judge call different scripted OpenAI servers, so ports distinguish their calls.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from apps import company
from apps.parts import rag
from e2e.watched import SpanCount, instrumented
from openai_server import ScriptedOpenAI
from otlp_receiver import OtlpReceiver, ReceivedSpan
from rag_eval_otel import OpenAIEmbedder, OpenAIJudge, instrument
from rag_eval_otel.runtime.providers import Providers
from support import good_parts

langchain_openai = pytest.importorskip("langchain_openai")
traced_http = pytest.importorskip("opentelemetry.instrumentation.httpx")
pytestmark = pytest.mark.filterwarnings(  # a warning of OpenLLMetry
    "ignore:Support for class-based `config` is deprecated"
)

METRICS = ("answer_relevancy", "context_relevance", "faithfulness", "response_groundedness")
APP_MODEL, JUDGE_MODEL = "app-model", "judge-model"
TURNS = 20
PATIENCE = 60.0
PROTOCOLS = ("http", "grpc")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The received telemetry of 20 turns, and the expected one."""

    receiver: OtlpReceiver
    started: SpanCount
    app: ScriptedOpenAI
    judge: ScriptedOpenAI

    @property
    def turns(self) -> list[ReceivedSpan]:
        status = "rag.evaluation.status"
        spans = self.receiver.spans()
        return [s for s in spans if s.attributes.get(status) not in {None, "skipped"}]

    def of_scope(self, part: str) -> list[ReceivedSpan]:
        return [span for span in self.receiver.spans() if part in span.scope]

    def calls_to(self, server: ScriptedOpenAI) -> list[ReceivedSpan]:
        spans = self.of_scope("instrumentation.httpx")
        return [span for span in spans if server.base_url in _texts(span)]


@dataclass(frozen=True)
class Way:
    """Instrumentations by module and class, and scopes with one span for each call of the app."""

    instrumentors: tuple[str, ...]
    scopes: tuple[str, ...]
    call: tuple[str, str]  # an attribute of these spans


OTEL, OPENINFERENCE = "opentelemetry.instrumentation", "openinference.instrumentation"
WAYS = {
    "openinference": Way(
        (
            f"{OPENINFERENCE}.langchain.LangChainInstrumentor",
            f"{OPENINFERENCE}.openai.OpenAIInstrumentor",
        ),
        (f"{OPENINFERENCE}.langchain", f"{OPENINFERENCE}.openai"),
        ("openinference.span.kind", "LLM"),
    ),
    "traceloop": Way(  # LangChain's suppresses OpenAI's
        (f"{OTEL}.langchain.LangchainInstrumentor", f"{OTEL}.openai.OpenAIInstrumentor"),
        (f"{OTEL}.langchain",),
        ("gen_ai.request.model", APP_MODEL),
    ),
    "openai_v2": Way(  # ignores suppression
        (f"{OTEL}.openai_v2.OpenAIInstrumentor",),
        (f"{OTEL}.openai_v2",),
        ("gen_ai.request.model", APP_MODEL),
    ),
}


@pytest.fixture(scope="module", params=WAYS)
def runs(request: pytest.FixtureRequest) -> dict[str, Seen]:
    """Trace an app with a way, attach to its provider, run 20 turns, and wait."""
    names = [name.rpartition(".") for name in WAYS[request.param].instrumentors]
    instrumentors = [getattr(pytest.importorskip(module), kind)() for module, _, kind in names]
    with ExitStack() as stack:
        app = stack.enter_context(ScriptedOpenAI(answer))
        judge = stack.enter_context(ScriptedOpenAI(good_parts, lambda _: [1.0, 0.0]))
        started = SpanCount()
        seen = {
            protocol: Seen(
                receiver=stack.enter_context(OtlpReceiver()), started=started, app=app, judge=judge
            )
            for protocol in PROTOCOLS
        }
        bases = [one.receiver.http_endpoint for one in seen.values()]
        providers = Providers.exporting(
            traces=[],
            metrics=[OTLPMetricExporter(endpoint=f"{base}/v1/metrics") for base in bases],
            logs=[OTLPLogExporter(endpoint=f"{base}/v1/logs") for base in bases],
        )
        stack.callback(providers.shutdown)
        provider = providers.tracer_provider
        provider.add_span_processor(started)
        for exporter in (
            HttpExporter(endpoint=f"{seen['http'].receiver.http_endpoint}/v1/traces"),
            GrpcExporter(endpoint=seen["grpc"].receiver.grpc_endpoint, insecure=True),
        ):
            provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=100))
        truths = [rag().invoke(question) for question in company.QUESTIONS]
        http = [traced_http.HTTPXClientInstrumentor()]
        if hasattr(traced_http, "HTTPX2ClientInstrumentor"):
            http.append(traced_http.HTTPX2ClientInstrumentor())
        options = {"tracer_provider": provider, "skip_dep_check": True}
        stack.enter_context(instrumented(*instrumentors, *http, **options))
        client = {"base_url": app.base_url, "api_key": "app", "disable_streaming": True}
        chain = rag(llm=langchain_openai.ChatOpenAI(model=APP_MODEL, **client))
        tracer = provider.get_tracer("app")
        in_flight = tracer.start_span("in flight")
        stream = chain.stream(company.REPAIRS)
        next(stream)
        at_judge = {"base_url": judge.base_url, "api_key": "judge"}
        handle = instrument(
            tracer_provider=provider,
            meter_provider=providers.meter_provider,
            logger_provider=providers.logger_provider,
            judge=OpenAIJudge(JUDGE_MODEL, **at_judge),
            embedder=OpenAIEmbedder("judge-embeddings", **at_judge),
            hold_seconds=PATIENCE,
        )
        list(stream)
        in_flight.end()
        asked, config = company.QUESTIONS, {"callbacks": [handle.callback]}

        async def gather() -> list[str]:
            return await asyncio.gather(*(chain.ainvoke(question, config) for question in asked))

        for ask in (
            lambda: [chain.invoke(question, config) for question in asked],
            lambda: asyncio.run(gather()),
            lambda: chain.batch(list(asked), config),
            lambda: ["".join(chain.stream(question, config)) for question in asked],
        ):
            with tracer.start_as_current_span("request"):
                assert ask() == truths
        for one in seen.values():
            one.receiver.wait_for(lambda _, one=one: len(one.turns) >= TURNS, PATIENCE)
    return seen


def answer(body: Mapping[str, Any]) -> str:
    """Answer the app's request from the pages in its prompt."""
    system, user = (str(message["content"]) for message in body["messages"])
    return company.answer(user, system)


def _texts(span: ReceivedSpan) -> str:
    return " ".join(str(value) for value in span.attributes.values())


def _events(seen: Seen) -> list[Any]:
    logs = seen.receiver.logs()
    scores = (log for log in logs if log.event_name == "gen_ai.evaluation.result")
    return [log for log in scores if log.attributes["gen_ai.evaluation.name"] in METRICS]


@pytest.fixture(params=PROTOCOLS)
def seen(request: pytest.FixtureRequest, runs: dict[str, Seen]) -> Seen:
    return runs[request.param]


def test_turns_are_scored_once(seen: Seen) -> None:
    """With all scores, by our judge, and an event for each."""
    assert len(seen.turns) == TURNS
    assert Counter(span.attributes["rag.evaluation.status"] for span in seen.turns) == {
        "scored": TURNS
    }
    for span in seen.turns:
        scores = [span.attributes[f"rag.evaluation.{name}.score"] for name in METRICS]
        assert all(isinstance(score, float) for score in scores)
        assert span.attributes["rag.evaluation.judge"].startswith(JUDGE_MODEL)
    events = Counter((e.span_id, e.attributes["gen_ai.evaluation.name"]) for e in _events(seen))
    assert events == {(span.span_id, name): 1 for span in seen.turns for name in METRICS}


def test_no_span_is_lost_or_doubled(seen: Seen) -> None:
    """That which was open during the attachment included."""
    arrived = Counter((span.trace_id, span.span_id) for span in seen.receiver.spans())
    assert arrived == Counter(seen.started.by_app)
    assert [span.name for span in seen.receiver.spans()].count("in flight") == 1


def test_the_judge_is_not_traced(seen: Seen) -> None:
    """Neither by our spans nor by those of its client."""
    assert len(seen.judge.requests) >= len(company.QUESTIONS)  # equal turns share requests
    assert seen.started.by_judge == []
    assert len(seen.calls_to(seen.app)) == len(seen.app.requests)
    assert seen.calls_to(seen.judge) == []
    ours = "rag.evaluation."
    for span in seen.receiver.spans():
        foreign = [str(v) for k, v in span.attributes.items() if not k.startswith(ours)]
        assert JUDGE_MODEL not in " ".join(foreign), span.name


def test_spans_of_the_instrumentation_arrive(seen: Seen, request: pytest.FixtureRequest) -> None:
    """One in each of its scopes for each request to the app's model."""
    way = WAYS[request.node.callspec.params["runs"]]
    name, value = way.call
    for scope in way.scopes:
        calls = [span for span in seen.of_scope(scope) if span.attributes.get(name) == value]
        assert len(calls) == len(seen.app.requests)
