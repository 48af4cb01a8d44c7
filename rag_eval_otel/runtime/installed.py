"""Import optional packages, and look up versions of installed packages."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from rag_eval_otel import semconv
from rag_eval_otel.errors import MissingDependencyError

OURS: Final = (
    "rag-eval-otel",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-exporter-otlp-proto-http",
    "langchain-core",
    "openai",
)
"""The names of this package and of the main packages that it requires."""

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
"""Instrumentations and frameworks whose spans this library reads, or that change the spans."""


def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the packages in `OURS` and `KNOWN`.

    A package in `OURS` that is not installed has the version "not installed". A package in `KNOWN`
    that is not installed is left out.
    """
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # 30 ms

    found = {"python": platform.python_version(), "rag-eval-otel": semconv.VERSION}
    for name in (*OURS[1:], *KNOWN):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return {**dict.fromkeys(OURS, "not installed"), **found}


EXTRA = "tools"


def require(module: str, extra: str = EXTRA) -> Any:
    """Import and return ``module``.

    If ``module``, or another module that it imports, is not installed, raise
    `MissingDependencyError`. The error message names the one that is missing, and ``extra``, the
    optional dependencies of this package that contain it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(error.name or module, extra) from error
