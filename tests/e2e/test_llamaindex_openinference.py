"""OpenInference's spans of LlamaIndex, read by our processor alone."""

from typing import Any

import pytest

from apps import company
from e2e.checks import assert_refused, assert_scored, test_turns_are_scored_from_spans_alone  # noqa: F401
from e2e.llamaindex_app import HandbookEngine
from e2e.watched import Watched, instrumented

llama_index = pytest.importorskip("openinference.instrumentation.llama_index")
settings = pytest.importorskip("openinference.instrumentation")

pytestmark = pytest.mark.filterwarnings(  # a warning of the instrumentation
    "ignore:The `json` method is deprecated"
)
program = HandbookEngine


def trace(watch: Watched, hidden: str | None = None) -> Any:
    config = settings.TraceConfig(**({hidden: True} if hidden else {}))
    instrumentor = llama_index.LlamaIndexInstrumentor()
    return instrumented(instrumentor, tracer_provider=watch.provider, config=config)


def test_filtered_nodes_are_not_contexts(watch: Watched) -> None:
    """The sample holds only the retrieved nodes that a postprocessor has kept."""
    assert_scored(watch, lambda: HandbookEngine().ask_filtered(company.FOUNDED), company.FOUNDED)


@pytest.mark.parametrize(
    "watch",
    ["hide_inputs", "hide_outputs", "hide_retrieval_documents"],
    indirect=True,
    scope="module",
)
def test_hidden_content_is_refused(watch: Watched) -> None:
    """With hidden content the turn is refused, although other spans may show it."""
    assert_refused(watch, lambda: HandbookEngine().ask(company.FOUNDED), "redacted")
