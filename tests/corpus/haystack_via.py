"""The sources for Haystack, and the command that runs its applications with one.

    PYTHONPATH=tests python -m corpus.haystack_via --via haystack_native --json out.json

OpenLLMetry's instrumentation needs Haystack 2; Haystack's own tracing is the package
`opentelemetry-haystack` from Haystack 3 on, and a part of Haystack before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from rag_eval_otel import Handle

from .sources import PassedOn, Source


@contextmanager
def openinference() -> Iterator[Source]:
    """OpenInference's instrumentation."""
    from openinference.instrumentation.haystack import HaystackInstrumentor

    with _instrumented(HaystackInstrumentor()) as source:
        yield source


@contextmanager
def traceloop() -> Iterator[Source]:
    """OpenLLMetry's instrumentation, with Haystack 2's own tracing if available."""
    from opentelemetry.instrumentation.haystack import HaystackInstrumentor

    with _instrumented(HaystackInstrumentor()) as source:
        yield source


@contextmanager
def _instrumented(instrumentor: Any) -> Iterator[Source]:
    source = PassedOn()
    instrumentor.instrument(tracer_provider=source, skip_dep_check=True)
    try:
        yield source
    finally:
        instrumentor.uninstrument()


@contextmanager
def native() -> Iterator[Source]:
    """Haystack's own tracing, with content."""
    from haystack import tracing

    source = PassedOn()
    tracing.tracer.is_content_tracing_enabled = True
    tracing.enable_tracing(_native_tracer()(source.get_tracer("haystack")))
    try:
        yield source
    finally:
        tracing.disable_tracing()


def _native_tracer() -> Any:
    try:
        from haystack_integrations.tracing.opentelemetry import OpenTelemetryTracer
    except ModuleNotFoundError:
        from haystack.tracing.opentelemetry import OpenTelemetryTracer
    return OpenTelemetryTracer


class LangfuseTracing:
    """Langfuse's tracer for Haystack, with a client for every application."""

    def __init__(self) -> None:
        self._made = 0

    @contextmanager
    def watching(self, provider: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        """Enable the tracer for ``provider``."""
        import langfuse
        from haystack import tracing
        from haystack_integrations.tracing.langfuse import LangfuseTracer
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        del handle
        self._made += 1
        client = langfuse.Langfuse(
            public_key=f"corpus-haystack-{self._made}",
            secret_key="of-no-account",
            tracer_provider=provider,
            span_exporter=InMemorySpanExporter(),
        )
        tracing.tracer.is_content_tracing_enabled = True
        tracing.enable_tracing(LangfuseTracer(tracer=client, name="corpus"))
        try:
            yield {}
        finally:
            tracing.disable_tracing()
            client.shutdown()


@contextmanager
def langfuse() -> Iterator[Source]:
    """Langfuse's tracer."""
    yield LangfuseTracing()


SOURCES: dict[str, Callable[[], AbstractContextManager[Source]]] = {
    "haystack_native": native,
    "langfuse": langfuse,
    "openinference": openinference,
    "traceloop": traceloop,
}


def main(argv: Sequence[str]) -> int:
    """Run `corpus.run` with the sources of this module."""
    from . import run, sources

    sources.SOURCES.clear()
    sources.SOURCES.update(SOURCES)
    return run.main(["--framework", "haystack", *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
