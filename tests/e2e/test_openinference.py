"""Scores beside OpenInference's spans of LangChain, OpenAI and HTTP."""

from collections.abc import Callable

import pytest

from e2e import beside

langchain = pytest.importorskip("openinference.instrumentation.langchain")
openai = pytest.importorskip("openinference.instrumentation.openai")


@pytest.fixture(scope="module")
def runs() -> dict[str, beside.Seen]:
    return beside.run_beside([langchain.LangChainInstrumentor(), openai.OpenAIInstrumentor()])


@pytest.fixture(params=beside.PROTOCOLS)
def seen(request: pytest.FixtureRequest, runs: dict[str, beside.Seen]) -> beside.Seen:
    return runs[request.param]


@pytest.mark.parametrize("check", beside.CHECKS, ids=lambda check: check.__name__)
def test_beside(seen: beside.Seen, check: Callable[[beside.Seen], None]) -> None:
    """Scores and spans arrive once, without spans of the judge."""
    check(seen)


def test_instrumentation_spans_arrive(seen: beside.Seen) -> None:
    """Each request to the app's model has two spans: LangChain's and OpenAI's."""
    for scope in (
        "openinference.instrumentation.langchain",
        "openinference.instrumentation.openai",
    ):
        spans = seen.of_scope(scope)
        calls = [s for s in spans if s.attributes.get("openinference.span.kind") == "LLM"]
        assert len(calls) == len(seen.app.requests)
