"""Scores beside OpenLLMetry's spans of LangChain and HTTP."""

from collections.abc import Callable

import pytest

from e2e import beside

langchain = pytest.importorskip("opentelemetry.instrumentation.langchain")
openai = pytest.importorskip("opentelemetry.instrumentation.openai")

pytestmark = pytest.mark.filterwarnings(  # a warning of the instrumentation
    "ignore:Support for class-based `config` is deprecated"
)


@pytest.fixture(scope="module")
def runs() -> dict[str, beside.Seen]:
    return beside.run_beside([langchain.LangchainInstrumentor(), openai.OpenAIInstrumentor()])


@pytest.fixture(params=beside.PROTOCOLS)
def seen(request: pytest.FixtureRequest, runs: dict[str, beside.Seen]) -> beside.Seen:
    return runs[request.param]


@pytest.mark.parametrize("check", beside.CHECKS, ids=lambda check: check.__name__)
def test_beside(seen: beside.Seen, check: Callable[[beside.Seen], None]) -> None:
    """Scores and spans arrive once, without spans of the judge."""
    check(seen)


def test_instrumentation_spans_arrive(seen: beside.Seen) -> None:
    """Each request to the app's model has one span: LangChain's suppresses OpenAI's."""
    spans = seen.of_scope("opentelemetry.instrumentation.langchain")
    calls = [span for span in spans if span.attributes.get("gen_ai.request.model")]
    assert len(calls) == len(seen.app.requests)
