"""Spans that no exporter gets: they cost no evaluation."""

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    StaticSampler,
)

from live import App, Row, attached, remote

PATIENCE = 60.0


def drain(app: App) -> None:
    app.pipeline.submit_ended()
    assert app.pipeline.store.wait_left(2 * PATIENCE)
    app.handle.flush(PATIENCE)


def turn_below(app: App, context: Context) -> None:
    request = app.provider.get_tracer("web").start_span("request", context=context)
    app.turn(1, request)
    request.end()


@pytest.mark.fault(40, expected="unsampled remote parent, spans that are only recorded: no scores")
@pytest.mark.parametrize(
    ("sampler", "flags"),
    [(ParentBased(ALWAYS_ON), 0), (StaticSampler(Decision.RECORD_ONLY), 1), (ALWAYS_OFF, 1)],
    ids=["unsampled remote parent", "only recorded", "not sampled"],
)
def test_fault_40_spans_that_are_not_exported(sampler: Sampler, flags: int, row: Row) -> None:
    """No exporter gets such spans, so no judge is paid for them."""
    with attached(provider=TracerProvider(sampler=sampler)) as app:
        turn_below(app, remote(flags))
        drain(app)
        turns = sum(app.counted().values())
        row.check(app, turns=turns, spans=0)
        counted = row.counted(app)
        assert not app.scored_spans()
    assert not [outcome for outcome, _ in counted if outcome == "scored"]
