"""Scores as span attributes, and enriched copies of spans."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rag_eval_otel.export.attributes import MAX_EXPLANATION, copied, score_attributes
from rag_eval_otel.types import UNTOUCHED, Ending, Evaluation, Score, Usage

OK = Score(name="faithfulness", value=1, label="pass", version="v", explanation="x" * 2000)


UNDEFINED = Score(name="faithfulness", status="undefined", reason="no_claims")


FAILED = Score(name="context_relevance", status="error", reason="timeout")


NORMAL = Score(name="correctness", value=4, normalized=0.75, label="pass")


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
    exporter = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(max_span_attributes=limit))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = provider.get_tracer("t").start_span("s")
    for i in range(attributes):
        span.set_attribute(f"key{i}", i)
    span.end()
    return exporter.get_finished_spans()[0]


def ending_of(evaluation: Evaluation) -> Ending:
    return Ending(evaluation.status, evaluation=evaluation)


def test_tokens_and_money_are_attributes_of_turn_and_metric() -> None:
    """They are written if tokens were used, and money only if the price is known."""
    usage = Usage(judge_requests=1, prompt_tokens=90, completion_tokens=10)
    score = Score(name="faithfulness", value=1, usage=usage, cost=0.5)
    evaluation = Evaluation(scores=(score,), usage=usage, cost=0.5)
    found = score_attributes(ending_of(evaluation))
    assert found["rag.evaluation.tokens"] == found["rag.evaluation.faithfulness.tokens"] == 100
    assert found["rag.evaluation.cost"] == found["rag.evaluation.faithfulness.cost"] == 0.5
    assert found["rag.evaluation.currency"] == "USD"
    unknown = score_attributes(ending_of(replace(evaluation, scores=(), cost=None)))
    assert "rag.evaluation.tokens" in unknown
    assert not {"rag.evaluation.cost", "rag.evaluation.currency"} & set(unknown)


@given(st.lists(SCORES, max_size=4))
def test_attributes_are_leaves_and_finite(scores: list[Score]) -> None:
    """No attribute is a namespace of another, none is an array, every score is a finite float."""
    found = score_attributes(ending_of(Evaluation(scores=tuple(scores))), explanations=True)
    for key, value in found.items():
        assert isinstance(value, str | float)
        assert not any(other.startswith(f"{key}.") for other in found)
        if key.endswith(".score"):
            assert isinstance(value, float)
            assert math.isfinite(value)


def test_explanations_are_opt_in_and_limited() -> None:
    """They quote user data, and have a maximum length."""
    evaluation = Evaluation(scores=(OK,))
    key = "rag.evaluation.faithfulness.explanation"
    assert key not in score_attributes(ending_of(evaluation))
    assert score_attributes(ending_of(evaluation), explanations=True)[key] == "x" * MAX_EXPLANATION


def test_a_skipped_turn_has_status_and_reason() -> None:
    """A span without an ending has no attributes."""
    assert score_attributes(Ending("skipped", "no_answer")) == {
        "rag.evaluation.status": "skipped",
        "rag.evaluation.reason": "no_answer",
    }
    assert score_attributes(UNTOUCHED) == {}


def test_failed_scores_have_a_reason_and_no_number() -> None:
    """An undefined or failed metric has a reason and no score attribute."""
    found = score_attributes(ending_of(Evaluation(scores=(UNDEFINED, FAILED))))
    assert found == {
        "rag.evaluation.status": "error",
        "rag.evaluation.duration": 0.0,
        "rag.evaluation.faithfulness.reason": "no_claims",
        "rag.evaluation.context_relevance.reason": "timeout",
    }


@given(limit=st.integers(1, 8), count=st.integers(0, 12))
def test_an_enriched_copy_keeps_all_fields(limit: int, count: int) -> None:
    """Dropped counts are kept, and the original span is unchanged."""
    span = ended(limit, count)
    before = dict(span.attributes or {})
    added = {**before, "rag.evaluation.status": "scored"}
    copy = copied(span, attributes=added, events=span.events)
    assert dict(copy.attributes or {}) == {**before, "rag.evaluation.status": "scored"}
    assert copy.dropped_attributes == span.dropped_attributes == max(0, count - limit)
    assert dict(span.attributes or {}) == before
    for name in ("name", "context", "parent", "resource", "events", "links", "kind", "status"):
        assert getattr(copy, name) == getattr(span, name)
    assert (copy.start_time, copy.end_time) == (span.start_time, span.end_time)
    assert copy.instrumentation_scope == span.instrumentation_scope


def test_the_span_has_the_score_and_the_normalized_score() -> None:
    """A score without a normalized value has only one attribute."""
    found = score_attributes(ending_of(Evaluation(scores=(OK, NORMAL))))
    assert found["rag.evaluation.correctness.score"] == 4.0
    assert found["rag.evaluation.correctness.normalized_score"] == 0.75
    assert "rag.evaluation.faithfulness.normalized_score" not in found
    whole = score_attributes(ending_of(Evaluation(scores=(replace(NORMAL, normalized=1),))))
    assert isinstance(whole["rag.evaluation.correctness.normalized_score"], float)


def test_names_with_a_lone_surrogate_are_exported() -> None:
    """A server's name of a model is made encodable."""
    odd = Evaluation(scores=(replace(OK, version="v/\ud800"),), judge="\ud800m")
    found = score_attributes(ending_of(odd))
    assert found["rag.evaluation.judge"] == "?m"
    assert found["rag.evaluation.faithfulness.version"] == "v/?"
