"""Scores as attributes and metrics: leaves only, finite only, nothing evicted."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span

from rag_eval_otel.sinks.attributes import MAX_EXPLANATION, enrich, score_attributes, span_context
from rag_eval_otel.sinks.events import EventSink
from rag_eval_otel.sinks.instruments import InstrumentSink, outcome_of
from rag_eval_otel.types import UNTOUCHED, Ending, Evaluation, Score, SpanRef, Usage

OK = Score(name="faithfulness", value=1, label="pass", version="v", explanation="x" * 2000)
UNDEFINED = Score(name="faithfulness", status="undefined", reason="no_claims")
FAILED = Score(name="context_relevance", status="error", reason="timeout")

SCORES = st.one_of(
    st.builds(
        Score,
        name=st.sampled_from(["a", "b_c"]),
        value=st.floats(allow_nan=False, allow_infinity=False),
        label=st.sampled_from([None, "pass", "fail"]),
        explanation=st.none() | st.text(),
    ),
    st.just(UNDEFINED),
    st.just(FAILED),
)


def ended(limit: int | None = None, attributes: int = 0) -> ReadableSpan:
    """Return an ended span with so many attributes, under a limit."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(max_span_attributes=limit))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = provider.get_tracer("t").start_span("s")
    for i in range(attributes):
        span.set_attribute(f"key{i}", i)
    span.end()
    return exporter.get_finished_spans()[0]


def ending_of(evaluation: Evaluation) -> Ending:
    """Return the ending of a turn that got ``evaluation``."""
    return Ending(evaluation.status, evaluation=evaluation)


@given(st.lists(SCORES, max_size=4))
def test_attributes_are_leaves_and_finite(scores: list[Score]) -> None:
    """No attribute is a namespace of another, none is an array, every score a finite float."""
    found = score_attributes(ending_of(Evaluation(scores=tuple(scores))), explanations="on")
    for key, value in found.items():
        assert isinstance(value, str | float)
        assert not any(other.startswith(f"{key}.") for other in found)
        if key.endswith(".score"):
            assert isinstance(value, float)
            assert math.isfinite(value)


def test_explanations_are_opt_in_and_cut() -> None:
    """What quotes user data is exported on request only, and not without end."""
    evaluation = Evaluation(scores=(OK,))
    key = "rag.evaluation.faithfulness.explanation"
    assert key not in score_attributes(ending_of(evaluation))
    assert score_attributes(ending_of(evaluation), explanations="on")[key] == "x" * MAX_EXPLANATION


def test_without_an_evaluation_there_is_the_status() -> None:
    """A span that was given up says why, and nothing else."""
    assert score_attributes(Ending("timeout")) == {"rag.evaluation.status": "timeout"}


def test_a_refusal_says_why() -> None:
    """Status and reason are all that a skipped turn leaves; what has no status leaves nothing."""
    assert score_attributes(Ending("skipped", "no_answer")) == {
        "rag.evaluation.status": "skipped",
        "rag.evaluation.reason": "no_answer",
    }
    assert score_attributes(UNTOUCHED) == {}


def test_failed_scores_have_a_reason_and_no_number() -> None:
    """An undefined or failed metric leaves its reason and no score attribute."""
    found = score_attributes(ending_of(Evaluation(scores=(UNDEFINED, FAILED))))
    assert found == {
        "rag.evaluation.status": "error",
        "rag.evaluation.duration": 0.0,
        "rag.evaluation.faithfulness.reason": "no_claims",
        "rag.evaluation.context_relevance.reason": "timeout",
    }


@given(limit=st.integers(1, 8), count=st.integers(0, 12))
def test_enriching_keeps_all_and_touches_nothing(limit: int, count: int) -> None:
    """The copy has every attribute of the original and ours; dropped counts and original stay."""
    span = ended(limit, count)
    before = dict(span.attributes or {})
    copy = enrich(span, {"rag.evaluation.status": "scored"})
    assert dict(copy.attributes or {}) == {**before, "rag.evaluation.status": "scored"}
    assert copy.dropped_attributes == span.dropped_attributes == max(0, count - limit)
    assert dict(span.attributes or {}) == before
    for name in ("name", "context", "parent", "resource", "events", "links", "kind", "status"):
        assert getattr(copy, name) == getattr(span, name)
    assert (copy.start_time, copy.end_time) == (span.start_time, span.end_time)
    assert copy.instrumentation_scope == span.instrumentation_scope


def test_outcomes() -> None:
    """A turn is scored if any metric was; else it failed, or the judge was of no use."""

    def outcome(*scores: Score) -> tuple[str, str | None]:
        return outcome_of(Evaluation(scores=scores))

    assert outcome(OK) == ("scored", None)
    assert outcome(OK, FAILED) == ("scored", "timeout")
    assert outcome(UNDEFINED, FAILED) == ("error", "timeout")
    assert outcome(UNDEFINED) == ("unscored", "no_claims")


def recorded(evaluation: Evaluation) -> dict[str, Any]:
    """Return the points an instrument sink makes of ``evaluation``, by instrument."""
    reader = InMemoryMetricReader()
    InstrumentSink(MeterProvider([reader])).emit(evaluation)
    data = reader.get_metrics_data()
    assert data is not None
    found = data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: list(metric.data.data_points) for metric in found}


def test_cost_is_counted() -> None:
    """Requests and tokens are counted by judge; what was not used leaves no point."""
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


def test_other_scales_are_brought_to_one_for_the_histogram() -> None:
    """The span has the score on its own scale and on [0, 1]; the buckets get the latter."""
    evaluation = Evaluation(scores=(Score(name="correctness", value=4, normalized=0.75),))
    attributes = score_attributes(ending_of(evaluation))
    assert attributes["rag.evaluation.correctness.score"] == 4.0
    assert attributes["rag.evaluation.correctness.normalized_score"] == 0.75
    assert recorded(evaluation)["rag.evaluation.score"][0].sum == 0.75


def test_reference_becomes_the_current_span() -> None:
    """An evaluated span can be referred to after it has ended; none is no span."""
    span = get_current_span(span_context(SpanRef(trace_id=7, span_id=8))).get_span_context()
    assert (span.trace_id, span.span_id, span.trace_flags) == (7, 8, 1)
    assert not get_current_span(span_context(None)).get_span_context().is_valid


NORMAL = Score(name="correctness", value=4, normalized=0.75, label="pass")


def test_other_scales_are_on_the_span_both_ways() -> None:
    """The score as people know it, and the same on [0, 1] beside it; never the latter alone."""
    found = score_attributes(ending_of(Evaluation(scores=(OK, NORMAL))))
    assert found["rag.evaluation.correctness.score"] == 4.0
    assert found["rag.evaluation.correctness.normalized_score"] == 0.75
    assert "rag.evaluation.faithfulness.normalized_score" not in found
    whole = score_attributes(ending_of(Evaluation(scores=(replace(NORMAL, normalized=1),))))
    assert isinstance(whole["rag.evaluation.correctness.normalized_score"], float)


def test_histograms_have_one_scale() -> None:
    """The buckets are those of [0, 1]: there the normalized score is recorded, 0 included."""
    zero = Score(name="rubric", value=1, normalized=0.0)
    points = recorded(Evaluation(scores=(OK, NORMAL, zero)))["rag.evaluation.score"]
    assert {p.attributes["gen_ai.evaluation.name"]: p.sum for p in points} == {
        "faithfulness": 1.0,
        "correctness": 0.75,
        "rubric": 0.0,
    }


class Noted:
    """Logger provider and logger that note what is emitted."""

    def __init__(self) -> None:
        """Start empty."""
        self.attributes: list[Mapping[str, Any]] = []

    def get_logger(self, *_: object, **__: object) -> Noted:
        """Return the only logger."""
        return self

    def emit(self, *, attributes: Mapping[str, Any], **_: object) -> None:
        """Note an event."""
        self.attributes.append(attributes)


def emitted(evaluation: Evaluation) -> list[Mapping[str, Any]]:
    """Return the attributes of the events an event sink makes of ``evaluation``."""
    provider = Noted()
    EventSink(provider).emit(evaluation)  # type: ignore[arg-type]
    return provider.attributes


def test_events_keep_the_scale_of_the_metric() -> None:
    """The convention's value is the score itself."""
    (event,) = emitted(Evaluation(scores=(NORMAL,)))
    assert event["gen_ai.evaluation.score.value"] == 4.0
    assert not any("normalized" in key for key in event)


def test_events_say_what_the_label_goes_by() -> None:
    """The threshold stands beside the label; a score without one has neither."""
    passed = Score(name="mrr", value=1.0, label="pass", threshold=1)
    events = emitted(Evaluation(scores=(passed, Score(name="ndcg", value=1.0))))
    assert [one.get("rag.evaluation.threshold") for one in events] == [1.0, None]
    assert [one.get("gen_ai.evaluation.score.label") for one in events] == ["pass", None]


def test_a_model_named_by_half_a_letter_costs_nothing() -> None:
    """What a server calls its model goes onto spans, events and metrics as it can be encoded."""
    odd = Evaluation(scores=(replace(OK, version="v/\ud800"),), judge="\ud800m")
    found = score_attributes(ending_of(odd))
    assert found["rag.evaluation.judge"] == "?m"
    assert found["rag.evaluation.faithfulness.version"] == "v/?"
    assert emitted(odd)[0]["rag.evaluation.judge"] == "?m"
    assert recorded(odd)["rag.evaluation.score"][0].attributes["rag.evaluation.judge"] == "?m"


class Queue:
    """Something of which there are some."""

    def __init__(self, size: int) -> None:
        """Have ``size`` of them."""
        self.size = size

    def count(self) -> int:
        """Return how many."""
        return self.size


def test_what_waits_in_all_pipelines_of_a_provider_adds_up() -> None:
    """The gauge is one, and a second pipeline is not passed over."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    sinks, queues = [InstrumentSink(meters) for _ in range(2)], [Queue(3), Queue(4)]
    for sink, queue in zip(sinks, queues, strict=True):
        sink.watch_held(queue.count)
    data = reader.get_metrics_data()
    assert data is not None
    (gauge,) = data.resource_metrics[0].scope_metrics[0].metrics
    assert [point.value for point in gauge.data.data_points] == [7]  # type: ignore[union-attr]


def test_what_is_watched_may_go() -> None:
    """The gauge shows what waits, and does not keep a pipeline that has been taken off."""
    reader = InMemoryMetricReader()
    sink, queue = InstrumentSink(MeterProvider([reader])), Queue(3)
    sink.watch_held(queue.count)
    data = reader.get_metrics_data()
    assert data is not None
    (gauge,) = data.resource_metrics[0].scope_metrics[0].metrics
    assert [(gauge.name, point.value) for point in gauge.data.data_points] == [  # type: ignore[union-attr]
        ("rag.evaluation.held", 3)
    ]
    gone = weakref.ref(queue)
    del queue
    gc.collect()
    assert gone() is None
    assert reader.get_metrics_data() is None
