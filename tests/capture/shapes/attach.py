"""Attaching the instrumentations that people already run."""

# ruff: noqa: PLC0415  # each is installed in an environment of its own

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from opentelemetry.sdk.trace import TracerProvider


def openinference(provider: TracerProvider) -> None:
    """OpenInference over LangChain."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    LangChainInstrumentor().instrument(tracer_provider=provider)


def traceloop(provider: TracerProvider) -> None:
    """OpenLLMetry over LangChain."""
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor

    LangchainInstrumentor().instrument(tracer_provider=provider)


def genai(provider: TracerProvider) -> None:
    """The official GenAI instrumentation of LangChain."""
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "span_only"
    from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor

    LangChainInstrumentor().instrument(tracer_provider=provider)


def langfuse(provider: TracerProvider) -> None:
    """Langfuse's handler, for every chain."""
    from langchain_core.tracers.context import register_configure_hook
    from langfuse import Langfuse
    from langfuse.langchain import CallbackHandler

    Langfuse(
        public_key="pk",
        secret_key="sk",
        host="http://127.0.0.1:9",
        tracer_provider=provider,
    )
    handles = CallbackHandler()
    handler: ContextVar[Any] = ContextVar("langfuse", default=handles)  # threads must find it
    register_configure_hook(handler, inheritable=True)


def langsmith(provider: TracerProvider) -> None:
    """LangSmith, writing OpenTelemetry's spans alone."""
    os.environ |= {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_OTEL_ENABLED": "true",
        "LANGSMITH_OTEL_ONLY": "true",
        "LANGSMITH_API_KEY": "none",
        "LANGSMITH_ENDPOINT": "http://127.0.0.1:9",
    }


def openinference_llama_index(provider: TracerProvider) -> None:
    """OpenInference over LlamaIndex."""
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

    LlamaIndexInstrumentor().instrument(tracer_provider=provider)


def traceloop_llama_index(provider: TracerProvider) -> None:
    """OpenLLMetry over LlamaIndex."""
    from opentelemetry.instrumentation.llamaindex import LlamaIndexInstrumentor

    LlamaIndexInstrumentor().instrument(tracer_provider=provider)


def openinference_haystack(provider: TracerProvider) -> None:
    """OpenInference over Haystack."""
    from openinference.instrumentation.haystack import HaystackInstrumentor

    HaystackInstrumentor().instrument(tracer_provider=provider)


def haystack(_provider: TracerProvider) -> None:
    """Haystack's own tracing."""
    from haystack import tracing
    from haystack_integrations.tracing.opentelemetry import OpenTelemetryTracer
    from opentelemetry import trace

    tracing.tracer.is_content_tracing_enabled = True
    tracing.enable_tracing(OpenTelemetryTracer(trace.get_tracer("haystack")))


LANGCHAIN = ("agents", "chains", "checked", "conversations", "graphs", "wording")
LLAMA_INDEX = ("engines",)
HAYSTACK = ("pipelines",)

INSTRUMENTATIONS: dict[str, tuple[Callable[[TracerProvider], None], tuple[str, ...]]] = {
    "haystack-otel-native": (haystack, HAYSTACK),
    "langfuse": (langfuse, LANGCHAIN),
    "langsmith-otel": (langsmith, LANGCHAIN),
    "openinference-haystack": (openinference_haystack, HAYSTACK),
    "openinference-langchain": (openinference, LANGCHAIN),
    "openinference-llama-index": (openinference_llama_index, LLAMA_INDEX),
    "otel-genai-langchain": (genai, LANGCHAIN),
    "traceloop-langchain": (traceloop, LANGCHAIN),
    "traceloop-llamaindex": (traceloop_llama_index, LLAMA_INDEX),
}
"""How to attach each, and the modules with the shapes it sees."""


def settle(name: str) -> None:
    """Wait until everything has been written."""
    if name == "langsmith-otel":
        from langsmith.run_trees import get_cached_client

        get_cached_client().flush()
