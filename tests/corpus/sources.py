"""The sources: our own callback handler, and other instrumentations.

A source is enabled once in the process. Instrumentations write to a provider that delegates to
that of the running application. OpenLLMetry's instrumentation of Haystack needs Haystack 2; that of
LlamaIndex and LlamaIndex's own tracing cannot be switched off, so a process runs one of them.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeAlias

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, Tracer
from opentelemetry.trace import TracerProvider as AnyProvider

from rag_eval_otel import Handle


class Source(Protocol):
    """A source of captured runs or spans."""

    def watching(
        self, provider: TracerProvider, handle: Handle
    ) -> AbstractContextManager[dict[str, Any]]:
        """Capture the block's runs to ``provider``; yield the app's config."""
        ...


Sources: TypeAlias = "Mapping[str, Callable[[], AbstractContextManager[Source]]]"
Attach: TypeAlias = "Callable[[Any, str, TracerProvider, Handle], AbstractContextManager[Any]]"
"""With a client, its key, the application's provider and the handle: the application's config."""


class Callback:
    """Our own callback handler, in the config of every run."""

    @contextmanager
    def watching(self, _: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        yield {"callbacks": [handle.callback]}


class PassedOn(AnyProvider):
    """A provider whose tracers delegate to the provider of the running application."""

    def __init__(self) -> None:
        self.now: AnyProvider = NoOpTracerProvider()

    def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
        return _PassedOnTracer(lambda: self.now.get_tracer(*args, **kwargs))

    @contextmanager
    def watching(self, provider: TracerProvider, _: Handle) -> Iterator[dict[str, Any]]:
        self.now = provider
        try:
            yield {}
        finally:
            self.now = NoOpTracerProvider()


class LangSmith(PassedOn):
    """LangSmith's client, which makes spans in a thread of its own."""

    @contextmanager
    def watching(self, provider: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        from langsmith.run_trees import get_cached_client

        with super().watching(provider, handle) as config:
            yield config
            get_cached_client().flush()


class _PassedOnTracer(Tracer):
    def __init__(self, current: Callable[[], Tracer]) -> None:
        self._current = current

    def start_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._current().start_span(*args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._current().start_as_current_span(*args, **kwargs)


class PassedOnSdk(TracerProvider):
    """A delegating provider of the SDK's class, for instrumentations that require it."""

    def __init__(self, source: PassedOn) -> None:
        super().__init__(shutdown_on_exit=False)
        self._source = source

    def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
        return self._source.get_tracer(*args, **kwargs)


class Langfuse:
    """A client of Langfuse for every application, with which ``attach`` traces it."""

    def __init__(self, attach: Attach) -> None:
        self._made, self._attach = 0, attach

    @contextmanager
    def watching(self, provider: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        import langfuse

        self._made += 1
        key = f"corpus-{self._made}"
        client = langfuse.Langfuse(
            public_key=key,
            secret_key="of-no-account",
            tracer_provider=provider,
            span_exporter=InMemorySpanExporter(),
        )
        try:
            with self._attach(client, key, provider, handle) as config:
                yield config
        finally:
            client.shutdown()


@contextmanager
def instrumented(path: str, **variables: str) -> Iterator[Source]:
    """Enable the instrumentor at ``path``, with ``variables`` of the environment."""
    module, _, name = path.rpartition(".")
    instrumentor = getattr(importlib.import_module(module), name)()
    os.environ.update(variables)
    source = PassedOn()
    instrumentor.instrument(tracer_provider=source, skip_dep_check=True)
    try:
        yield source
    finally:
        instrumentor.uninstrument()


@contextmanager
def langfuse_langchain() -> Iterator[Source]:
    def attach(_client: Any, key: str, *_: Any) -> AbstractContextManager[dict[str, Any]]:
        from langfuse.langchain import CallbackHandler

        return nullcontext({"callbacks": [CallbackHandler(public_key=key)]})

    yield Langfuse(attach)


@contextmanager
def langfuse_haystack() -> Iterator[Source]:
    @contextmanager
    def attach(client: Any, *_: Any) -> Iterator[dict[str, Any]]:
        from haystack_integrations.tracing.langfuse import LangfuseTracer

        with haystack_tracer(LangfuseTracer(tracer=client, name="corpus")):
            yield {}

    yield Langfuse(attach)


@contextmanager
def langfuse_llamaindex() -> Iterator[Source]:
    """Langfuse's client on OpenInference's provider, as in its guide."""
    with instrumented(f"{OPENINFERENCE}.llama_index.LlamaIndexInstrumentor") as source:
        yield Langfuse(lambda _client, _key, provider, handle: source.watching(provider, handle))


@contextmanager
def langsmith() -> Iterator[Source]:
    """LangSmith, writing spans of OpenTelemetry alone, to the global provider."""
    names = ("LANGSMITH_TRACING", "LANGSMITH_OTEL_ENABLED", "LANGSMITH_OTEL_ONLY")
    nowhere = {"LANGSMITH_API_KEY": "none", "LANGSMITH_ENDPOINT": "http://127.0.0.1:9"}
    os.environ |= {**dict.fromkeys(names, "true"), **nowhere}
    yield LangSmith()


@contextmanager
def haystack_tracer(tracer: Any) -> Iterator[None]:
    from haystack import tracing

    tracing.tracer.is_content_tracing_enabled = True
    tracing.enable_tracing(tracer)
    try:
        yield
    finally:
        tracing.disable_tracing()


@contextmanager
def haystack_native() -> Iterator[Source]:
    """Haystack's own tracing: a package from Haystack 3 on, and a part of Haystack before."""
    try:
        from haystack_integrations.tracing.opentelemetry import OpenTelemetryTracer
    except ModuleNotFoundError:
        from haystack.tracing.opentelemetry import OpenTelemetryTracer
    source = PassedOn()
    with haystack_tracer(OpenTelemetryTracer(source.get_tracer("haystack"))):
        yield source


@contextmanager
def traceloop_llamaindex() -> Iterator[Source]:
    from opentelemetry.instrumentation.llamaindex import LlamaIndexInstrumentor

    source = PassedOn()
    LlamaIndexInstrumentor().instrument(tracer_provider=source)
    yield source


@contextmanager
def llamaindex_native() -> Iterator[Source]:
    """LlamaIndex's own tracing with a no-op exporter."""
    from llama_index.observability.otel import LlamaIndexOpenTelemetry

    source = PassedOn()
    LlamaIndexOpenTelemetry(
        tracer_provider=PassedOnSdk(source), span_exporter=InMemorySpanExporter()
    ).start_registering()
    yield source


OPENINFERENCE, OPENTELEMETRY = "openinference.instrumentation", "opentelemetry.instrumentation"
CONTENT = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only"}


def by(package: str, module: str, **variables: str) -> Callable[[], AbstractContextManager[Source]]:
    return partial(instrumented, f"{package}.{module}Instrumentor", **variables)


LANGCHAIN: Sources = {
    "callback": lambda: nullcontext(Callback()),
    "genai": by(OPENTELEMETRY, "genai.langchain.LangChain", **CONTENT),
    "langfuse": langfuse_langchain,
    "langsmith": langsmith,
    "openinference": by(OPENINFERENCE, "langchain.LangChain"),
    "traceloop": by(OPENTELEMETRY, "langchain.Langchain"),
}
HAYSTACK: Sources = {
    "haystack_native": haystack_native,
    "langfuse": langfuse_haystack,
    "openinference": by(OPENINFERENCE, "haystack.Haystack"),
    "traceloop": by(OPENTELEMETRY, "haystack.Haystack"),
}
SOURCES: Mapping[str, Sources] = {
    "langchain": LANGCHAIN,
    "langgraph": LANGCHAIN,
    "doubtful_langchain": LANGCHAIN,
    "published": LANGCHAIN,
    "haystack": HAYSTACK,
    "doubtful_haystack": HAYSTACK,
    "llamaindex": {
        "langfuse": langfuse_llamaindex,
        "llamaindex_native": llamaindex_native,
        "openinference": by(OPENINFERENCE, "llama_index.LlamaIndex"),
        "traceloop": traceloop_llamaindex,
    },
}
"""The sources of each framework by their names."""
