"""OpenInference's spans of LangChain, read by our processor alone."""

from collections.abc import Callable, Iterator

import pytest

from apps import App, company
from e2e.checks import CHECKS, assert_refused
from e2e.langchain_apps import EACH_APP, HandbookChain, assert_truth
from e2e.watched import Watched, watched

langchain = pytest.importorskip("openinference.instrumentation.langchain")
settings = pytest.importorskip("openinference.instrumentation")

pytestmark = pytest.mark.filterwarnings(  # it reads message texts by a deprecated method
    "ignore:Calling .text.. as a method is deprecated"
)


@pytest.fixture(scope="module")
def watch(request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A provider for its instrumentation; the parameter names the hidden content."""
    hidden = {request.param: True} if hasattr(request, "param") else {}
    instrumentor = langchain.LangChainInstrumentor()
    with watched() as found:
        config = settings.TraceConfig(**hidden)
        instrumentor.instrument(tracer_provider=found.provider, config=config)
        yield found
        instrumentor.uninstrument()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_turns_are_scored_from_spans_alone(watch: Watched, check: Callable[..., None]) -> None:
    """Scores and spans arrive once, and only the turn's span waits for scores."""
    check(watch, HandbookChain())


@EACH_APP
def test_scored_turns_are_the_real_turns(watch: Watched, app: App) -> None:
    """Each app is scored exactly for its turns, and an app without turns is not scored."""
    assert_truth(watch, app)


@pytest.mark.parametrize(
    "watch",
    ["hide_inputs", "hide_outputs", "hide_retrieval_documents"],
    indirect=True,
    scope="module",
)
def test_hidden_content_is_refused(watch: Watched) -> None:
    """With hidden content the turn is refused, although other spans may show it."""
    assert_refused(watch, lambda: HandbookChain().ask(company.FOUNDED), "redacted")
