"""Scores and events on copies of spans, and texts that are removed from them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context

from live import (
    ANSWER,
    CONTEXT,
    KIND,
    QUESTION,
    App,
    GatedJudge,
    asked,
    attached,
    generated,
    good_judge,
    retrieved,
    said,
    told,
)
from rag_eval_otel import RagEvalSpanProcessor, record_retrieval, semconv
from rag_eval_otel.capture.conventions import owner_of
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.config import ScoreEvents
from rag_eval_otel.export.attributes import (
    MAX_EXPLANATION,
    ContentFilter,
    EventSink,
    SpanScores,
    copied,
)
from rag_eval_otel.live.instrument import pipeline_of
from rag_eval_otel.types import UNTOUCHED, Ending, Evaluation, Sampling, Score, Usage
from rag_eval_otel.untrusted import redactor
from replay import Exported, ReplayedSpan, load
from support import hide

OK = Score(name="faithfulness", value=1, label="pass", version="v", explanation="x" * 2000)
UNDEFINED = Score(name="faithfulness", status="undefined", reason="no_claims")
FAILED = Score(name="context_relevance", status="error", reason="timeout")
LACKS = {"offsets": [[0, 9], [10, 20]], "verdicts": [False, True]}
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


def ended(limit: int, count: int) -> ReadableSpan:
    """Return a span with ``count`` attributes, events and links, of which ``limit`` are kept."""
    limits = SpanLimits(max_span_attributes=limit, max_events=limit, max_links=limit)
    tracer = TracerProvider(span_limits=limits).get_tracer("t")
    parent = tracer.start_span("parent")
    links = [Link(parent.get_span_context())] * count
    context = set_span_in_context(parent)
    span = tracer.start_span("s", context, SpanKind.SERVER, links=links)
    for i in range(count):
        span.set_attribute(f"key{i}", i)
        span.add_event("step", {"i": i})
    span.set_status(Status(StatusCode.ERROR, "broken"))
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


def score_attributes(ending: Ending, **options: Any) -> Mapping[str, Any]:
    scores = SpanScores(**options)
    return scores.fitting(scores.parts_of(ending), {}, None)


def ending_of(evaluation: Evaluation) -> Ending:
    return Ending(evaluation.status, evaluation=evaluation)


def test_tokens_and_money_are_attributes_of_turn_and_metric() -> None:
    """They are written if tokens were used, and money only if the price is known."""
    usage = Usage(judge_requests=1, prompt_tokens=90, completion_tokens=10)
    score = Score(name="faithfulness", value=1, usage=usage, cost=0.5)
    evaluation = Evaluation(scores=(score,), usage=usage, cost=0.5)
    found = score_attributes(ending_of(evaluation), form="rag")
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
    for form, key in (
        ("rag", "rag.evaluation.faithfulness.explanation"),
        ("both", "evaluations.0.evaluation.explanation"),
    ):
        write: Any = partial(score_attributes, ending_of(evaluation), form=form)
        assert not any(name.endswith("explanation") for name in write())
        assert write(explanations=True)[key] == "x" * MAX_EXPLANATION


def test_what_has_no_score_has_a_reason() -> None:
    """A skipped turn has one, and an undefined or failed metric in place of its number."""
    skipped = {"rag.evaluation.status": "skipped", "rag.evaluation.reason": "no_answer"}
    assert score_attributes(Ending("skipped", "no_answer")) == skipped
    assert score_attributes(UNTOUCHED) == {}
    assert score_attributes(ending_of(Evaluation(scores=(UNDEFINED, FAILED)))) == {
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
    for name in ("attributes", "events", "links"):
        dropped = f"dropped_{name}"
        assert getattr(copy, dropped) == getattr(span, dropped) == max(0, count - limit)
    assert dict(span.attributes or {}) == before
    for name in ("name", "context", "parent", "resource", "kind", "status"):
        assert getattr(copy, name) == getattr(span, name)
    for name in ("start_time", "end_time", "instrumentation_scope"):
        assert getattr(copy, name) == getattr(span, name)
    for name in ("events", "links"):
        assert list(getattr(copy, name)) == list(getattr(span, name))


def test_names_with_a_lone_surrogate_are_exported() -> None:
    """A server's name of a model is made encodable."""
    odd = Evaluation(scores=(replace(OK, version="v/\ud800"),), judge="\ud800m")
    found = score_attributes(ending_of(odd), form="rag")
    assert found["rag.evaluation.judge"] == "?m"
    assert found["rag.evaluation.faithfulness.version"] == "v/?"


USED = Usage(judge_requests=1, prompt_tokens=90, completion_tokens=10)


def of_metrics(count: int, **more: Any) -> Ending:
    scores = tuple(
        Score(
            name=f"metric_{number}",
            value=0.5,
            label="fail",
            threshold=0.75,
            version=f"metric_{number}/0fd97da5/fused/gpt-5-mini",
            usage=USED,
            cost=0.0004,
        )
        for number in range(count)
    )
    about: dict[str, Any] = {"usage": USED, "cost": 0.001, "sampling": Sampling(), **more}
    evaluation = Evaluation(scores=scores, judge="gpt-5-mini", **about)
    return Ending("scored", evaluation=evaluation, contexts="retrieval")


@pytest.mark.parametrize(
    ("form", "turn", "metric"), [("both", 13, 8), ("openinference", 13, 6), ("rag", 9, 6)]
)
@pytest.mark.parametrize("count", [1, 4, 10])
def test_the_number_of_attributes(form: Any, turn: int, metric: int, count: int) -> None:
    """Of a turn, and of each of its metrics, as docs/backends.md says."""
    assert len(score_attributes(of_metrics(count), form=form)) == turn + count * metric


@pytest.mark.parametrize("form", ["both", "openinference"])
def test_an_object_of_openinference(form: Any) -> None:
    """A score is one, and so are the overall label, outcome and cause, with equal values."""
    score = Score(name="answer_relevancy", value=0.9, label="pass", normalized=0.9, threshold=0.5)
    low = replace(score, name="faithfulness", value=0.25, label="fail", reason="few", detail=LACKS)
    relevance = Score(name="context_relevance", value=1, label="pass")
    scores = (low, relevance, score, replace(FAILED, name="guideline"))
    evaluation = Evaluation(
        scores=scores, judge="gpt", messages=4, computed=frozenset({"context_relevance"})
    )
    found = score_attributes(ending_of(evaluation), form=form)
    objects = [
        {
            name.removeprefix(prefix): value
            for name, value in found.items()
            if name.startswith(prefix)
        }
        for prefix in (f"evaluations.{number}.evaluation." for number in range(6))
    ]
    metadata = json.loads(objects[0].pop("metadata"))
    assert metadata == {
        "judge": "gpt",
        "threshold": 0.5,
        "normalized_score": 0.9,
        "reason": "few",
        "history_messages": 4,
        "unsupported_count": 1,
        "unsupported_offsets": [0, 9],
    }
    ours = {"identifier": "rag_eval_otel"}
    by = {"annotator_kind": "LLM", **ours}
    assert objects[0] == {"name": "faithfulness", "score": 0.25, "label": "fail", **by}
    assert [(one["name"], one["annotator_kind"]) for one in objects[1:3]] == [
        ("context_relevance", "CODE"),
        ("answer_relevancy", "LLM"),
    ]
    said = {"rag.evaluation": "fail", "outcome": "answered", "cause": "unsupported"}
    by = {"annotator_kind": "CODE", **ours}
    assert objects[3:] == [{"name": name, "label": label, **by} for name, label in said.items()]
    assert found["rag.evaluation.guideline.reason"] == "timeout"
    leaves = {name for name in found if name.startswith("rag.evaluation.faithfulness.")}
    both = {"rag.evaluation.faithfulness.score", "rag.evaluation.faithfulness.label"}
    assert leaves == (both if form == "both" else set())


def limited(most: int | None, names: Sequence[str], form: Any = "both") -> tuple[Any, ...]:
    """Return the attributes of a copy, of an open span, and how many had no room on each."""
    omitted = list[int]()
    scores = SpanScores(form=form, on_omitted=omitted.append)
    limits = SpanLimits(max_span_attributes=most)  # None: 128
    tracer = TracerProvider(span_limits=limits).get_tracer("app")
    copied_from, written_on = (tracer.start_span("turn") for _ in range(2))
    for one in (copied_from, written_on):
        one.set_attributes(dict.fromkeys(names, "app"))
    scores.write(written_on, of_metrics(10))
    for one in (copied_from, written_on):
        one.end()
    assert isinstance(written_on, ReadableSpan)
    copy = scores.copy(copied_from, of_metrics(10))  # type: ignore[arg-type]
    return dict(copy.attributes or {}), dict(written_on.attributes or {}), omitted


@pytest.mark.parametrize("form", ["both", "openinference", "rag"])
@pytest.mark.parametrize(("most", "own"), [(64, 10), (64, 60), (64, 64), (128, 40), (None, 60)])
def test_scores_take_only_the_room_that_a_span_has(most: int | None, own: int, form: Any) -> None:
    """What has no room is left out whole, from the last metric on, and counted."""
    names = [f"app.{number}" for number in range(own)]
    copied_, written, omitted = limited(most, names, form)
    assert copied_ == written
    room = (most or 128) - own
    whole = score_attributes(of_metrics(10), form=form)
    kept = {name: value for name, value in written.items() if name not in names}
    assert len(written) == own + len(kept) <= (most or 128)
    assert omitted == ([len(whole) - len(kept)] * 2 if len(whole) > room else [])
    assert len(whole) <= room or len(kept) > room - 8  # the room is used
    metrics = [name.split(".")[2] for name in kept if name.endswith(".score") and "rag." in name]
    objects = [value for name, value in kept.items() if name.endswith(".evaluation.name")]
    assert objects[:-1] == [f"metric_{number}" for number in range(len(objects) - 1)]
    if form == "both" and objects:
        assert metrics in (objects[:-1], [*objects[:-1], f"metric_{len(objects) - 1}"])
    sizes = Counter(name.split(".")[1] for name in kept if name.startswith("evaluations."))
    assert set(sizes.values()) <= {4, 6}


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["evaluations.0.evaluation.name", "evaluations.4.evaluation.name"], 5),
        (["trace.evaluations.7.evaluation.name", "evaluations.x.evaluation.name"], 0),
        ([f"evaluations.{'9' * 5000}.evaluation.name", "evaluations.", "my.evaluations.1"], 0),
    ],
)
def test_indices_continue_after_those_of_others(names: list[str], first: int) -> None:
    """Names that only look like an index, or are of another scope, do not count."""
    copied_, _, _ = limited(None, names)
    assert copied_[f"evaluations.{first}.evaluation.name"] == "metric_0"
    assert copied_[f"evaluations.{first + 10}.evaluation.name"] == "rag.evaluation"
    assert all(copied_[name] == "app" for name in names)


def test_metadata_that_a_limit_would_cut_is_left_out() -> None:
    """Half of a JSON object cannot be read; other texts are cut as those of the application."""
    limits = SpanLimits(max_span_attribute_length=50)
    open_span = TracerProvider(span_limits=limits).get_tracer("app").start_span("turn")
    SpanScores().write(open_span, of_metrics(1))
    assert isinstance(open_span, ReadableSpan)
    found = open_span.attributes or {}
    assert found["evaluations.0.evaluation.name"] == "metric_0"
    assert not any(name.endswith("metadata") for name in found)


class Noted:
    """A logger provider and logger that keeps the attributes of events."""

    def __init__(self) -> None:
        self.attributes: list[Mapping[str, Any]] = []

    def get_logger(self, *_: object, **__: object) -> Noted:
        return self

    def emit(self, *, attributes: Mapping[str, Any], **_: object) -> None:
        self.attributes.append(attributes)


def emitted(evaluation: Evaluation) -> list[Mapping[str, Any]]:
    provider = Noted()
    EventSink(provider)(evaluation)  # type: ignore[arg-type]
    return provider.attributes


def test_spans_and_events_keep_the_scale_of_the_metric() -> None:
    """The standard attribute has the score, and one of ours the normalized score, if it differs."""
    evaluation = Evaluation(scores=(OK, replace(NORMAL, normalized=1)))
    found = score_attributes(ending_of(evaluation), form="rag")
    assert found["rag.evaluation.correctness.score"] == 4.0
    assert isinstance(found["rag.evaluation.correctness.normalized_score"], float)
    assert "rag.evaluation.faithfulness.normalized_score" not in found
    (event,) = emitted(Evaluation(scores=(NORMAL,)))
    assert event["gen_ai.evaluation.score.value"] == 4.0
    assert event["rag.evaluation.normalized_score"] == 0.75


SCORED = Ending("scored", evaluation=Evaluation(scores=(OK, NORMAL), judge="m"))


def ended_with(write: SpanScores | None = None) -> ReadableSpan:
    span = TracerProvider().get_tracer("app").start_span("turn")
    span.add_event("mine")
    if write is not None:
        write.write(span, SCORED)
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


@pytest.mark.parametrize("events", ["span", "both"])
def test_scores_are_events_of_the_span(events: ScoreEvents) -> None:
    """The events on a span have the attributes of the log records, and a time each."""
    scores = SpanScores(events=events, clock=lambda: 7)
    copy, open_span = scores.copy(ended_with(), SCORED), ended_with(scores)
    for span in (copy, open_span):
        assert [event.name for event in span.events] == ["mine", *["gen_ai.evaluation.result"] * 2]
        found = [dict(event.attributes or {}) for event in span.events[1:]]
        assert SCORED.evaluation is not None
        assert found == emitted(SCORED.evaluation)
        assert {event.timestamp for event in span.events[1:]} == {7}
        assert (span.attributes or {})["rag.evaluation.faithfulness.score"] == 1.0


FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
PATHS = sorted(FOLDER.glob("*.json"))
STRIP = ContentFilter(exported="none")
needs_recordings = pytest.mark.skipif(not PATHS, reason="the shared recordings are missing")
STAYS = re.compile(
    r".*tokens|.*token_count.*|.*usage.*|.*model(_?name)?|.*[._]id|id_|.*\.(kind|role|score|name)"
    r"|.*finish_reasons?|.*distance|error\.type|exception\..*|.*timestamp|.*(session|user)_id"
    r"|gen_ai\.(system|operation\.name|provider\.name)|db\..*(operation|system|top_k|n_results)"
    r"|http\..*|.*temperature|.*visits|.*steps_taken|class_name"
)
"""Names of attributes that hold no question, context or answer."""


@cache
def stripped(path: Path) -> tuple[tuple[ReadableSpan, ReadableSpan], ...]:
    spans = map(ReplayedSpan, load(path).spans)
    return tuple((span, STRIP.shown(span)) for span in spans)


def texts_of(path: Path) -> set[str]:
    truths = load(path).truths or ()
    texts = (t for truth in truths for t in (truth.question, truth.answer, *(truth.contexts or ())))
    return {text for text in texts if text and len(text) > len("a word")}


def values_of(span: ReadableSpan) -> Iterator[tuple[str, str]]:
    for attributes in (span.attributes, *(event.attributes for event in span.events)):
        for name, value in (attributes or {}).items():
            yield name, value if isinstance(value, str) else json.dumps(value)


def texts_left(path: Path) -> Iterator[str]:
    """Yield where a question, a context or an answer of a recording is exported after stripping."""
    for text in texts_of(path):
        for _, shown in stripped(path):
            for name, value in values_of(shown):
                if text in value or json.dumps(text)[1:-1] in value:
                    yield f"{path.stem}: {name}"


@pytest.mark.slow
@needs_recordings
def test_no_text_of_a_recording_is_exported() -> None:
    """No attribute and no event holds a question, a context or an answer."""
    assert [left for path in PATHS for left in texts_left(path)] == []


@pytest.mark.slow
@needs_recordings
def test_other_attributes_are_kept() -> None:
    """Token counts, models, ids, scores and errors stay."""
    pairs = [pair for path in PATHS for pair in stripped(path)]
    lost = [dict(values_of(s)).keys() - dict(values_of(shown)) for s, shown in pairs]
    assert not [name for names in lost for name in names if STAYS.fullmatch(name)]


@pytest.mark.parametrize(
    ("event", "attribute", "content"),
    [
        ("gen_ai.user.message", "content", True),
        ("gen_ai.choice", "message", True),
        ("gen_ai.choice", "finish_reason", False),
        ("db.query.result", "db.query.result.document", True),
        ("db.query.result", "db.query.result.distance", False),
        ("ToolOfTomorrowEvent", "anything", True),
        ("QueryEndEvent", "span_id", False),
        ("new_token", "token", True),
        ("of the application", "content", False),
    ],
)
def test_content_of_events(event: str, attribute: str, *, content: bool) -> None:
    """The names of the event and of the attribute decide."""
    assert (owner_of(attribute, event) == "foreign") is content


def span(
    attributes: Mapping[str, Any], events: Sequence[Any] = (), scope: str = "lib"
) -> ReplayedSpan:
    return ReplayedSpan(
        SpanRecord(
            name="step",
            scope=scope,
            trace_id=1,
            span_id=2,
            start=1,
            end=2,
            dropped=3,
            attributes=attributes,
            events=events,
        )
    )


SAID = {semconv.QUESTION: "Where is Ada?", "input.value": "Ada", "n": 1}


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, {"input.value": "Ada", "n": 1}),
        ({"exported": "all"}, SAID),
        ({"exported": "none"}, {"n": 1}),
        (
            {"exported": "all", "redactor": redactor(hide("Ada"))},
            {**SAID, semconv.QUESTION: "Where is [redacted]?"},
        ),
    ],
)
def test_the_option_says_whose_texts_stay(
    options: Mapping[str, Any], left: Mapping[str, Any]
) -> None:
    """Those of other instrumentations, those of the `record_...()` functions too, or none."""
    before = span(SAID)
    shown = ContentFilter(**options).shown(before)
    assert {name: v for name, v in (shown.attributes or {}).items() if name in SAID} == left
    assert shown.dropped_attributes == 3
    assert before.attributes == SAID


def test_explanations_by_others_are_removed() -> None:
    """What another judge wrote about a span quotes texts; ours is there if it may."""
    name = "evaluations.{}.evaluation.{}".format
    ours = {name(1, "identifier"): semconv.SCOPE, name(1, "explanation"): "Ada"}
    version = {semconv.EVALUATION_VERSION: "1"}
    explained = {semconv.GEN_AI_EVALUATION_EXPLANATION: "Ada"}
    events = [(semconv.EVALUATION_EVENT, {**about, **explained}) for about in ({}, version)]
    shown = STRIP.shown(span({name(0, "explanation"): "Ada", **ours}, events))
    assert shown.attributes == ours
    assert [dict(event.attributes or {}) for event in shown.events] == [{}, version | explained]


def test_a_span_without_texts_is_not_copied() -> None:
    """The filter returns the same object."""
    plain = span({"n": 1}, [("tick", {"a": 1})])
    ours = span(SAID, scope=semconv.SCOPE)
    assert STRIP.shown(plain) is plain
    assert STRIP.shown(ours) is ours
    foreign = span({"input.value": "Ada"})
    assert ContentFilter().shown(foreign) is foreign


def leave_by(method: str, app: App) -> None:
    if method == "force_flush":
        app.processor.force_flush(1)
    else:
        getattr(app.handle, method)()


@pytest.mark.parametrize(
    ("options", "method", "status"),
    [
        ({"judge": good_judge()}, "flush", "scored"),
        ({"sample_rate": 0.0}, "flush", "skipped"),
        ({"hold_seconds": 0.0, "evaluation_timeout": 0.2}, "flush", "timeout"),
        ({"evaluation_timeout": 0.2}, "force_flush", "flushed"),
        ({"shutdown_seconds": 0.0}, "shutdown", "shutdown"),
    ],
)
def test_texts_are_removed_on_every_path(
    options: Mapping[str, Any], method: str, status: str
) -> None:
    """Whatever the status of the turn, and on spans outside of a turn, too."""
    with attached(**{"judge": GatedJudge(), "export_content": "none", **options}) as app:
        with app.within("GET /", {"output.value": said(1), "n": 1}) as request:
            chain = app.chain(1, request)
            rank = {"retrieval.documents.0.document.score": 0.5}
            search = app.step("RETRIEVER", chain, **retrieved(1), **rank)
            model = app.step("LLM", chain, **generated(1), **{"llm.token_count.total": 7})
            for each in (search, model, chain):
                each.end()
        leave_by(method, app)
        app.let_leave()
        assert sorted(app.names()) == ["GET /", "chain", "llm", "retriever"]
        assert app.status_of(chain) == status
        assert not any(text in app.exported_texts() for text in (asked(1), *told(1), said(1)))
        assert app.attributes_of(model)["llm.token_count.total"] == 7
        assert app.attributes_of(search)["retrieval.documents.0.document.score"] == 0.5


@contextmanager
def wrapping(**options: Any) -> Iterator[tuple[Exported, Any]]:
    noting = Exported()
    processor = RagEvalSpanProcessor(noting, judge=good_judge(), **options)
    yield noting, processor
    processor.handle.shutdown(0.0)


@pytest.mark.parametrize("others", ["n", "input.value"])
def test_texts_in_events_are_removed_if_a_limit_drops_their_mark(others: str) -> None:
    """The attribute that marks such events is the first that a limit drops."""
    with wrapping() as (noting, processor):
        provider = TracerProvider(span_limits=SpanLimits(max_span_attributes=2))
        provider.add_span_processor(processor)
        with provider.get_tracer("app").start_as_current_span("ask") as asked:
            record_retrieval(QUESTION, [CONTEXT])
            asked.set_attributes({"a": 1, "b": 2, others: 3})
    (left,) = noting.spans
    assert [dict(event.attributes or {}) for event in left.events] == [{semconv.DOCUMENT_COUNT: 1}]


class Broken:
    """A filter that raises an exception."""

    def shown(self, _: ReadableSpan) -> ReadableSpan:
        raise RuntimeError


def test_if_the_filter_fails_the_span_has_no_attributes() -> None:
    """Its events are removed, too."""
    with wrapping(raise_errors=False, export_content="none") as (noting, processor):
        # There is no way to make the real one fail.
        pipeline_of(processor.handle).content = Broken()  # type: ignore[assignment]
        processor.on_end(span({"input.value": "Ada", "n": 1}, [("new_token", {"token": "Ada"})]))
    (left,) = noting.spans
    assert (left.name, dict(left.attributes or {}), left.events) == ("step", {}, ())


TURN = {semconv.QUESTION: QUESTION, semconv.ANSWER: ANSWER}


def test_a_recorded_turn_has_a_kind_input_and_output() -> None:
    """Backends that read OpenInference show the texts if they may be exported, and the kind."""
    shown = ContentFilter(exported="all").shown(span(TURN)).attributes or {}
    assert (shown[KIND], shown["input.value"], shown["output.value"]) == ("CHAIN", QUESTION, ANSWER)
    assert ContentFilter().shown(span(TURN)).attributes == {KIND: "CHAIN"}


def test_a_redacted_text_is_redacted_in_both_conventions() -> None:
    """The second attribute of a text is written from the redacted text."""
    private = {**TURN, semconv.QUESTION: "Who is ada@example.com?"}
    only = ContentFilter(exported="all", redactor=redactor(hide("ada@example.com")))
    shown = only.shown(span(private))
    assert (shown.attributes or {})["input.value"] == "Who is [redacted]?"


@pytest.mark.parametrize(
    "others",
    [{KIND: "AGENT"}, {"gen_ai.operation.name": "chat"}, {"traceloop.span.kind": "workflow"}],
)
def test_a_span_of_another_instrumentation_keeps_its_kind(others: dict[str, str]) -> None:
    """A span that an instrumentation describes gets no second description."""
    shown = ContentFilter(exported="all").shown(span({**TURN, **others}))
    assert dict(shown.attributes or {}) == {**TURN, **others}
