"""What OpenInference writes of LlamaIndex, read by our processor alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from apps import company
from e2e.checks import CHECKS, assert_refused, assert_scored
from e2e.llamaindex_app import HandbookEngine
from e2e.watched import Watched, watched

llama_index = pytest.importorskip("openinference.instrumentation.llama_index")
settings = pytest.importorskip("openinference.instrumentation")

pytestmark = pytest.mark.filterwarnings(  # its own affair
    "ignore:The `json` method is deprecated"
)


@pytest.fixture(scope="module")
def watch(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A provider that its instrumentation writes to, with the parameter's content hidden."""
    hidden = {request.param: True} if hasattr(request, "param") else {}
    instrumentor = llama_index.LlamaIndexInstrumentor()
    with watched() as found:
        config = settings.TraceConfig(**hidden)
        instrumentor.instrument(tracer_provider=found.provider, config=config)
        yield found
        instrumentor.uninstrument()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_spans_are_enough(watch: Watched, check: Callable[..., None]) -> None:
    """Scores once, spans once, and only what is scored waits."""
    check(watch, HandbookEngine())


def test_nodes_that_were_filtered_out_are_no_contexts(watch: Watched) -> None:
    """Of what was retrieved, only what a postprocessor has kept is in the sample."""
    assert_scored(watch, lambda: HandbookEngine().ask_filtered(company.FOUNDED), company.FOUNDED)


@pytest.mark.parametrize(
    "watch",
    ["hide_inputs", "hide_outputs", "hide_retrieval_documents"],
    indirect=True,
    scope="module",
)
def test_hidden_content_is_not_guessed(watch: Watched) -> None:
    """Where it hides content the turn is refused, though other spans may still show it."""
    assert_refused(watch, lambda: HandbookEngine().ask(company.FOUNDED), "redacted")
