"""The sources: our own callback handler, and other instrumentations.

A source is enabled once in the process. Instrumentations write to a provider that delegates to
that of the running application. OpenLLMetry's instrumentation of Haystack needs Haystack 2; that of
LlamaIndex and LlamaIndex's own tracing cannot be switched off, so a process runs one of them.
"""

from __future__ import annotations

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

Sources: TypeAlias = "Mapping[str, Callable[[], AbstractContextManager[Source]]]"


class Source(Protocol):
    """A source of captured runs or spans."""

    def watching(
        self, provider: TracerProvider, handle: Handle
    ) -> AbstractContextManager[dict[str, Any]]:
        """Capture the block's runs to ``provider``; yield the app's config."""
        ...


class Callback:
    """Our own callback handler, in the config of every run."""

    @contextmanager
    def watching(self, provider: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        """Yield a config with the handler."""
        del provider
        yield {"callbacks": [handle.callback]}


class PassedOn(AnyProvider):
    """A provider whose tracers delegate to the provider of the running application."""

    def __init__(self) -> None:
        self.now: AnyProvider = NoOpTracerProvider()

    def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
        """Return a tracer that looks up the current provider for every span."""
        return _PassedOnTracer(self, args, kwargs)

    @contextmanager
    def watching(self, provider: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        """Delegate to ``provider``; the application needs no config."""
        del handle
        self.now = provider
        try:
            yield {}
        finally:
            self.now = NoOpTracerProvider()


class _PassedOnTracer(Tracer):
    def __init__(self, owner: PassedOn, args: Any, kwargs: Any) -> None:
        self._owner, self._args, self._kwargs = owner, args, kwargs

    def _tracer(self) -> Tracer:
        return self._owner.now.get_tracer(*self._args, **self._kwargs)

    def start_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._tracer().start_span(*args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._tracer().start_as_current_span(*args, **kwargs)


class PassedOnSdk(TracerProvider):
    """A delegating provider of the SDK's class, for instrumentations that require it."""

    def __init__(self, source: PassedOn) -> None:
        super().__init__(shutdown_on_exit=False)
        self._source = source

    def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
        """Return the source's tracer."""
        return self._source.get_tracer(*args, **kwargs)


class Langfuse:
    """A client of Langfuse for every application, with which ``attach`` traces it."""

    def __init__(self, attach: Attach) -> None:
        self._made, self._attach = 0, attach

    @contextmanager
    def watching(self, provider: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        """Capture the block's runs to ``provider``."""
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


Attach: TypeAlias = "Callable[[Any, str, TracerProvider, Handle], AbstractContextManager[Any]]"
"""With a client, its key, the application's provider and the handle: the application's config."""


@contextmanager
def callback() -> Iterator[Source]:
    """Our own handler."""
    yield Callback()


@contextmanager
def instrumented(path: str, *, openai: bool = False, **variables: str) -> Iterator[Source]:
    """Enable the instrumentor at ``path``, with ``variables`` of the environment.

    With ``openai``, the models are those of OpenAI over HTTP.
    """
    module, _, name = path.rpartition(".")
    instrumentor = getattr(importlib.import_module(module), name)()
    os.environ.update(variables)
    source = PassedOn()
    with _models_of_openai() if openai else nullcontext():
        instrumentor.instrument(tracer_provider=source, skip_dep_check=True)
        try:
            yield source
        finally:
            instrumentor.uninstrument()


def _models_of_openai() -> AbstractContextManager[Any]:
    from corpus.langchain_openai_kit import openai_models

    return openai_models()


@contextmanager
def langfuse_langchain() -> Iterator[Source]:
    """Langfuse's handler."""

    @contextmanager
    def attach(_client: Any, key: str, *_: Any) -> Iterator[dict[str, Any]]:
        from langfuse.langchain import CallbackHandler

        yield {"callbacks": [CallbackHandler(public_key=key)]}

    yield Langfuse(attach)


@contextmanager
def langfuse_haystack() -> Iterator[Source]:
    """Langfuse's tracer for Haystack."""

    @contextmanager
    def attach(client: Any, *_: Any) -> Iterator[dict[str, Any]]:
        from haystack_integrations.tracing.langfuse import LangfuseTracer

        with haystack_tracer(LangfuseTracer(tracer=client, name="corpus")):
            yield {}

    yield Langfuse(attach)


@contextmanager
def langfuse_llamaindex() -> Iterator[Source]:
    """Langfuse's client on OpenInference's provider, as in its guide."""
    with instrumented(OPENINFERENCE.format("llama_index.LlamaIndexInstrumentor")) as source:
        yield Langfuse(lambda _client, _key, provider, handle: source.watching(provider, handle))


@contextmanager
def haystack_tracer(tracer: Any) -> Iterator[None]:
    """Trace Haystack with content by ``tracer`` during the block."""
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
    """OpenLLMetry's instrumentation of LlamaIndex."""
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


OPENINFERENCE = "openinference.instrumentation.{}"
OPENTELEMETRY = "opentelemetry.instrumentation.{}"
CONTENT = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only"}
GENAI = partial(
    instrumented, OPENTELEMETRY.format("genai.langchain.LangChainInstrumentor"), **CONTENT
)
LANGCHAIN: Sources = {
    "callback": callback,
    "genai": GENAI,
    "genai_openai": partial(GENAI, openai=True),
    "langfuse": langfuse_langchain,
    "openai_v2": partial(
        instrumented,
        OPENTELEMETRY.format("openai_v2.OpenAIInstrumentor"),
        openai=True,
        OTEL_SEMCONV_STABILITY_OPT_IN="gen_ai_latest_experimental",
        **CONTENT,
    ),
    "openinference": partial(instrumented, OPENINFERENCE.format("langchain.LangChainInstrumentor")),
    "openinference_openai": partial(
        instrumented, OPENINFERENCE.format("openai.OpenAIInstrumentor"), openai=True
    ),
    "traceloop": partial(instrumented, OPENTELEMETRY.format("langchain.LangchainInstrumentor")),
}
SOURCES: Mapping[str, Sources] = {
    "langchain": LANGCHAIN,
    "langgraph": LANGCHAIN,
    "haystack": {
        "haystack_native": haystack_native,
        "langfuse": langfuse_haystack,
        "openinference": partial(
            instrumented, OPENINFERENCE.format("haystack.HaystackInstrumentor")
        ),
        "traceloop": partial(instrumented, OPENTELEMETRY.format("haystack.HaystackInstrumentor")),
    },
    "llamaindex": {
        "langfuse": langfuse_llamaindex,
        "llamaindex_native": llamaindex_native,
        "openinference": partial(
            instrumented, OPENINFERENCE.format("llama_index.LlamaIndexInstrumentor")
        ),
        "traceloop": traceloop_llamaindex,
    },
}
"""The sources of each framework by their names."""
