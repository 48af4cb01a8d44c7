"""OpenLLMetry's spans of LangChain, read by our processor alone."""

from typing import Any

import pytest

from apps import company
from e2e.checks import assert_refused, test_turns_are_scored_from_spans_alone  # noqa: F401
from e2e.langchain_apps import HandbookChain
from e2e.watched import Watched, instrumented

langchain = pytest.importorskip("opentelemetry.instrumentation.langchain")

pytestmark = pytest.mark.filterwarnings(  # a warning of the instrumentation
    "ignore:Support for class-based `config` is deprecated"
)
program = HandbookChain


def trace(watch: Watched) -> Any:
    return instrumented(langchain.LangchainInstrumentor(), tracer_provider=watch.provider)


def test_hidden_content_is_refused(watch: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidden content the turn is refused."""
    monkeypatch.setenv("TRACELOOP_TRACE_CONTENT", "false")
    assert_refused(watch, lambda: HandbookChain().ask(company.FOUNDED), "no_answer")
