"""From ended spans to a real receiver, over real exporters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context

from pipeline import SOURCES, GatedJudge, Source, running, turns_counted
from rag_eval_otel import Evaluation
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.wire import read_parts
from rag_eval_otel.live.instrument import pipeline_of
from rag_eval_otel.types import Replies

PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "grpc"])


@PROTOCOLS
@SOURCES
def test_scores_arrive_on_the_span_of_the_turn_once(protocol: str, source: Source) -> None:
    """The span that stands for the turn arrives once, with every score on it."""
    with running(protocol=protocol, source=source) as app:
        names = app.run_turns(1)
        assert app.handle.flush()
        (span,) = app.arrived(names, wait=True)
    assert span.attributes["rag.evaluation.status"] == "scored"
    assert span.attributes["rag.evaluation.label"] == "pass"
    assert span.attributes["rag.evaluation.judge"] == "fake"
    for metric in (
        "answer_relevancy",
        "context_relevance",
        "faithfulness",
        "response_groundedness",
    ):
        assert span.attributes[f"rag.evaluation.{metric}.score"] == 1.0
        assert isinstance(span.attributes[f"rag.evaluation.{metric}.score"], float)
        assert span.attributes[f"rag.evaluation.{metric}.label"] == "pass"
        version = span.attributes[f"rag.evaluation.{metric}.version"]
        assert "/fused" in version
        assert version.endswith("/fake")
    assert not any(key.endswith("explanation") for key in span.attributes)


@PROTOCOLS
def test_everything_else_of_the_span_is_kept(protocol: str) -> None:
    """Parent, kind, status, events, links, times and dropped counts are as they were."""
    with running(protocol=protocol) as app:
        parent = app.tracer.start_span("request")
        other = app.tracer.start_span("other").get_span_context()
        span = app.start_turn(
            kind=SpanKind.SERVER,
            context=set_span_in_context(parent),
            links=[Link(other, {"why": "test"})] * 130,
            attributes={f"key{i}": i for i in range(127)},
            start_time=1_000,
        )
        for i in range(130):
            span.add_event("step", {"i": i}, timestamp=2_000)
        span.set_status(Status(StatusCode.ERROR, "broken"))
        span.end(end_time=9_000)
        assert app.handle.flush()
        (arrived,) = app.receiver.wait_for_spans(1)
    assert arrived.parent_span_id == parent.get_span_context().span_id
    assert (arrived.kind, arrived.status, arrived.status_message) == ("SERVER", "ERROR", "broken")
    assert (arrived.start_ns, arrived.end_ns) == (1_000, 9_000)
    assert (len(arrived.events), len(arrived.links)) == (128, 128)
    dropped = (arrived.dropped_attributes, arrived.dropped_events, arrived.dropped_links)
    assert dropped == (2, 2, 2)
    assert "key2" in arrived.attributes, "our attributes must not evict the oldest of the span's"
    assert arrived.attributes["rag.evaluation.status"] == "skipped"
    assert arrived.attributes["rag.evaluation.reason"] == "error"
    assert arrived.scope == "app"


@SOURCES
def test_deadline_releases_unscored_and_late_scores_go_to_events(source: Source) -> None:
    """Past the deadline a span leaves with status timeout; its scores still reach the events."""
    judge = GatedJudge()
    with running(judge=judge, hold_seconds=0.05, source=source) as app:
        names = app.run_turns(1)
        judge.asked.result(10)
        assert pipeline_of(app.handle).store.wait_left(10)
        judge.open()
        assert app.handle.flush()
        app.stop()
        (span,) = app.arrived(names)
        assert span.attributes["rag.evaluation.status"] == "timeout"
        assert not any(key.endswith(".score") for key in span.attributes)
        events = app.receiver.logs()
        assert {event.span_id for event in events} == {span.span_id}
        assert len(events) == 4
        assert turns_counted(app.receiver) == {("scored", None): 1}


class Refusal:
    """Replies of a model that refuses to judge, or does not follow the schema."""

    model = "m-chatty"

    def __init__(self, said: str) -> None:
        self._said = said

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        return Replies(parts=read_parts(self._said, tasks), model=self.model)


@SOURCES
def test_a_judge_that_is_of_no_use_is_seen(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """The span says unscored and why, the log has it once, and then only probes are sent."""
    with running(judge=Refusal(said := "I can't help with that."), source=source) as app:
        names = app.run_turns(1)
        assert app.handle.flush()
        spans = app.arrived(names, wait=True)
        app.run_turns(2)
        assert app.handle.flush()
        app.stop()
        counts = turns_counted(app.receiver)
        assert counts[("unscored", "unparsable")] >= 1
        assert counts.keys() <= {("unscored", "unparsable"), ("error", "circuit_open")}
        assert sum(counts.values()) == 3
    for span in spans:
        assert span.attributes["rag.evaluation.status"] == "unscored"
        assert span.attributes["rag.evaluation.reason"] == "unparsable"
        assert span.attributes["rag.evaluation.judge"] == "m-chatty"
        assert "rag.evaluation.label" not in span.attributes
    said_once = [r.getMessage() for r in caplog.records if "no metric can use" in r.getMessage()]
    assert len(said_once) == 1
    assert "m-chatty" in said_once[0]
    assert said not in said_once[0]


@SOURCES
def test_events_and_histograms_point_at_the_span(source: Source) -> None:
    """Each score is also an event parented to the span, and a histogram point with an exemplar."""
    with running(explanations=True, source=source) as app:
        names = app.run_turns(1)
        app.handle.flush()
        app.stop()
        events = app.receiver.logs()
        points = [p for p in app.receiver.metrics() if p.name == "rag.evaluation.score"]
        (span,) = app.arrived(names)
        span_id = span.span_id
    assert {event.event_name for event in events} == {"gen_ai.evaluation.result"}
    assert {(event.trace_id, event.span_id) for event in events} == {(span.trace_id, span_id)}
    by_name = {event.attributes["gen_ai.evaluation.name"]: event.attributes for event in events}
    assert by_name["context_relevance"]["gen_ai.evaluation.score.value"] == 1.0
    assert by_name["context_relevance"]["gen_ai.evaluation.score.label"] == "pass"
    assert by_name["context_relevance"]["gen_ai.evaluation.explanation"] == "backed"
    assert len(points) == 4
    assert all(point.count == 1 and len(point.bounds) == 19 for point in points)
    assert {e[1] for point in points for e in point.exemplars} == {span_id}
    assert span.attributes["rag.evaluation.context_relevance.explanation"] == "backed"


@SOURCES
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_a_sink_throws_past_every_edge_costs_no_span(
    error: type[BaseException], source: Source
) -> None:
    """The turn was counted before, its span leaves with its scores, and the next one is scored."""
    errors = [error()]

    class Broken:
        def __call__(self, evaluation: Evaluation) -> None:
            assert evaluation.scores
            if errors:
                raise errors.pop()

    with running(sinks=[Broken()], raise_errors=True, hold_seconds=3600, source=source) as app:
        names = list[str]()
        for _ in range(2):
            names += app.run_turns(1)
            assert app.handle.flush()
        app.stop()
        spans = app.arrived(names)
        assert [s.attributes["rag.evaluation.status"] for s in spans] == ["scored"] * 2
        assert turns_counted(app.receiver) == {("scored", None): 2}
