"""OpenLLMetry's spans of LangChain, read by our processor alone."""

from collections.abc import Callable, Iterator

import pytest

from apps import App, company
from e2e.checks import CHECKS, assert_refused
from e2e.langchain_apps import EACH_APP, HandbookChain, assert_truth
from e2e.watched import Watched, watched

langchain = pytest.importorskip("opentelemetry.instrumentation.langchain")

pytestmark = pytest.mark.filterwarnings(  # a warning of the instrumentation
    "ignore:Support for class-based `config` is deprecated"
)


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """A provider for its instrumentation."""
    instrumentor = langchain.LangchainInstrumentor()
    with watched() as found:
        instrumentor.instrument(tracer_provider=found.provider)
        yield found
        instrumentor.uninstrument()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_turns_are_scored_from_spans_alone(watch: Watched, check: Callable[..., None]) -> None:
    """Scores and spans arrive once, and only the turn's span waits for scores."""
    check(watch, HandbookChain())


def test_hidden_content_is_refused(watch: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidden content the turn is refused."""
    monkeypatch.setenv("TRACELOOP_TRACE_CONTENT", "false")
    assert_refused(watch, lambda: HandbookChain().ask(company.FOUNDED), "no_answer")


@EACH_APP
def test_scored_turns_are_the_real_turns(watch: Watched, app: App) -> None:
    """Each app is scored exactly for its turns, and an app without turns is not scored."""
    assert_truth(watch, app)
