"""OpenInference's spans of LlamaIndex, read by our processor alone."""

from collections.abc import Callable, Iterator

import pytest

from apps import company
from e2e.checks import CHECKS, assert_refused, assert_scored
from e2e.llamaindex_app import HandbookEngine
from e2e.watched import Watched, watched

llama_index = pytest.importorskip("openinference.instrumentation.llama_index")
settings = pytest.importorskip("openinference.instrumentation")

pytestmark = pytest.mark.filterwarnings(  # a warning of the instrumentation
    "ignore:The `json` method is deprecated"
)


@pytest.fixture(scope="module")
def watch(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A provider for its instrumentation; the parameter names the hidden content."""
    hidden = {request.param: True} if hasattr(request, "param") else {}
    instrumentor = llama_index.LlamaIndexInstrumentor()
    with watched() as found:
        config = settings.TraceConfig(**hidden)
        instrumentor.instrument(tracer_provider=found.provider, config=config)
        yield found
        instrumentor.uninstrument()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_turns_are_scored_from_spans_alone(watch: Watched, check: Callable[..., None]) -> None:
    """Scores and spans arrive once, and only the turn's span waits for scores."""
    check(watch, HandbookEngine())


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
