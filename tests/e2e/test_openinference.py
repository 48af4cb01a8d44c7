"""Scores beside OpenInference's spans of LangChain, OpenAI and HTTP."""

import pytest

from e2e.beside import Seen, runs, seen, test_beside  # noqa: F401

langchain = pytest.importorskip("openinference.instrumentation.langchain")
openai = pytest.importorskip("openinference.instrumentation.openai")


def instrumentors() -> list[object]:
    return [langchain.LangChainInstrumentor(), openai.OpenAIInstrumentor()]


def test_instrumentation_spans_arrive(seen: Seen) -> None:  # noqa: F811
    """Each request to the app's model has two spans: LangChain's and OpenAI's."""
    for library in ("langchain", "openai"):
        spans = seen.of_scope(f"openinference.instrumentation.{library}")
        calls = [s for s in spans if s.attributes.get("openinference.span.kind") == "LLM"]
        assert len(calls) == len(seen.app.requests)
