"""Apps over the handbook, read by our processor alone from the spans of other instrumentations.

An instrumentation is switched on once in a process: a session of nox runs one of `WAYS` in each.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import Any, TypeAlias

import openai
import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps import company
from apps.fakes import ScriptedChat
from apps.parts import handbook, rag
from apps.replies import unavailable
from conversations import KINDS, Ask, Messages, reply_to, said
from conversations import chain as conversation
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


@dataclass(frozen=True, kw_only=True)
class Handbook:
    """An application: it answers from the handbook, calls a model that is down, or only chats."""

    ask: Callable[[str], str]
    fail: Callable[[str], object]
    chat: Callable[[str], object]
    error: type[Exception] = ConnectionError
    conversing: Callable[[str], Ask] | None = None


def chain(
    llm: Any = None,
    *,
    dead: Any = None,
    talker: Any = None,
    error: Any = ConnectionError,
    callbacks: Any = (),
) -> Handbook:
    """Return the plain chain of LangChain, with ``callbacks`` of the instrumentation, not ours."""
    llm, dead = llm or ScriptedChat(), dead or ScriptedChat(reply=unavailable)
    talker = talker or ScriptedChat(reply=said)
    plain = ChatPromptTemplate.from_template("{greeting}") | llm | StrOutputParser()
    config: Any = {"callbacks": [*callbacks]}
    return Handbook(
        ask=lambda question: rag(llm=llm).invoke(question, config),
        fail=lambda question: rag(llm=dead).invoke(question, config),
        chat=lambda greeting: plain.invoke({"greeting": greeting}, config),
        error=error,
        conversing=lambda kind: conversation(talker, kind, config),
    )


def answered(prompt: str) -> str:
    """Answer the last known question in a prompt."""
    return company.answer(max(company.ANSWERS, key=prompt.rfind), prompt)


def is_down(_: str) -> str:
    message = "the model is down"
    raise ConnectionError(message)


def query_engine() -> Handbook:
    kit = needed("corpus.llamaindex_kit")
    llm, dead = kit.CompletionModel(answered), kit.CompletionModel(is_down)
    options = {"similarity_top_k": 2}
    return Handbook(
        ask=lambda question: kit.ask(question, company.PAGES, llm, **options),
        fail=lambda question: kit.ask(question, company.PAGES, dead, **options),
        chat=llm.complete,
        conversing=needed("e2e.llamaindex_chat").conversing,
    )


def pipeline() -> Handbook:
    kit = needed("corpus.haystack_kit")
    retriever = needed("haystack.components.retrievers").InMemoryEmbeddingRetriever

    message = needed("haystack.dataclasses").ChatMessage
    pages = "{% for page in documents %}{{ page.content }}\n\n{% endfor %}"

    def ask(question: str, reply: Callable[[str], str] = answered, **more: Any) -> str:
        found = {
            "embedder": kit.LocalTextEmbedder(),
            "retriever": retriever(kit.store(*company.PAGES), top_k=2),
        }
        whole = kit.generating(
            kit.LocalChatGenerator(reply),
            pages + "{{ question }}",
            found,
            "embedder.embedding > retriever.query_embedding",
            "retriever.documents > prompt_builder.documents",
        )
        asked = {"question": question, **more.pop("prompt", {})}
        inputs = {"embedder": {"text": question}, "prompt_builder": asked, **more}
        return str(kit.answered(whole, **inputs))

    def conversing(kind: str) -> Ask:
        streamed = {"llm": {"streaming_callback": lambda _: None}} if kind == "streamed" else {}

        def converse(question: str, history: Messages) -> str:
            before = [getattr(message, f"from_{role}")(text) for role, text in history]
            asked = [message.from_system(pages), *before, message.from_user("{{ question }}")]
            return ask(question, reply_to, prompt={"template": asked}, **streamed)

        return converse

    def chat(greeting: str) -> object:
        said = message.from_user(greeting)
        alone = kit.wired({"llm": kit.LocalChatGenerator(answered)})
        return alone.run({"llm": {"messages": [said]}})

    error = needed("haystack.core.errors").PipelineRuntimeError
    return Handbook(
        ask=ask,
        fail=lambda question: ask(question, is_down),
        chat=chat,
        error=error,
        conversing=conversing,
    )


@contextmanager
def openinference(watch: Watched, hidden: str | None = None) -> Iterator[Any]:
    with _openinference("langchain.LangChainInstrumentor", watch, hidden):
        yield chain()


@contextmanager
def llamaindex_openinference(watch: Watched, hidden: str | None = None) -> Iterator[Any]:
    with _openinference("llama_index.LlamaIndexInstrumentor", watch, hidden):
        yield query_engine()


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
    yield query_engine()


@contextmanager
def traceloop(watch: Watched, _: str | None = None) -> Iterator[Any]:
    langchain = needed("opentelemetry.instrumentation.langchain")
    with instrumented(langchain.LangchainInstrumentor(), tracer_provider=watch.provider):
        yield chain()


@contextmanager
def haystack(watch: Watched, content: str | None = None) -> Iterator[Any]:
    tracing = needed("haystack").tracing
    otel = needed("haystack_integrations.tracing.opentelemetry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing.tracer, "is_content_tracing_enabled", content is None)
        tracing.enable_tracing(otel.OpenTelemetryTracer(watch.provider.get_tracer("haystack")))
        yield pipeline()
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
            yield chain(
                llm,
                talker=llm,
                dead=model(model="dead", **client),
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
    yield chain(callbacks=[handler])
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
    "llamaindex-openinference": ("plain", "rewritten", "system", "streamed"),
    "llamaindex-native": ("plain", "rewritten", "system", "streamed"),
    "haystack-native": ("plain", "streamed"),
}
EACH_CONVERSING = with_apps(
    *(case(name, kind, name) for name, kinds in CONVERSING.items() for kind in kinds),
    names="traced,kind,name",
)
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


def assert_refused(watch: Watched, use: Callable[[], object], *reasons: str) -> None:
    """Assert that each trace of ``use`` is skipped for its reason, and nothing is scored."""
    run = watch.run(use)
    assert run.outcomes == Counter(("skipped", reason) for reason in reasons)
    assert run.spans
    assert {span.attributes.get(STATUS) for span in run.spans} <= {None, "skipped"}


@EACH_CONVERSING
def test_conversations(traced: Traced, kind: str, name: str) -> None:
    """Each turn has the messages before it and the text searched for, never another's."""
    watch, app = traced
    # There, the `chat_history` is messages as Python shows them, which are not read.
    is_read = name != "llamaindex-openinference"
    ask = app.conversing(kind)
    assert_conversed(watch, ask, is_rewritten=kind == "rewritten", has_history=is_read)


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


@EACH
def test_a_turn_that_fails_is_refused(traced: Traced) -> None:
    """Its model raises an error after the retrieval."""
    watch, app = traced

    def use() -> None:
        with pytest.raises(app.error):
            app.fail(company.FOUNDED)

    assert_refused(watch, use, "error")


@EACH
def test_only_the_span_of_the_turn_waits(traced: Traced) -> None:
    """While the judge does not answer, other spans pass, as does a chat without retrieval."""
    watch, app = traced
    waiting: list[tuple[int, int]] = []

    def use() -> None:
        with watch.judge.stopped():
            app.ask(company.SAILMAKER)
            watch.count.wait_for(lambda: len(watch.count.waiting()) == 1)
            waiting.extend(watch.count.waiting())
            app.chat(company.GREETING)
            assert watch.count.waiting() == waiting

    run = watch.run(use)
    assert run.truths == {TRUTHS[company.SAILMAKER]: 1}
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
def test_hidden_content(traced: Traced, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert_scored(watch, lambda: [ask(question) for question in QUESTIONS], *QUESTIONS)
