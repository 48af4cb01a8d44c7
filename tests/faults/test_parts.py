"""Faults of the parts around an evaluation: metrics, callbacks, samplers."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
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

from apps.parts import rag
from live import App, Row, attached, remote
from parallel import at_once
from rag_eval_otel.metrics.custom import FunctionMetric
from rag_eval_otel.types import Sample

PATIENCE = 60.0


def drain(app: App) -> None:
    app.pipeline.submit_ended()
    assert app.pipeline.store.wait_left(2 * PATIENCE)
    app.handle.flush(PATIENCE)


def raising(sample: Sample) -> float:
    raise ZeroDivisionError(sample.answer)


async def hanging(_: Sample) -> float:
    await asyncio.Event().wait()
    return 1.0


def text(_: Sample) -> Any:
    return "0.5"


def coroutine(_: Sample) -> Any:
    return hanging


METRICS = (raising, hanging, text, coroutine)


@pytest.mark.slow
@pytest.mark.fault(26, expected="the metric has no score and a reason, the others are scored")
@pytest.mark.parametrize("bad", METRICS, ids=[one.__name__ for one in METRICS])
def test_fault_26_a_metric_raises_hangs_or_returns_another_type(
    bad: Callable[[Sample], Any], row: Row
) -> None:
    """Each turn has the score of the metric beside the bad one, and no text is in the log."""
    metric = FunctionMetric(function=bad, timeout=0.5)
    options = {"evaluation_timeout": 600.0, "raise_errors": False}
    with attached(metrics=["context_relevance", metric], **options) as app:
        for number in range(8):
            app.turn(number)
        drain(app)
        row.check(app, turns=8, spans=24, secrets=["founded by Ada"])
        spans = [span.attributes or {} for span in app.exported() if span.name == "chain"]
    names = {
        key.split(".")[2]
        for span in spans
        for key in span
        if key[:4] == "rag." and key[-6:] == ".score"
    }
    reasons = {span.get(f"rag.evaluation.{bad.__name__}.reason") for span in spans}
    assert names == {"context_relevance"}
    assert len(reasons - {None}) == 1
    row.measured(f"reason of the metric {bad.__name__}", *reasons)


@pytest.mark.slow
@pytest.mark.fault(28, expected="64 threads with nested chains: one evaluation for each root run")
def test_fault_28_nested_chains_in_64_threads(row: Row) -> None:
    """The handler is passed to the outer chain and to the chain in it."""
    with attached() as app:
        callbacks = {"callbacks": [app.handle.callback]}
        inner = rag().with_config(callbacks=[app.handle.callback])
        outer = RunnableLambda(inner.invoke) | RunnableLambda(str.upper)
        together = threading.Barrier(64)

        def work() -> None:
            together.wait(PATIENCE)
            outer.invoke("When was Borealis Kites founded?", callbacks)

        at_once(*[work] * 64)
        drain(app)
        row.check(app, turns=64)
        evaluated = sum(app.scored_spans().values())
    row.measured("evaluations of 64 turns", evaluated)
    assert evaluated == 64


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
