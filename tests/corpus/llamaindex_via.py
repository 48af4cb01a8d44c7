"""The sources for LlamaIndex, and the command that runs its applications with one.

    PYTHONPATH=tests python -m corpus.llamaindex_via --via openinference --json out.json

`opentelemetry-instrumentation-llamaindex` and LlamaIndex's own tracing cannot be switched off, so
a process runs one way of capture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from rag_eval_otel import Handle

from .sources import PassedOn, Source


class PassedOnSdk(TracerProvider):
    """A delegating provider of the SDK's class, for instrumentations that require it."""

    def __init__(self, source: PassedOn) -> None:
        super().__init__(shutdown_on_exit=False)
        self._source = source

    def get_tracer(self, *args: Any, **kwargs: Any) -> Tracer:
        """Return the source's tracer."""
        return self._source.get_tracer(*args, **kwargs)


@contextmanager
def openinference() -> Iterator[Source]:
    """OpenInference's instrumentation."""
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

    source, instrumentor = PassedOn(), LlamaIndexInstrumentor()
    instrumentor.instrument(tracer_provider=source, skip_dep_check=True)
    try:
        yield source
    finally:
        instrumentor.uninstrument()


@contextmanager
def traceloop() -> Iterator[Source]:
    """OpenLLMetry's instrumentation."""
    from opentelemetry.instrumentation.llamaindex import LlamaIndexInstrumentor

    source = PassedOn()
    LlamaIndexInstrumentor().instrument(tracer_provider=source)
    yield source


@contextmanager
def native() -> Iterator[Source]:
    """LlamaIndex's own tracing with a no-op exporter."""
    from llama_index.observability.otel import LlamaIndexOpenTelemetry

    source = PassedOn()
    LlamaIndexOpenTelemetry(
        tracer_provider=PassedOnSdk(source), span_exporter=InMemorySpanExporter()
    ).start_registering()
    yield source


class LangfuseBeside:
    """Langfuse's client on OpenInference's provider, as in its guide."""

    def __init__(self, source: Source) -> None:
        self._source, self._made = source, 0

    @contextmanager
    def watching(self, provider: TracerProvider, handle: Handle) -> Iterator[dict[str, Any]]:
        """Add a client to ``provider``."""
        import langfuse

        self._made += 1
        client = langfuse.Langfuse(
            public_key=f"corpus-llamaindex-{self._made}",
            secret_key="of-no-account",
            tracer_provider=provider,
            span_exporter=InMemorySpanExporter(),
        )
        try:
            with self._source.watching(provider, handle) as config:
                yield config
        finally:
            client.shutdown()


@contextmanager
def langfuse() -> Iterator[Source]:
    """Langfuse with OpenInference's LlamaIndex instrumentation."""
    with openinference() as source:
        yield LangfuseBeside(source)


SOURCES: dict[str, Callable[[], AbstractContextManager[Source]]] = {
    "langfuse": langfuse,
    "llamaindex_native": native,
    "openinference": openinference,
    "traceloop": traceloop,
}


def main(argv: Sequence[str]) -> int:
    """Run `corpus.run` with the sources of this module."""
    from . import run, sources

    sources.SOURCES.clear()
    sources.SOURCES.update(SOURCES)
    return run.main(["--framework", "llamaindex", *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
