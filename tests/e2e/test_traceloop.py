"""Beside OpenLLMetry: its spans of LangChain and HTTP, and our scores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e import beside

langchain = pytest.importorskip("opentelemetry.instrumentation.langchain")
openai = pytest.importorskip("opentelemetry.instrumentation.openai")

pytestmark = pytest.mark.filterwarnings(  # its own affair
    "ignore:Support for class-based `config` is deprecated"
)


@pytest.fixture(scope="module")
def runs() -> dict[str, beside.Seen]:
    """Run the turns once."""
    return beside.run_beside([langchain.LangchainInstrumentor(), openai.OpenAIInstrumentor()])


@pytest.fixture(params=beside.PROTOCOLS)
def seen(request: pytest.FixtureRequest, runs: dict[str, beside.Seen]) -> beside.Seen:
    """What arrived over each protocol."""
    return runs[request.param]


@pytest.mark.parametrize("check", beside.CHECKS, ids=lambda check: check.__name__)
def test_beside(seen: beside.Seen, check: Callable[[beside.Seen], None]) -> None:
    """Scores once, spans once, none of the judge's."""
    check(seen)


def test_its_spans_are_there(seen: beside.Seen) -> None:
    """Of each request to the app's model OpenLLMetry has one span: LangChain's hides OpenAI's."""
    spans = seen.of_scope("opentelemetry.instrumentation.langchain")
    calls = [span for span in spans if span.attributes.get("gen_ai.request.model")]
    assert len(calls) == len(seen.app.requests)
