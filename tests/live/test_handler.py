"""`RagEvalCallbackHandler`: it attaches at its first run, once, and shares a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from live import usual_options
from parallel import at_once
from rag_eval_otel import RagEvalCallbackHandler
from rag_eval_otel.errors import ConfigError
from runs import run_chain


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    """Have a global tracer provider."""
    made = TracerProvider()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made)
    yield made
    made.shutdown()


def test_handlers_share_a_pipeline(
    provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers made before there is a provider find the global one at their first run."""
    with monkeypatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", None)
        first, second = (RagEvalCallbackHandler(**usual_options()) for _ in range(2))
    first.shutdown()  # no effect yet
    for handler in (first, second):
        run_chain(handler, "rag")
    assert first.flush(60)
    assert first.stats == second.stats
    assert second.stats.turns == {"scored": 2}
    first.shutdown(0.0)
    run_chain(second, "rag")
    assert second.stats.turns == {"scored": 2, "dropped shutdown": 1}


@pytest.mark.usefixtures("provider")
def test_a_handler_is_first_used_on_several_threads() -> None:
    """It attaches once, and captures the run of each thread."""
    handler = RagEvalCallbackHandler(**usual_options())
    at_once(*(partial(run_chain, handler, "rag") for _ in range(8)))
    assert handler.flush()
    assert handler.stats.turns == {"scored": 8}
    handler.shutdown()


def test_attaching_that_fails_is_not_tried_at_every_event(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Exporters are made once, not for each event of each run; the developer may ask why."""
    made: list[str] = []

    def broken() -> Any:
        made.append("provider")
        msg = "no such exporter"
        raise ConfigError(msg)

    monkeypatch.setattr("rag_eval_otel.live.instrument.global_or_new_tracer_provider", broken)
    handler = RagEvalCallbackHandler(**usual_options(raise_errors=False))
    for _ in range(2):
        run_chain(handler, "rag")
    assert made == ["provider"]
    assert "the application is unaffected" in caplog.text
    with pytest.raises(ConfigError, match="no such exporter"):
        handler.flush()


def test_the_sdk_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``OTEL_SDK_DISABLED``, LangChain does not call the handler."""
    assert RagEvalCallbackHandler().enabled
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not RagEvalCallbackHandler().enabled
