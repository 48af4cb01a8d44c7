"""OpenInference's spans of LangChain, read by our processor alone."""

from typing import Any

import pytest

from apps import company
from e2e.checks import assert_refused, test_turns_are_scored_from_spans_alone  # noqa: F401
from e2e.langchain_apps import HandbookChain
from e2e.watched import Watched, instrumented

langchain = pytest.importorskip("openinference.instrumentation.langchain")
settings = pytest.importorskip("openinference.instrumentation")

pytestmark = pytest.mark.filterwarnings(  # it reads message texts by a deprecated method
    "ignore:Calling .text.. as a method is deprecated"
)
program = HandbookChain


def trace(watch: Watched, hidden: str | None = None) -> Any:
    config = settings.TraceConfig(**({hidden: True} if hidden else {}))
    instrumentor = langchain.LangChainInstrumentor()
    return instrumented(instrumentor, tracer_provider=watch.provider, config=config)


@pytest.mark.parametrize(
    "watch",
    ["hide_inputs", "hide_outputs", "hide_retrieval_documents"],
    indirect=True,
    scope="module",
)
def test_hidden_content_is_refused(watch: Watched) -> None:
    """With hidden content the turn is refused, although other spans may show it."""
    assert_refused(watch, lambda: HandbookChain().ask(company.FOUNDED), "redacted")
