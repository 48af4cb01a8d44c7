"""The instrumentor: scoring an application that knows nothing of us."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps.parts import rag
from live import STATUS, usual_options
from rag_eval_otel.live import instrumentor as live_instrumentor
from rag_eval_otel.live.instrumentor import RagEvalInstrumentor

QUESTION = "When was Borealis Kites founded?"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def instrumentor() -> Iterator[RagEvalInstrumentor]:
    made = RagEvalInstrumentor()
    yield made
    if made.is_instrumented_by_opentelemetry:
        made.uninstrument()


def instrument(instrumentor: RagEvalInstrumentor, exporter: Any, **options: Any) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(
        tracer_provider=provider, skip_dep_check=True, **usual_options(**options)
    )


def test_chains_are_scored_without_a_callback(
    instrumentor: RagEvalInstrumentor, exporter: InMemorySpanExporter
) -> None:
    """A chain that is given nothing is captured and scored, until it is uninstrumented."""
    instrument(instrumentor, exporter)
    rag().invoke(QUESTION)
    instrumentor.uninstrument()
    rag().invoke(QUESTION)
    spans = exporter.get_finished_spans()
    statuses = [(span.attributes or {}).get(STATUS) for span in spans]
    assert sorted(statuses, key=str) == [None, None, "scored"]


class OtherInstrumentor:
    """An instrumentor of another project that traces LangChain, as `BaseInstrumentor` does."""

    _instance: Any = None
    is_instrumented_by_opentelemetry = True


@pytest.mark.parametrize(("other", "spans"), [(OtherInstrumentor(), 0), (None, 2)])
def test_runs_are_not_traced_beside_another_instrumentor(
    other: OtherInstrumentor | None,
    spans: int,
    *,
    instrumentor: RagEvalInstrumentor,
    exporter: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If another one traces LangChain, no run is traced a second time, and one warning says so."""
    module = ModuleType("other.instrumentation.langchain")
    module.OtherInstrumentor = OtherInstrumentor  # type: ignore[attr-defined]
    monkeypatch.setattr(OtherInstrumentor, "_instance", other)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = EntryPoint("langchain", f"{module.__name__}:OtherInstrumentor", "")
    monkeypatch.setattr(live_instrumentor, "entry_points", lambda group: [entry])
    instrument(instrumentor, exporter)
    for _ in range(2):
        rag().invoke(QUESTION)
    instrumentor.uninstrument()
    roots = [span for span in exporter.get_finished_spans() if span.parent is None]
    assert len(roots) == spans
    assert caplog.text.count("add 'langchain' to OTEL_PYTHON_DISABLED") == (other is not None)


def test_entry_point_leads_here() -> None:
    """``opentelemetry-instrument`` finds the instrumentor by its entry point."""
    found = entry_points(group="opentelemetry_instrumentor", name="rag_eval_otel")
    if not found:
        pytest.skip("the package is not installed in this environment")
    assert next(iter(found)).load() is RagEvalInstrumentor
    assert RagEvalInstrumentor().instrumentation_dependencies() == ("langchain-core >= 0.3",)
