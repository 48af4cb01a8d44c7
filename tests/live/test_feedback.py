"""`record_feedback`: people's feedback is joined with its turn, counted, and passed to sinks."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from threading import Event
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.trace import format_span_id, format_trace_id

from apps.fakes import KeywordRetriever, ScriptedChat
from apps.parts import rag
from apps.replies import saying
from live import STATUS, App, asked, attached, said, told
from pipeline import GatedJudge
from rag_eval_otel import record_answer, record_feedback, record_question, record_retrieval
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live import recorded
from rag_eval_otel.live.recorded import FeedbackIntake
from rag_eval_otel.runtime.threads import BackgroundEvaluator
from rag_eval_otel.types import Evaluation, Feedback, Score, SpanRef
from support import hide

RECEIVED = "rag.evaluation.feedback.received"
AGREEMENT = "rag.evaluation.feedback.agreement"
NAME, LABEL = "gen_ai.evaluation.name", "gen_ai.evaluation.score.label"


class KeepingSink:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        self.feedback: list[Feedback] = []
        self.has_feedback = Event()

    def __call__(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def emit_feedback(self, feedback: Feedback) -> None:
        self.feedback.append(feedback)
        self.has_feedback.set()


@pytest.fixture(autouse=True)
def alone() -> None:
    recorded._intakes.clear()  # noqa: SLF001


def ids(span: Any) -> dict[str, str]:
    context = span.get_span_context()
    return {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
    }


def events(app: App, name: str = "user") -> list[Any]:
    records = [data.log_record for data in app.events.get_finished_logs()]
    return [one for one in records if (one.attributes or {}).get(NAME) == name]


def agreement(app: App) -> dict[tuple[Any, Any, Any], int]:
    found = {}
    for point in app.points(AGREEMENT):
        of: Mapping[str, Any] = point.attributes
        found[of[NAME], of[LABEL], of["feedback_label"]] = int(point.value)
    return found


def scored_turn(app: App, number: int = 1) -> Any:
    span = app.turn(number)
    assert app.handle.flush()
    return span


# --- joined with the turn -------------------------------------------------------------------------


def test_feedback_on_a_scored_turn() -> None:
    """The event has the context of the turn's span, and people and judge are compared."""
    sink = KeepingSink()
    with attached(metrics=["faithfulness"], thresholds={"faithfulness": 0.5}, sinks=[sink]) as app:
        span = scored_turn(app)
        record_feedback(0, trace_id=ids(span)["trace_id"], comment="Wrong year.")
        assert app.handle.flush()
        (event,) = events(app)
        context = span.get_span_context()
        assert (event.trace_id, event.span_id) == (context.trace_id, context.span_id)
        assert event.event_name == "gen_ai.evaluation.result"
        assert event.attributes["gen_ai.evaluation.score.value"] == 0.0
        assert event.attributes[LABEL] == "fail"
        assert event.attributes["gen_ai.evaluation.explanation"] == "Wrong year."
        assert event.attributes["rag.evaluation.annotator"] == "human"
        assert agreement(app) == {
            ("faithfulness", "pass", "fail"): 1,
            ("overall", "pass", "fail"): 1,
        }
        assert app.handle.stats.feedback == {"joined": 1}
        assert app.counted_by(RECEIVED, "outcome") == {"joined": 1}
        (point,) = app.points("rag.evaluation.feedback.score")
        assert (point.count, point.sum) == (1, 0.0)
        expected = Feedback(
            trace_id=context.trace_id, span_id=context.span_id, score=0, comment="Wrong year."
        )
        assert sink.feedback == [expected]


def test_feedback_that_is_named_like_a_metric_is_about_this_metric() -> None:
    """A person who rates faithfulness is not compared with other metrics."""
    with attached(thresholds={"faithfulness": 0.5, "answer_relevancy": 0.5}) as app:
        record_feedback(True, **ids(scored_turn(app)), name="faithfulness")  # noqa: FBT003
        assert app.handle.flush()
        assert agreement(app) == {("faithfulness", "pass", "pass"): 1}


def test_feedback_within_the_current_span() -> None:
    """Without ids, feedback is on the current span, and is compared when the turn is scored."""
    with attached(metrics=["faithfulness"], thresholds={"faithfulness": 0.5}) as app:
        with app.provider.get_tracer("app").start_as_current_span("turn") as span:
            record_question(asked(1))
            record_retrieval(asked(1), told(1))
            record_answer(said(1))
            record_feedback(1)
        assert app.handle.flush()
        (event,) = events(app)
        assert event.span_id == span.get_span_context().span_id
        (exported,) = app.exported()
        assert (exported.attributes or {})["rag.feedback.user.score"] == 1.0
        assert (exported.attributes or {})["rag.feedback.user.label"] == "pass"
        assert agreement(app)["overall", "pass", "pass"] == 1
        assert app.handle.stats.feedback == {"joined": 1}


def test_feedback_on_a_held_turn_is_on_its_span() -> None:
    """Feedback that comes while the turn is scored leaves with the span."""
    judge, sink = GatedJudge(), KeepingSink()
    with attached(metrics=["faithfulness"], judge=judge, sinks=[sink]) as app:
        span = app.turn()
        app.pipeline.submit_ended()
        judge.asked.result(60)
        record_feedback(0.2, **ids(span), name="expert")
        assert sink.has_feedback.wait(60)
        judge.open()
        assert app.handle.flush()
        attributes = [dict(one.attributes or {}) for one in app.exported()]
        (found,) = [one for one in attributes if STATUS in one]
        assert found["rag.feedback.expert.score"] == 0.2


def test_feedback_before_its_turn_is_compared_later() -> None:
    """Feedback with ids may come before the trace has ended."""
    with attached(metrics=["faithfulness"], thresholds={"faithfulness": 0.5}) as app:
        chain = app.chain()
        app.retrieve(1, chain)
        record_feedback(1, trace_id=ids(chain)["trace_id"])
        assert app.handle.stats.failures == {}
        app.generate(1, chain)
        chain.end()
        assert app.handle.flush()
        assert agreement(app)["overall", "pass", "pass"] == 1
        assert app.handle.stats.feedback == {"joined": 1}


def test_the_id_of_a_langchain_run_names_the_turn() -> None:
    """Applications choose the id of the root run, and do not know the ids of spans."""
    chain = rag(KeywordRetriever(), ScriptedChat(reply=saying("In 1987.")))
    run_ids = [uuid.uuid4() for _ in range(3)]
    sink = KeepingSink()
    with attached(metrics=["faithfulness"], thresholds={"faithfulness": 0.5}, sinks=[sink]) as app:
        record_feedback(1, trace_id=run_ids[0])  # before the run: it is passed on when it is known
        for run_id in run_ids:
            chain.invoke("When?", {"callbacks": [app.handle.callback], "run_id": run_id})
        assert app.handle.flush()
        record_feedback(0, trace_id=str(run_ids[1]))
        record_feedback(0, trace_id=run_ids[2].hex)
        assert app.handle.flush()
        scored = [one.context for one in app.exported() if STATUS in (one.attributes or {})]
        found = {(one.trace_id, one.span_id) for one in sink.feedback}
        assert found == {(one.trace_id, one.span_id) for one in scored}
        assert len(found) == 3


def test_feedback_by_the_digits_of_a_later_run_is_passed_on_once() -> None:
    """They may be a trace id of another process, so it is passed on at once, and not again."""
    chain = rag(KeywordRetriever(), ScriptedChat(reply=saying("In 1987.")))
    run_id, sink = uuid.uuid4(), KeepingSink()
    with attached(metrics=["faithfulness"], sinks=[sink]) as app:
        record_feedback(1, trace_id=run_id.hex)
        chain.invoke("When?", {"callbacks": [app.handle.callback], "run_id": run_id})
        assert app.handle.flush()
        assert [each.trace_id for each in sink.feedback] == [run_id.int]


# --- sampling -------------------------------------------------------------------------------------


def test_bad_feedback_before_the_end_of_a_turn_has_it_sampled() -> None:
    """A turn with bad feedback is always chosen, as one with an error is."""
    with attached(metrics=["faithfulness"], sample_rate=1e-9) as app:
        chain = app.chain()
        app.retrieve(1, chain)
        record_feedback(0, trace_id=ids(chain)["trace_id"])
        app.generate(1, chain)
        chain.end()
        assert app.handle.flush()
        assert app.handle.stats.turns == {"scored": 1}


# --- unknown ids, wrong arguments -----------------------------------------------------------------


def test_feedback_on_an_unknown_trace_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    """The turn may have been scored by another process: its ids are enough for an event."""
    with attached() as app, caplog.at_level(logging.WARNING):
        record_feedback(1, trace_id="ab" * 16, span_id="cd" * 8)
        record_feedback(1, trace_id=int("ab" * 16, 16))
        record_feedback(1, trace_id=f"00-{'ab' * 16}-{'cd' * 8}-01")  # the header of an answer
        assert app.handle.flush()
        assert [(e.trace_id, e.span_id) for e in events(app)] == [
            (int("ab" * 16, 16), int("cd" * 8, 16)),
            (int("ab" * 16, 16), 0),
            (int("ab" * 16, 16), int("cd" * 8, 16)),
        ]
        assert app.handle.stats.feedback == {"unmatched": 3}
    (line,) = [one.getMessage() for one in caplog.records if "feedback" in one.getMessage()]
    assert f"feedback 'user' on trace {'ab' * 16}: no turn of it is known here" in line


TRACE = "ab" * 16


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"score": 4}, r"from 0 \(bad\) to 1 \(good\), not 4; bring stars to this scale"),
        ({"score": -1}, r"not -1; .*thumbs of -1 and 1 with \(thumb \+ 1\) / 2"),
        ({"score": float("nan")}, r"not nan"),
        ({"score": "up"}, r"a score from 0 to 1 or a bool, not str"),
        ({"name": "two words"}, r"1 to 64 ASCII letters, digits, _ and -"),
        ({"comment": 7}, r"comment of feedback is a str, not int"),
        ({"trace_id": "run-17"}, r"32 hexadecimal digits, .*not from a backend"),
        ({"trace_id": "0" * 32}, r"32 hexadecimal digits"),
        ({"trace_id": 2**128}, r"32 hexadecimal digits"),
        ({"trace_id": TRACE, "span_id": "12"}, r"span_id must be 16 hexadecimal digits"),
        ({"trace_id": None, "span_id": "cd" * 8}, r"needs trace_id"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], expected: str) -> None:
    """The message says what is accepted, and what an id looks like."""
    with pytest.raises((TypeError, ValueError), match=expected):
        record_feedback(**{"score": 1, "trace_id": TRACE, **arguments})


def test_wrong_arguments_do_not_stop_an_application(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In production they are logged and counted."""
    monkeypatch.setenv("RAG_EVAL_RAISE_ERRORS", "off")
    recorded._edge.cache_clear()  # noqa: SLF001
    with attached() as app:
        record_feedback(5, trace_id=TRACE)
        assert app.handle.stats.feedback == {"refused": 1}
        assert app.handle.stats.failures == {"feedback": 1}
        assert app.counted_by(RECEIVED, "outcome") == {"refused": 1}
    assert "not 5; bring stars" in caplog.text


def test_feedback_without_a_span_is_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    """There is nothing that it could be about."""
    recorded._warnings._kinds.clear()  # noqa: SLF001
    with attached() as app:
        record_feedback(1)
        assert app.handle.stats.feedback == {}
    assert "record_feedback() has no effect" in caplog.text


def test_comments_are_redacted() -> None:
    """The rules for private texts hold for comments of people."""
    with attached(redact=hide("ada@example.com")) as app:
        record_feedback(0, trace_id=TRACE, comment="Write to ada@example.com")
        assert app.handle.flush()
        (event,) = events(app)
        assert event.attributes["gen_ai.evaluation.explanation"] == "Write to [redacted]"


def test_feedback_after_the_end_is_dropped() -> None:
    """A pipeline that was shut down has no thread for it."""
    with attached() as app:
        app.handle.shutdown()
        record_feedback(1, trace_id=TRACE)
        assert app.handle.stats.feedback == {"dropped": 1}


def test_feedback_in_a_process_without_a_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    """A service that only takes feedback emits it as an event and a metric, with its ids."""
    recorded._warnings._kinds.clear()  # noqa: SLF001
    record_feedback(1, trace_id=TRACE)
    record_feedback(1, trace_id=TRACE)
    lines = [one.getMessage() for one in caplog.records if "record_feedback" in one.getMessage()]
    assert len(lines) == 1
    assert "no pipeline of rag_eval_otel runs in this process" in lines[0]


def test_the_pipeline_that_knows_the_turn_takes_the_feedback() -> None:
    """With several pipelines in a process, the newest one is asked last."""
    with attached() as first:
        span = scored_turn(first)
        with attached() as second:
            record_feedback(1, **ids(span))
            record_feedback(1, trace_id=TRACE)
            assert first.handle.flush()
            assert second.handle.flush()
            assert first.handle.stats.feedback == {"joined": 1}
            assert second.handle.stats.feedback == {"unmatched": 1}


# --- what is remembered ---------------------------------------------------------------------------


def intake() -> FeedbackIntake:
    return FeedbackIntake(
        instruments=InstrumentSink(MeterProvider()),
        evaluator=BackgroundEvaluator(),
        pass_on=lambda _: None,
    )


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    """The tables of turns and of early feedback have limits, whatever comes."""
    found = intake()
    for number in range(1, 6000):
        scores = (Score(name="m", value=1.0, label="pass"),)
        span = SpanRef(trace_id=number // 3 + 1, span_id=number)
        found(Evaluation(scores=scores, span=span))
        found.take(Feedback(trace_id=10_000 + number, score=1), "ids")
        found.take(Feedback(trace_id=1_000_000, score=1), "run")
    assert len(found._turns) == 4096  # noqa: SLF001
    assert len(found._early) <= 1024  # noqa: SLF001
    assert max(map(len, found._early.values())) <= 16  # noqa: SLF001


def failing(text: str) -> str:
    raise ValueError(text)


def test_a_comment_that_cannot_be_redacted_is_left_out() -> None:
    """The feedback itself stays."""
    with attached(redact=failing, raise_errors=False) as app:
        record_feedback(0, trace_id=TRACE, comment="Write to ada@example.com")
        assert app.handle.flush()
        (event,) = events(app)
        assert "gen_ai.evaluation.explanation" not in event.attributes


def test_early_feedback_on_another_turn_of_the_trace_waits() -> None:
    """Feedback on one span is not given to the turn of another span."""
    found = intake()
    found.take(Feedback(trace_id=1, span_id=20, score=1), "ids")
    scores = (Score(name="m", value=1.0, label="pass"),)
    for span_id in (10, 30):
        found._known((1, span_id))  # noqa: SLF001
    found(Evaluation(scores=scores, span=SpanRef(trace_id=1, span_id=10)))
    assert found.of(SpanRef(trace_id=1, span_id=10)) == ()
    found(Evaluation(scores=scores, span=SpanRef(trace_id=1, span_id=20)))
    assert len(found.of(SpanRef(trace_id=1, span_id=20))) == 1
