"""Scores beside OpenLLMetry's spans of LangChain and HTTP."""

import pytest

from e2e.beside import Seen, runs, seen, test_beside  # noqa: F401

langchain = pytest.importorskip("opentelemetry.instrumentation.langchain")
openai = pytest.importorskip("opentelemetry.instrumentation.openai")

pytestmark = pytest.mark.filterwarnings(  # a warning of the instrumentation
    "ignore:Support for class-based `config` is deprecated"
)


def instrumentors() -> list[object]:
    return [langchain.LangchainInstrumentor(), openai.OpenAIInstrumentor()]


def test_instrumentation_spans_arrive(seen: Seen) -> None:  # noqa: F811
    """Each request to the app's model has one span: LangChain's suppresses OpenAI's."""
    spans = seen.of_scope("opentelemetry.instrumentation.langchain")
    calls = [span for span in spans if span.attributes.get("gen_ai.request.model")]
    assert len(calls) == len(seen.app.requests)
