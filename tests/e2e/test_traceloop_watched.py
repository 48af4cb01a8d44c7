"""What OpenLLMetry writes of LangChain, read by our processor alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from apps import App, company
from e2e.checks import CHECKS, assert_refused
from e2e.langchain_apps import EACH_APP, HandbookChain, assert_truth
from e2e.watched import Watched, watched

langchain = pytest.importorskip("opentelemetry.instrumentation.langchain")

pytestmark = pytest.mark.filterwarnings(  # its own affair
    "ignore:Support for class-based `config` is deprecated"
)


@pytest.fixture(scope="module")
def watch() -> Iterator[Watched]:
    """A provider that its instrumentation writes to."""
    instrumentor = langchain.LangchainInstrumentor()
    with watched() as found:
        instrumentor.instrument(tracer_provider=found.provider)
        yield found
        instrumentor.uninstrument()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_spans_are_enough(watch: Watched, check: Callable[..., None]) -> None:
    """Scores once, spans once, and only what is scored waits."""
    check(watch, HandbookChain())


def test_hidden_content_is_not_guessed(watch: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it hides content the turn is refused."""
    monkeypatch.setenv("TRACELOOP_TRACE_CONTENT", "false")
    assert_refused(watch, lambda: HandbookChain().ask(company.FOUNDED), "no_answer")


@EACH_APP
def test_what_is_scored_is_what_happened(watch: Watched, app: App) -> None:
    """Every app that holds turns is scored for them, and no other."""
    assert_truth(watch, app)
