"""Import optional packages, find imports under way, and look up versions of installed packages."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from types import FrameType
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


EXTRA = "dataset"


def require(module: str, extra: str = EXTRA) -> Any:
    """Import and return ``module``.

    If ``module`` is not installed, raise `MissingDependencyError`. The error message names
    ``extra``, the optional dependencies of this package that contain the module.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(module.partition(".")[0], extra) from error


IMPORT_FILE: Final = "<frozen importlib._bootstrap>"
"""The file that Python names in the frames of an import statement."""


def is_importing(frame: FrameType | None) -> bool:
    """Return True if the thread that runs ``frame`` is inside an import statement."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORT_FILE:
            return True
        frame = frame.f_back
    return False
