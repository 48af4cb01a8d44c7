"""Apps over the handbook, read by our processor alone from the spans of other instrumentations.

An instrumentation is switched on once in a process: a session of nox runs one of `WAYS` in each.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier
from typing import Any, TypeAlias

import openai
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps import company
from apps.fakes import ScriptedChat
from apps.parts import handbook, rag
from apps.replies import unavailable
from conversations import KINDS, Ask, chain, reply_to, said
from e2e.watched import (
    PATIENCE,
    QUESTIONS,
    STATUS,
    TRUTHS,
    Watched,
    assert_conversed,
    instrumented,
    watched,
)
from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel.types import SkipReason

needed = pytest.importorskip
Traced: TypeAlias = tuple[Watched, Any]
pytestmark = pytest.mark.filterwarnings(  # of the instrumentations
    "ignore:Calling .text.. as a method is deprecated",
    "ignore:The `json` method is deprecated",
    "ignore:Support for class-based `config` is deprecated",
)
HIDES = ("hide_inputs", "hide_outputs", "hide_retrieval_documents")


PLAIN = ChatPromptTemplate.from_template("{greeting}")


@dataclass(frozen=True, kw_only=True)
class HandbookChain:
    """The plain chain of LangChain, with ``callbacks`` of the instrumentation, not ours.

    The apps of other frameworks have the same methods.
    """

    llm: BaseChatModel = field(default_factory=ScriptedChat)
    dead_llm: BaseChatModel = field(default_factory=lambda: ScriptedChat(reply=unavailable))
    error: type[Exception] = ConnectionError
    callbacks: list[BaseCallbackHandler] = field(default_factory=list)
    talker: BaseChatModel = field(default_factory=lambda: ScriptedChat(reply=said))

    def conversing(self, kind: str) -> Ask:
        return chain(self.talker, kind, self._config)

    def ask(self, question: str) -> str:
        return rag(llm=self.llm).invoke(question, self._config)

    async def aask(self, question: str) -> str:
        return await rag(llm=self.llm).ainvoke(question, self._config)

    def stream(self, question: str) -> str:
        return "".join(rag(llm=self.llm).stream(question, self._config))

    def fail(self, question: str) -> None:
        with pytest.raises(self.error):
            rag(llm=self.dead_llm).invoke(question, self._config)

    def chat(self, greeting: str) -> str:
        return (PLAIN | self.llm | StrOutputParser()).invoke({"greeting": greeting}, self._config)

    @property
    def _config(self) -> dict[str, Any]:
        return {"callbacks": self.callbacks}


@contextmanager
def openinference(watch: Watched, hidden: str | None = None) -> Iterator[Any]:
    with _openinference("langchain.LangChainInstrumentor", watch, hidden):
        yield HandbookChain()


@contextmanager
def llamaindex_openinference(watch: Watched, hidden: str | None = None) -> Iterator[Any]:
    with _openinference("llama_index.LlamaIndexInstrumentor", watch, hidden):
        yield needed("e2e.llamaindex_app").HandbookEngine()


def _openinference(name: str, watch: Watched, hidden: str | None) -> AbstractContextManager[None]:
    package, _, kind = name.partition(".")
    instrumentor = getattr(needed(f"openinference.instrumentation.{package}"), kind)()
    config = needed("openinference.instrumentation").TraceConfig(
        **({hidden: True} if hidden else {})
    )
    return instrumented(instrumentor, tracer_provider=watch.provider, config=config)


@contextmanager
def llamaindex_native(watch: Watched, _: str | None = None) -> Iterator[Any]:
    needed("llama_index.observability.otel").LlamaIndexOpenTelemetry(
        tracer_provider=watch.provider, span_exporter=InMemorySpanExporter()
    ).start_registering()
    yield needed("e2e.llamaindex_app").HandbookEngine()


@contextmanager
def traceloop(watch: Watched, _: str | None = None) -> Iterator[Any]:
    langchain = needed("opentelemetry.instrumentation.langchain")
    with instrumented(langchain.LangchainInstrumentor(), tracer_provider=watch.provider):
        yield HandbookChain()


@contextmanager
def haystack(watch: Watched, content: str | None = None) -> Iterator[Any]:
    tracing = needed("haystack").tracing
    otel = needed("haystack_integrations.tracing.opentelemetry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing.tracer, "is_content_tracing_enabled", content is None)
        tracing.enable_tracing(otel.OpenTelemetryTracer(watch.provider.get_tracer("haystack")))
        yield needed("e2e.haystack_app").HandbookPipeline()
        tracing.disable_tracing()


@contextmanager
def genai(watch: Watched, place: str | None = None) -> Iterator[Any]:
    """OpenTelemetry's own, which traces only models of OpenAI and Bedrock."""
    langchain = needed("opentelemetry.instrumentation.genai.langchain")
    model = needed("langchain_openai").ChatOpenAI
    providers = watch.providers
    options = {
        "tracer_provider": providers.tracer_provider,
        "logger_provider": providers.logger_provider,
    }
    with pytest.MonkeyPatch.context() as patch, ScriptedOpenAI(_answer) as server:
        patch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", place or "span_only")
        with instrumented(langchain.LangChainInstrumentor(), **options):
            client = {"base_url": server.base_url, "api_key": "app", "max_retries": 0}
            llm = model(model="m", disable_streaming=True, **client)
            yield HandbookChain(
                llm=llm,
                talker=llm,
                dead_llm=model(model="dead", **client),
                error=openai.InternalServerError,
            )


def _answer(body: Mapping[str, Any]) -> object:
    if body["model"] == "dead":
        return HttpReply(status=500)
    *system, user = (str(message["content"]) for message in body["messages"])
    if user not in company.ANSWERS:
        return reply_to("\n".join([*system, user]))
    return company.answer(user, "".join(system))


@contextmanager
def langfuse(watch: Watched, masked: str | None = None) -> Iterator[Any]:
    """With a client that replaces all content by ``masked``; its own exporter does nothing."""
    key = masked or "plain"
    client = needed("langfuse").Langfuse(
        public_key=key,
        secret_key="of-no-account",
        tracer_provider=watch.provider,
        span_exporter=InMemorySpanExporter(),
        mask=(lambda data, **_: masked) if masked else None,
    )
    handler = needed("langfuse.langchain").CallbackHandler(public_key=key)
    yield HandbookChain(callbacks=[handler])
    client.shutdown()


WAYS: dict[str, Callable[..., AbstractContextManager[Any]]] = {
    "langchain-openinference": openinference,
    "langchain-traceloop": traceloop,
    "langchain-langfuse": langfuse,
    "langchain-genai": genai,
    "llamaindex-openinference": llamaindex_openinference,
    "llamaindex-native": llamaindex_native,
    "haystack-native": haystack,
}
HIDDEN: dict[str, dict[str | None, SkipReason]] = {
    "langchain-openinference": dict.fromkeys(HIDES, "redacted"),
    "langchain-traceloop": {None: "no_answer"},  # a variable hides it, at any time
    "langchain-langfuse": {"[masked]": "redacted", "REDACTED": "redacted"},
    "langchain-genai": {"no_content": "no_answer"},
    "llamaindex-openinference": dict.fromkeys(HIDES, "redacted"),
    "haystack-native": {"off": "no_answer"},
}
"""By the way: settings that hide content, and the reason to skip a turn."""


@pytest.fixture(scope="module")
def traced(request: pytest.FixtureRequest) -> Iterator[Traced]:
    """Our processor on a provider, and an app that is traced with the setting of a way."""
    name, setting = request.param
    with watched() as watch, WAYS[name](watch, setting) as app:
        yield watch, app


def with_apps(*cases: Any, names: str = "traced") -> pytest.MarkDecorator:
    """Parametrize with ways and their settings, and perhaps with more."""
    return pytest.mark.parametrize(names, cases, indirect=["traced"], scope="module")


def case(name: str, *more: str, setting: str | None = None) -> Any:
    return pytest.param((name, setting), *more, id="-".join(filter(None, (name, setting))))


EACH = with_apps(*map(case, WAYS))
CONVERSING = {
    **{name: KINDS for name in WAYS if name.startswith("langchain")},
    "llamaindex-openinference": ("plain", "rewritten", "system"),
    "llamaindex-native": ("plain", "rewritten", "system", "streamed"),
    "haystack-native": ("plain", "streamed"),
}
EACH_CONVERSING = with_apps(
    *(case(name, kind, name) for name, kinds in CONVERSING.items() for kind in kinds),
    names="traced,kind,name",
)
EACH_STREAMED = with_apps(*(case(name) for name in WAYS if name != "llamaindex-native"))
EACH_HIDDEN = with_apps(
    *(
        case(name, reason, setting=setting)
        for name, settings in HIDDEN.items()
        for setting, reason in settings.items()
    ),
    names="traced,reason",
)


def assert_scored(watch: Watched, use: Callable[[], object], *questions: str) -> None:
    """Assert that ``use`` gives these scored turns, each on one span, and no others."""
    run = watch.run(use)
    assert run.truths == Counter(TRUTHS[question] for question in questions)
    assert run.outcomes == {("scored", None): len(questions)}
    assert sum(STATUS in span.attributes for span in run.spans) == len(questions)


def assert_answered(watch: Watched, ask: Callable[[str], str], *questions: str) -> None:
    def use() -> None:
        assert list(map(ask, questions)) == [TRUTHS[question].answer for question in questions]

    assert_scored(watch, use, *questions)


def assert_refused(watch: Watched, use: Callable[[], object], *reasons: str) -> None:
    """Assert that each trace of ``use`` is skipped for its reason, and nothing is scored."""
    run = watch.run(use)
    assert run.outcomes == Counter(("skipped", reason) for reason in reasons)
    assert run.spans
    assert {span.attributes.get(STATUS) for span in run.spans} <= {None, "skipped"}


@EACH
def test_turns_in_a_row_are_scored(traced: Traced) -> None:
    """Each with its question, contexts and answer."""
    watch, app = traced
    assert_answered(watch, app.ask, *QUESTIONS)


@EACH_CONVERSING
def test_conversations(traced: Traced, kind: str, name: str) -> None:
    """Each turn has the messages before it and the text searched for, never another's."""
    watch, app = traced
    # There, the `chat_history` is messages as Python shows them, which are not read.
    is_read = name != "llamaindex-openinference"
    ask = app.conversing(kind)
    assert_conversed(watch, ask, is_rewritten=kind == "rewritten", has_history=is_read)


@EACH
def test_awaited_turns_are_scored(traced: Traced) -> None:
    """Two at the same time in an event loop."""
    watch, app = traced
    asked = (company.SPARS, company.TOWING)

    async def both() -> list[str]:
        return await asyncio.gather(*map(app.aask, asked))

    def use() -> None:
        assert asyncio.run(both()) == [TRUTHS[question].answer for question in asked]

    assert_scored(watch, use, *asked)


@EACH
def test_turns_in_threads_are_scored_apart(traced: Traced) -> None:
    """Two at the same time, in threads of one request."""
    watch, app = traced
    asked, ready = (company.FOUNDED, company.SPARS), Barrier(2)

    def ask(question: str) -> str:
        ready.wait(PATIENCE)
        return app.ask(question)

    def use() -> None:
        contexts = copy_context(), copy_context()
        with ThreadPoolExecutor(2) as pool:
            for context, question in zip(contexts, asked, strict=True):
                pool.submit(context.run, ask, question)

    assert_scored(watch, use, *asked)


@EACH_STREAMED
def test_a_streamed_turn_is_scored(traced: Traced) -> None:
    """By the whole of its answer."""
    watch, app = traced
    assert_answered(watch, app.stream, company.SAILMAKER)


@EACH
def test_a_turn_that_fails_is_refused(traced: Traced) -> None:
    """Its model raises an error after the retrieval."""
    watch, app = traced
    assert_refused(watch, lambda: app.fail(company.FOUNDED), "error")


@EACH
def test_only_the_span_of_the_turn_waits(traced: Traced) -> None:
    """While the judge does not answer, other spans pass, as does a chat without retrieval."""
    watch, app = traced
    waiting: list[tuple[int, int]] = []

    def use() -> None:
        with watch.judge.stopped():
            app.ask(company.HANDBOOK)
            watch.count.wait_for(lambda: len(watch.count.waiting()) == 1)
            waiting.extend(watch.count.waiting())
            app.chat(company.GREETING)
            assert watch.count.waiting() == waiting

    run = watch.run(use)
    assert run.truths == {TRUTHS[company.HANDBOOK]: 1}
    assert [(s.trace_id, s.span_id) for s in run.spans if STATUS in s.attributes] == waiting


@EACH
def test_no_span_is_lost_or_doubled(traced: Traced) -> None:
    """What has started arrives once, and the judge makes no spans."""
    watch, app = traced
    assert watch.run(lambda: app.ask(company.FOUNDED)).truths
    arrived = Counter((span.trace_id, span.span_id) for span in watch.receiver.spans())
    assert arrived == Counter(watch.count.by_app)
    assert watch.count.by_judge == []


@EACH_HIDDEN
def test_hidden_content_is_refused(
    traced: Traced, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another span may show it."""
    monkeypatch.setenv("TRACELOOP_TRACE_CONTENT", "false")
    watch, app = traced
    assert_refused(watch, lambda: app.ask(company.FOUNDED), reason)


@with_apps(case("langchain-genai", setting="event_only"))
def test_messages_in_events_are_read(traced: Traced) -> None:
    """The contexts of a retrieval without texts come from the prompt in a log record."""
    watch, app = traced
    run = watch.run(lambda: app.ask(company.FOUNDED))
    assert run.outcomes == {("scored", None): 1}


@with_apps(case("llamaindex-openinference"), case("llamaindex-native"))
def test_filtered_nodes_are_not_contexts(traced: Traced) -> None:
    """The sample holds only the retrieved nodes that a postprocessor has kept."""
    watch, app = traced
    assert_scored(watch, lambda: app.ask_filtered(company.FOUNDED), company.FOUNDED)


@with_apps(case("llamaindex-native"))
def test_a_stream_without_texts_is_refused(traced: Traced) -> None:
    """A streamed call is in another trace, without texts: both traces are refused."""
    watch, app = traced
    assert_refused(watch, lambda: app.stream(company.FOUNDED), "no_answer", "no_retrieval")


@with_apps(case("haystack-native"))
def test_an_agent_that_searches_is_scored(traced: Traced) -> None:
    """The contexts are its tool's result; the span of the agent's run waits for the scores."""
    watch, app = traced
    assert_answered(watch, app.ask_agent, company.SPARS)


@pytest.mark.parametrize("kind", ["retriever", None])
@with_apps(case("langchain-langfuse"))
def test_decorated_functions_are_scored(traced: Traced, kind: str | None) -> None:
    """An app without a framework is read from the types of its observations, or their names."""
    observe = needed("langfuse").observe

    def search(question: str) -> list[dict[str, Any]]:
        found = handbook().invoke(question)
        return [{"id": page.id, "content": page.page_content} for page in found]

    def write(messages: list[dict[str, str]]) -> str:
        return company.answer(messages[-1]["content"], messages[0]["content"])

    searching, writing = observe(search, as_type=kind), observe(write, as_type="generation")

    @observe
    def answer(question: str) -> str:
        context = "\n\n".join(page["content"] for page in searching(question))
        system = {"role": "system", "content": context}
        return writing([system, {"role": "user", "content": question}])

    watch, _ = traced
    ask = partial(answer, langfuse_public_key="plain")
    assert_answered(watch, ask, *QUESTIONS)
