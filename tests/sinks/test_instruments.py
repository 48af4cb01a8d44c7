"""Scores, costs and outcomes as metrics, and the tally of outcomes."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from rag_eval_otel.sinks.instruments import InstrumentSink, Tally, outcome_of
from rag_eval_otel.types import Evaluation, Score, Usage

OK = Score(name="faithfulness", value=1, label="pass", version="v", explanation="x" * 2000)


UNDEFINED = Score(name="faithfulness", status="undefined", reason="no_claims")


FAILED = Score(name="context_relevance", status="error", reason="timeout")


NORMAL = Score(name="correctness", value=4, normalized=0.75, label="pass")


def test_outcomes_of_turns() -> None:
    """A turn is scored if any metric was; otherwise it failed or is unscored."""

    def outcome(*scores: Score) -> tuple[str, str | None]:
        return outcome_of(Evaluation(scores=scores))

    assert outcome(OK) == ("scored", None)
    assert outcome(OK, FAILED) == ("scored", "timeout")
    assert outcome(UNDEFINED, FAILED) == ("error", "timeout")
    assert outcome(UNDEFINED) == ("unscored", "no_claims")


def recorded(evaluation: Evaluation) -> dict[str, Any]:
    """Return the points that an instrument sink records for ``evaluation``, by instrument."""
    reader = InMemoryMetricReader()
    InstrumentSink(MeterProvider([reader])).emit(evaluation)
    data = reader.get_metrics_data()
    assert data is not None
    found = data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: list(metric.data.data_points) for metric in found}


def test_requests_and_tokens_are_counted() -> None:
    """They are counted by judge; unused instruments have no point."""
    usage = Usage(judge_requests=4, prompt_tokens=100, completion_tokens=9, embedding_requests=1)
    points = recorded(Evaluation(scores=(OK,), judge="m", usage=usage, lag=0.5))
    assert [p.value for p in points["rag.evaluation.judge.calls"]] == [4]
    tokens = points["rag.evaluation.judge.tokens"]
    assert {p.attributes["gen_ai.token.type"]: p.value for p in tokens} == {
        "input": 100,
        "output": 9,
    }
    assert [p.value for p in points["rag.evaluation.embedding.calls"]] == [1]
    assert points["rag.evaluation.lag"][0].sum == 0.5
    bare = recorded(Evaluation(scores=(UNDEFINED, Score(name="x", value=0.5))))
    assert "rag.evaluation.judge.calls" not in bare
    assert "rag.evaluation.lag" not in bare
    assert dict(bare["rag.evaluation.score"][0].attributes) == {"gen_ai.evaluation.name": "x"}


def test_the_histogram_records_the_normalized_score() -> None:
    """The score itself may lie outside the buckets."""
    evaluation = Evaluation(scores=(Score(name="correctness", value=4, normalized=0.75),))
    assert recorded(evaluation)["rag.evaluation.score"][0].sum == 0.75


def test_histograms_have_one_scale() -> None:
    """The buckets cover [0, 1]; normalized scores are recorded, including 0."""
    zero = Score(name="rubric", value=1, normalized=0.0)
    points = recorded(Evaluation(scores=(OK, NORMAL, zero)))["rag.evaluation.score"]
    assert {p.attributes["gen_ai.evaluation.name"]: p.sum for p in points} == {
        "faithfulness": 1.0,
        "correctness": 0.75,
        "rubric": 0.0,
    }


def test_points_of_names_with_a_lone_surrogate_are_exported() -> None:
    """A server's name of a model is made encodable."""
    odd = Evaluation(scores=(replace(OK, version="v/\ud800"),), judge="\ud800m")
    assert recorded(odd)["rag.evaluation.score"][0].attributes["rag.evaluation.judge"] == "?m"


def test_counts_are_kept_by_kind_and_name() -> None:
    """The returned mapping is a copy."""
    tally = Tally()
    tally.add("turn", "scored")
    tally.add("turn", "scored", number=2)
    tally.add("failure", "sink")
    seen = tally.of("turn")
    tally.add("turn", "scored")
    assert (seen, tally.of("failure"), tally.of("source")) == ({"scored": 3}, {"sink": 1}, {})


def test_counting_is_thread_safe() -> None:
    """No count of four threads is lost."""
    tally = Tally()

    def count() -> None:
        for _ in range(2000):
            tally.add("turn", "scored")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.of("turn") == {"scored": 8000}


def test_the_tally_has_the_counts_of_the_instruments() -> None:
    """The names include the reason."""
    sink = InstrumentSink()
    sink.turn("skipped", "redacted")
    sink.turn("scored")
    sink.internal_error("on_end")
    assert sink.tally.of("turn") == {"skipped redacted": 1, "scored": 1}
    assert sink.tally.of("failure") == {"on_end": 1}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_begins_at_zero() -> None:
    """The counts of the parent are not inherited."""
    tally = Tally()
    tally.add("turn", "scored")
    child = os.fork()
    if not child:
        os._exit(len(tally.of("turn")))
    assert os.waitpid(child, 0)[1] == 0
    assert tally.of("turn") == {"scored": 1}


def test_money_is_counted_by_metric_and_judge() -> None:
    """The counter has the cost of each score, and nothing for a score without tokens."""
    paid = Score(name="faithfulness", value=1, cost=0.25)
    usage = Usage(prompt_tokens=1, embedding_tokens=7)
    found = recorded(
        Evaluation(scores=(paid, OK), judge="m", usage=usage, cost=0.25, currency="EUR")
    )
    (point,) = found["rag.evaluation.judge.cost"]
    assert point.value == 0.25
    assert dict(point.attributes) == {
        "gen_ai.evaluation.name": "faithfulness",
        "rag.evaluation.judge": "m",
        "rag.evaluation.currency": "EUR",
    }
    assert [p.value for p in found["rag.evaluation.embedding.tokens"]] == [7]
