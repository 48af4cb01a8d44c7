"""The sources: our own callback handler, and other instrumentations.

A source is enabled once in the process. Instrumentations write to a provider that delegates to
that of the running application.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from opentelemetry.sdk.trace import TracerProvider
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


class LangfuseClients:
    """Langfuse: a client and its callback handler for every application."""

    def __init__(self) -> None:
        self._made = 0

    @contextmanager
    def watching(self, provider: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        """Yield a config with Langfuse's handler."""
        import langfuse
        from langfuse.langchain import CallbackHandler
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
            InMemorySpanExporter,
        )

        del handle
        self._made += 1
        key = f"corpus-{self._made}"
        client = langfuse.Langfuse(
            public_key=key,
            secret_key="of-no-account",
            tracer_provider=provider,
            span_exporter=InMemorySpanExporter(),
        )
        try:
            yield {"callbacks": [CallbackHandler(public_key=key)]}
        finally:
            client.shutdown()


@contextmanager
def callback() -> Iterator[Source]:
    """Our own handler."""
    yield Callback()


@contextmanager
def langfuse() -> Iterator[Source]:
    """Langfuse's handler."""
    yield LangfuseClients()


@contextmanager
def _instrumented(instrumentor: Any, **options: Any) -> Iterator[Source]:
    source = PassedOn()
    instrumentor.instrument(tracer_provider=source, skip_dep_check=True, **options)
    try:
        yield source
    finally:
        instrumentor.uninstrument()


@contextmanager
def openinference() -> Iterator[Source]:
    """OpenInference's instrumentation of LangChain."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    with _instrumented(LangChainInstrumentor()) as source:
        yield source


@contextmanager
def traceloop() -> Iterator[Source]:
    """OpenLLMetry's instrumentation of LangChain."""
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor

    with _instrumented(LangchainInstrumentor()) as source:
        yield source


@contextmanager
def genai() -> Iterator[Source]:
    """OpenTelemetry's own instrumentation of LangChain, with its content on spans."""
    from opentelemetry.instrumentation.genai.langchain import (
        LangChainInstrumentor,
    )

    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "span_only"
    with _instrumented(LangChainInstrumentor()) as source:
        yield source


@contextmanager
def openinference_openai() -> Iterator[Source]:
    """OpenInference's instrumentation of the OpenAI client alone."""
    from openinference.instrumentation.openai import OpenAIInstrumentor

    from corpus.langchain_openai_kit import openai_models

    with openai_models(), _instrumented(OpenAIInstrumentor()) as source:
        yield source


@contextmanager
def openai_v2() -> Iterator[Source]:
    """OpenTelemetry's own instrumentation of the OpenAI client alone."""
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

    from corpus.langchain_openai_kit import openai_models

    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "span_only"
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    with openai_models(), _instrumented(OpenAIInstrumentor()) as source:
        yield source


@contextmanager
def genai_openai() -> Iterator[Source]:
    """OpenTelemetry's own instrumentation of LangChain, and models of OpenAI."""
    from corpus.langchain_openai_kit import openai_models

    with openai_models(), genai() as source:
        yield source


SOURCES: dict[str, Callable[[], AbstractContextManager[Source]]] = {
    "callback": callback,
    "genai": genai,
    "genai_openai": genai_openai,
    "langfuse": langfuse,
    "openai_v2": openai_v2,
    "openinference": openinference,
    "openinference_openai": openinference_openai,
    "traceloop": traceloop,
}
