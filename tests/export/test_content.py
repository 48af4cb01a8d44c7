"""`ContentFilter`: texts are removed from exported spans if an option says so."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.trace import Span

from pipeline import ANSWER, CONTEXT, QUESTION, GatedJudge, Pipeline, good_judge, running
from rag_eval_otel import instrument, record_retrieval, semconv
from rag_eval_otel.capture.conventions import CONVENTIONS, owner_of
from rag_eval_otel.capture.span import Span as SpanRecord
from rag_eval_otel.export.attributes import ContentFilter
from rag_eval_otel.live.instrument import pipeline_of
from rag_eval_otel.untrusted import redactor
from replay import ReplayedSpan, load
from support import hide

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
PATHS = sorted(FOLDER.glob("*.json"))
STRIP = ContentFilter(exported="none")

needs_recordings = pytest.mark.skipif(not PATHS, reason="the shared recordings are missing")

STAYS = re.compile(
    r".*tokens|.*token_count.*|.*usage.*|.*model(_?name)?|.*[._]id|id_|.*\.(kind|role|score|name)"
    r"|.*finish_reasons?|.*distance|error\.type|exception\..*|.*timestamp|.*(session|user)_id"
    r"|gen_ai\.(system|operation\.name|provider\.name)|db\..*(operation|system|top_k|n_results)"
    r"|http\..*|.*temperature|.*visits|.*steps_taken|.*tool\.definitions|class_name"
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


def is_intact(span: ReadableSpan, shown: ReadableSpan) -> bool:
    """Return whether only texts are missing from ``shown``."""
    kept = {name for name, _ in values_of(shown)}
    fields = ("name", "context", "parent", "kind", "start_time", "end_time", "resource")
    return (
        {name for name, _ in values_of(span) if STAYS.fullmatch(name)} <= kept
        and [(e.name, e.timestamp) for e in shown.events]
        == [(e.name, e.timestamp) for e in span.events]
        and all(getattr(shown, name) == getattr(span, name) for name in fields)
        and shown.dropped_attributes == span.dropped_attributes
        and shown.status.status_code is span.status.status_code
    )


@pytest.mark.slow
@needs_recordings
def test_no_text_of_a_recording_is_exported() -> None:
    """No attribute and no event holds a question, a context or an answer."""
    assert [left for path in PATHS for left in texts_left(path)] == []


@pytest.mark.slow
@needs_recordings
def test_other_attributes_are_kept() -> None:
    """Token counts, models, ids, scores and errors stay, and so do the other fields of the span."""
    pairs = [(path, span, shown) for path in PATHS for span, shown in stripped(path)]
    assert [path.stem for path, span, shown in pairs if not is_intact(span, shown)] == []


def test_every_convention_has_a_table_of_content() -> None:
    """Each convention names the attributes with texts, and they are recognised."""
    examples = {
        "adk": "gcp.vertex.agent.llm_request",
        "autogen": "llm.input_messages.3.function.0",
        "crewai": "crew_inputs",
        "dspy": "input.value",
        "genai": "gen_ai.input.messages",
        "haystack": "haystack.component.output",
        "langfuse": "langfuse.observation.input",
        "langsmith": "gen_ai.completion",
        "llamaindex": "llamaindex.step.input_summary",
        "mlflow": "mlflow.spanOutputs",
        "openinference": "llm.input_messages.3.message.content",
        "openinference_haystack": "output.value",
        "openinference_llamaindex": "output.value",
        "smolagents": "smolagents.task",
        "strands": "system_prompt",
        "traceloop": "gen_ai.prompt.0.content",
        "vectordb": "db.query.embeddings.vector",
    }
    assert all(convention.content for convention in CONVENTIONS)
    assert {owner_of(name) for name in examples.values()} == {"foreign"}


@pytest.mark.parametrize(
    ("event", "attribute", "content"),
    [
        ("gen_ai.user.message", "content", True),
        ("gen_ai.user.message", "role", False),
        ("gen_ai.choice", "message", True),
        ("gen_ai.choice", "finish_reason", False),
        ("gen_ai.content.prompt", "gen_ai.prompt", True),
        ("gen_ai.client.inference.operation.details", "gen_ai.input.messages", True),
        ("db.query.result", "db.query.result.document", True),
        ("db.query.result", "db.query.result.distance", False),
        ("QueryEndEvent", "response.response", True),
        ("ToolOfTomorrowEvent", "anything", True),
        ("QueryEndEvent", "span_id", False),
        ("new_token", "token", True),
        ("exception", "exception.message", False),
        ("of the application", "content", False),
    ],
)
def test_content_of_events(event: str, attribute: str, *, content: bool) -> None:
    """The names of the event and of the attribute decide."""
    assert (owner_of(attribute, event) == "foreign") is content


@pytest.mark.parametrize(
    "name",
    [
        "llm.token_count.prompt",
        "gen_ai.prompt.0.role",
        "input.mime_type",
        "gen_ai.prompt.0.tool_calls.0.name",
        "llm.tools.0.tool.json_schema",
        "output",
        "metadata",
        "retrieval.documents.0.document.id",
        "my.input.value",
        "rag.evaluation.status",
    ],
)
def test_similar_names_are_not_content(name: str) -> None:
    """They are exported unchanged."""
    assert owner_of(name) is None


def span(
    attributes: Mapping[str, Any], events: Sequence[Any] = (), scope: str = "lib"
) -> ReplayedSpan:
    return ReplayedSpan(
        SpanRecord(
            name="step",
            scope=scope,
            trace_id=1,
            span_id=2,
            parent_id=None,
            parent_is_remote=False,
            start=1,
            end=2,
            error=None,
            dropped=3,
            value_limit=None,
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


def test_a_span_without_texts_is_not_copied() -> None:
    """The filter returns the same object."""
    plain = span({"n": 1}, [("tick", {"a": 1})])
    ours = span(SAID, scope=semconv.SCOPE)
    assert STRIP.shown(plain) is plain
    assert STRIP.shown(ours) is ours
    foreign = span({"input.value": "Ada"})
    assert ContentFilter().shown(foreign) is foreign


KIND = "openinference.span.kind"


def run_turn(app: Pipeline) -> None:
    """Run a turn with the attributes of OpenInference, and spans outside of the turn."""

    def step(name: str, kind: str, **values: Any) -> Any:
        attributes = {KIND: kind, **{k.replace("__", "."): v for k, v in values.items()}}
        return app.tracer.start_as_current_span(name, attributes=attributes)

    served = {"output.value": ANSWER, "n": 1}
    with (
        app.tracer.start_as_current_span("GET /", attributes=served),
        step("chain", "CHAIN", input__value=QUESTION, output__value=ANSWER),
    ):
        with step("search", "RETRIEVER", input__value=QUESTION) as search:
            search.set_attribute("retrieval.documents.0.document.content", CONTEXT)
            search.set_attribute("retrieval.documents.0.document.score", 0.5)
        with step("model", "LLM", llm__token_count__total=7) as model:
            speak(model, "input", "user", f"{CONTEXT}\n{QUESTION}")
            speak(model, "output", "assistant", ANSWER)


def speak(model: Span, side: str, role: str, text: str) -> None:
    model.set_attribute(f"llm.{side}_messages.0.message.role", role)
    model.set_attribute(f"llm.{side}_messages.0.message.content", text)


def flush(app: Pipeline) -> None:
    assert app.handle.processor is not None
    app.handle.processor.force_flush(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "leave", "status"),
    [
        ({"judge": good_judge()}, None, "scored"),
        ({"sample_rate": 0.0}, None, "skipped"),
        ({"hold_seconds": 0.0, "evaluation_timeout": 0.2}, None, "timeout"),
        ({"evaluation_timeout": 0.2}, flush, "flushed"),
        ({"shutdown_seconds": 0.0}, None, "shutdown"),
    ],
)
def test_texts_are_removed_on_every_path(
    options: Mapping[str, Any], leave: Any, status: str
) -> None:
    """Whatever the status of the turn, and on spans outside of a turn, too."""
    with running(**{"judge": GatedJudge(), "export_content": "none", **options}) as app:
        run_turn(app)
        if leave is not None:
            leave(app)
        elif status in {"scored", "timeout"}:
            app.handle.flush(5)
        app.stop()
        spans = {span.name: span for span in app.receiver.spans()}
    assert set(spans) == {"GET /", "chain", "search", "model"}
    assert spans["chain"].attributes.get(semconv.EVALUATION_STATUS) == status
    assert not any(text in str(spans) for text in (QUESTION, CONTEXT, ANSWER))
    assert spans["model"].attributes["llm.token_count.total"] == 7
    assert spans["search"].attributes["retrieval.documents.0.document.score"] == 0.5


class Noting(SpanProcessor):
    """A processor that keeps the spans it gets."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


@contextmanager
def wrapping(**options: Any) -> Iterator[tuple[Noting, Any]]:
    noting = Noting()
    handle = instrument(wrap=noting, judge=good_judge(), **options)
    yield noting, handle.processor
    handle.shutdown(0.0)


def test_by_default_spans_are_not_copied() -> None:
    """The next processor gets the same objects."""
    with wrapping() as (noting, processor):
        ended = [span({"n": 1}), span({"input.value": "Ada"}), span({"db.system": "redis"})]
        for one in ended:
            processor.on_end(one)
    assert all(left is entered for left, entered in zip(noting.spans, ended, strict=True))


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


def test_a_warning_says_that_another_provider_cannot_strip(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spans of such a provider do not pass our processor."""
    handle = instrument(tracer_provider=OtherProvider(), export_content="none", judge=good_judge())  # type: ignore[arg-type]
    handle.shutdown(0.0)
    assert "content" in caplog.text


class OtherProvider:
    """A provider that is not the SDK's."""

    def get_tracer(self, *_: Any, **__: Any) -> None:
        """Make none."""


def recorded(name: str = "turn", **attributes: Any) -> ReadableSpan:
    with TracerProvider().get_tracer("app").start_as_current_span(name) as span:
        span.set_attributes(attributes)
    assert isinstance(span, ReadableSpan)
    return span


TURN = {semconv.QUESTION: QUESTION, semconv.ANSWER: ANSWER}
KIND = "openinference.span.kind"


def test_a_recorded_turn_has_a_kind_input_and_output() -> None:
    """Backends that read OpenInference show the texts if they may be exported, and the kind."""
    shown = ContentFilter(exported="all").shown(recorded(**TURN)).attributes or {}
    assert (shown[KIND], shown["input.value"], shown["output.value"]) == ("CHAIN", QUESTION, ANSWER)
    assert ContentFilter().shown(recorded(**TURN)).attributes == {KIND: "CHAIN"}


def test_a_redacted_text_is_redacted_in_both_conventions() -> None:
    """The second attribute of a text is written from the redacted text."""
    private = {**TURN, semconv.QUESTION: "Who is ada@example.com?"}
    shown = ContentFilter(exported="all", redactor=redactor(hide("ada@example.com"))).shown(
        recorded(**private)
    )
    assert (shown.attributes or {})["input.value"] == "Who is [redacted]?"


@pytest.mark.parametrize(
    "others",
    [
        {KIND: "AGENT"},
        {"gen_ai.operation.name": "chat"},
        {"traceloop.span.kind": "workflow"},
    ],
)
def test_a_span_of_another_instrumentation_keeps_its_kind(others: dict[str, str]) -> None:
    """A span that an instrumentation describes gets no second description."""
    shown = ContentFilter(exported="all").shown(recorded(**TURN, **others))
    assert dict(shown.attributes or {}) == {**TURN, **others}
