"""What OpenInference writes of LangChain, read by our processor alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from apps import App, company
from e2e.checks import CHECKS, assert_refused
from e2e.langchain_apps import EACH_APP, HandbookChain, assert_truth
from e2e.watched import Watched, watched

langchain = pytest.importorskip("openinference.instrumentation.langchain")
settings = pytest.importorskip("openinference.instrumentation")

pytestmark = pytest.mark.filterwarnings(  # it asks each message for its text, the old way
    "ignore:Calling .text.. as a method is deprecated"
)


@pytest.fixture(scope="module")
def watch(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A provider that its instrumentation writes to, with the parameter's content hidden."""
    hidden = {request.param: True} if hasattr(request, "param") else {}
    instrumentor = langchain.LangChainInstrumentor()
    with watched() as found:
        config = settings.TraceConfig(**hidden)
        instrumentor.instrument(tracer_provider=found.provider, config=config)
        yield found
        instrumentor.uninstrument()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_spans_are_enough(watch: Watched, check: Callable[..., None]) -> None:
    """Scores once, spans once, and only what is scored waits."""
    check(watch, HandbookChain())


@EACH_APP
def test_what_is_scored_is_what_happened(watch: Watched, app: App) -> None:
    """Every app that holds turns is scored for them, and no other."""
    assert_truth(watch, app)


@pytest.mark.parametrize(
    "watch",
    ["hide_inputs", "hide_outputs", "hide_retrieval_documents"],
    indirect=True,
    scope="module",
)
def test_hidden_content_is_not_guessed(watch: Watched) -> None:
    """Where it hides content the turn is refused, though other spans may still show it."""
    assert_refused(watch, lambda: HandbookChain().ask(company.FOUNDED), "redacted")
