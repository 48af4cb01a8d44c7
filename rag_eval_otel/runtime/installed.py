"""Which versions of what matters here are installed."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

OURS: Final = (
    "rag-eval-otel",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http",
    "langchain-core",
    "openai",
)
"""What we need ourselves."""

KNOWN: Final = (
    "arize-phoenix-otel",
    "ddtrace",
    "haystack-ai",
    "langchain",
    "langfuse",
    "langgraph",
    "langsmith",
    "llama-index-core",
    "llama-index-observability-otel",
    "logfire",
    "mlflow",
    "mlflow-skinny",
    "openinference-instrumentation",
    "openinference-instrumentation-haystack",
    "openinference-instrumentation-langchain",
    "openinference-instrumentation-llama-index",
    "openinference-instrumentation-openai",
    "opentelemetry-distro",
    "opentelemetry-instrumentation",
    "opentelemetry-instrumentation-chromadb",
    "opentelemetry-instrumentation-genai-langchain",
    "opentelemetry-instrumentation-genai-llama-index",
    "opentelemetry-instrumentation-genai-openai",
    "opentelemetry-instrumentation-haystack",
    "opentelemetry-instrumentation-langchain",
    "opentelemetry-instrumentation-llamaindex",
    "opentelemetry-instrumentation-openai",
    "opentelemetry-instrumentation-openai-v2",
    "opentelemetry-util-genai",
    "pydantic-ai",
    "pydantic-ai-slim",
    "traceloop-sdk",
)
"""Instrumentations and frameworks whose spans we read, or that have a say in the matter."""


def versions() -> Mapping[str, str]:
    """Return the versions of Python, of what we need, and of what is known and installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # 30 ms

    found = {"python": platform.python_version()}
    for name in (*OURS, *KNOWN):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return {**dict.fromkeys(OURS, "not installed"), **found}
