"""A RAG app that another instrumentation traces, with our callback and our scores.

The app and our judge call different scripted OpenAI servers, so ports distinguish their calls.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from apps import company
from apps.parts import rag
from e2e.watched import PATIENCE, STATUS, SpanCount, instrumented
from openai_server import ScriptedOpenAI
from otlp_receiver import OtlpReceiver
from rag_eval_otel import OpenAIEmbedder, OpenAIJudge, instrument
from support import good_parts

langchain_openai = pytest.importorskip("langchain_openai")
traced_http = pytest.importorskip("opentelemetry.instrumentation.httpx")
pytestmark = pytest.mark.filterwarnings(  # a warning of OpenLLMetry
    "ignore:Support for class-based `config` is deprecated"
)

APP_MODEL, JUDGE_MODEL = "app-model", "judge-model"
OTEL, OPENINFERENCE = "opentelemetry.instrumentation", "openinference.instrumentation"
WAYS = {  # instrumentations of LangChain, and of the client of OpenAI's API
    "openinference": ("langchain.LangChainInstrumentor", "openai.OpenAIInstrumentor"),
    "traceloop": ("langchain.LangchainInstrumentor", "openai.OpenAIInstrumentor"),
    "openai_v2": ("openai_v2.OpenAIInstrumentor",),  # ignores suppression
}


def answer(body: Mapping[str, Any]) -> str:
    """Answer the app's request from the pages in its prompt."""
    system, user = (str(message["content"]) for message in body["messages"])
    return company.answer(user, system)


@pytest.mark.parametrize("way", WAYS)
def test_turns_are_scored_once_and_the_judge_is_not_traced(way: str) -> None:
    """Neither by our spans nor by those of its client; no span is lost or doubled.

    Spans and a stream that were open when the library was attached are no exception.
    """
    package = OPENINFERENCE if way == "openinference" else OTEL
    names = [f"{package}.{name}".rpartition(".") for name in WAYS[way]]
    instrumentors = [getattr(pytest.importorskip(module), kind)() for module, _, kind in names]
    instrumentors.append(traced_http.HTTPXClientInstrumentor())
    if hasattr(traced_http, "HTTPX2ClientInstrumentor"):
        instrumentors.append(traced_http.HTTPX2ClientInstrumentor())
    truths = [rag().invoke(question) for question in company.QUESTIONS]
    started, provider = SpanCount(), TracerProvider()
    with ExitStack() as stack:
        app = stack.enter_context(ScriptedOpenAI(answer))
        judge = stack.enter_context(ScriptedOpenAI(good_parts, lambda _: [1.0, 0.0]))
        receiver = stack.enter_context(OtlpReceiver())
        exporter = OTLPSpanExporter(endpoint=f"{receiver.http_endpoint}/v1/traces")
        provider.add_span_processor(started)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        options = {"tracer_provider": provider, "skip_dep_check": True}
        stack.enter_context(instrumented(*instrumentors, **options))
        client = {"base_url": app.base_url, "api_key": "app", "disable_streaming": True}
        chain = rag(llm=langchain_openai.ChatOpenAI(model=APP_MODEL, **client))
        tracer = provider.get_tracer("app")
        in_flight, stream = tracer.start_span("in flight"), chain.stream(company.REPAIRS)
        next(stream)
        at_judge = {"base_url": judge.base_url, "api_key": "judge"}
        handle = instrument(
            tracer_provider=provider,
            judge=OpenAIJudge(JUDGE_MODEL, **at_judge),
            embedder=OpenAIEmbedder("judge-embeddings", **at_judge),
            hold_seconds=PATIENCE,
        )
        list(stream)
        in_flight.end()
        asked, config = company.QUESTIONS, {"callbacks": [handle.callback]}

        async def gather() -> list[str]:
            return await asyncio.gather(*(chain.ainvoke(question, config) for question in asked))

        for ask in (lambda: chain.batch(list(asked), config), lambda: asyncio.run(gather())):
            with tracer.start_as_current_span("request"):
                assert ask() == truths
        assert handle.flush(PATIENCE)
        provider.force_flush()
        spans = receiver.spans()
        provider.shutdown()
    statuses = Counter(span.attributes.get(STATUS) for span in spans)
    assert statuses["scored"] == 2 * len(truths)
    assert statuses.keys() <= {"scored", "skipped", None}
    assert Counter((span.trace_id, span.span_id) for span in spans) == Counter(started.by_app)
    assert judge.requests
    assert started.by_judge == []
    texts = [" ".join(map(str, span.attributes.values())) for span in spans]
    over_http = [span.scope.endswith("httpx") for span in spans]
    calls = [text for text, is_http in zip(texts, over_http, strict=True) if is_http]
    assert sum(app.base_url in text for text in calls) == len(app.requests)
    assert not [text for text in calls if judge.base_url in text]
    ours = ("rag.evaluation.", "evaluations.")
    named = {name for span in spans for name, v in span.attributes.items() if JUDGE_MODEL in str(v)}
    assert {name for name in named if not name.startswith(ours)} == set()
