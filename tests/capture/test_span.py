"""Spans in their one form: of the SDK, of OTLP, as plain data with a limit, and whose they are."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1 import trace_pb2 as otlp
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode

from plain_views import Role, View, Word, ring
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.span import Copier, LogView, Span, about, has_none, value, word
from rag_eval_otel.capture.values import CUT

OI = "openinference.span.kind"


def test_a_span_of_the_sdk() -> None:
    """A real span is seen as it is, with the limit at which its values are cut."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(max_span_attribute_length=50))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("somebody")
    with tracer.start_as_current_span("root"), tracer.start_as_current_span("inner") as inner:
        inner.set_attribute("input.value", "When?")
        inner.add_event("happened", {"a": 1})
        assert not Span.from_sdk(inner).events  # type: ignore[arg-type]
        inner.set_status(Status(StatusCode.ERROR, "it broke"))
    child, root = (Span.from_sdk(one) for one in exporter.get_finished_spans())
    assert (child.name, child.scope, child.error) == ("inner", "somebody", "it broke")
    assert (child.trace_id, child.parent_id) == (root.trace_id, root.span_id)
    assert (root.parent_id, root.parent_is_remote, root.error) == (None, False, None)
    assert [(name, dict(values)) for name, values in child.events] == [("happened", {"a": 1})]
    assert (child.value_limit, child.dropped, tuple(child.logs)) == (50, 0, ())
    assert value(child, "input.value") == "When?"
    assert 0 < root.start <= child.start <= (child.end or 0) <= (root.end or 0)
    (sdk, _) = exporter.get_finished_spans()
    assert [has_none(frozenset({name}), sdk) for name in ("input.value", "x")] == [False, True]


def text(of: str) -> AnyValue:
    return AnyValue(string_value=of)


def attributes(**values: AnyValue) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in values.items()]


def test_a_span_of_otlp() -> None:
    """Ids, times, values at any depth, and whether the parent is in another process."""
    nested = ArrayValue(values=[text("a"), AnyValue(int_value=1), AnyValue()])
    span = otlp.Span(
        name="inner",
        trace_id=b"\1" * 16,
        span_id=b"\2" * 8,
        parent_span_id=b"\3" * 8,
        start_time_unix_nano=5,
        end_time_unix_nano=9,
        flags=0x300,
        attributes=attributes(
            list=AnyValue(array_value=nested),
            dict=AnyValue(kvlist_value=KeyValueList(values=attributes(b=text("c")))),
        ),
        events=[otlp.Span.Event(name="happened", attributes=attributes(d=text("e")))],
        dropped_attributes_count=1,
        dropped_events_count=2,
        status=otlp.Status(code=otlp.Status.STATUS_CODE_ERROR, message="it broke"),
    )
    view = Span.from_otlp(span, scope="somebody")
    assert (view.name, view.scope, view.start, view.end) == ("inner", "somebody", 5, 9)
    ids = [int.from_bytes(bytes([n]) * size, "big") for n, size in ((1, 16), (2, 8), (3, 8))]
    assert [view.trace_id, view.span_id, view.parent_id] == ids
    assert view.attributes == {"list": ["a", 1, None], "dict": {"b": "c"}}
    assert view.events == [("happened", {"d": "e"})]
    assert (view.dropped, view.dropped_events, view.error) == (1, 2, "it broke")
    assert view.parent_is_remote
    cases = ((0x100, "SERVER", False), (0, "SERVER", True), (0, "CLIENT", False))
    for flags, kind, is_remote in cases:
        span.flags, span.kind = flags, otlp.Span.SpanKind.Value(f"SPAN_KIND_{kind}")
        assert Span.from_otlp(span).parent_is_remote is is_remote
    span.parent_span_id, span.kind = b"", otlp.Span.SPAN_KIND_CONSUMER
    root = Span.from_otlp(span)
    assert (root.parent_id, root.parent_is_remote) == (None, False)
    record = LogRecord(attributes=attributes(**{"event.name": text("x")}), body=text("y"))
    assert LogView.from_otlp(record) == LogView(event="x", body="y", attributes={"event.name": "x"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Role.USER, "user"),
        (Word("said"), "said"),
        (b"caf\xc3\xa9", "café"),
        (np.str_("a"), "a"),
        (np.float64(0.5), 0.5),
        (("a", Role.USER), ["a", "user"]),
        (OrderedDict(a=(1, None)), {"a": [1, None]}),
        (httpx.Headers([("a", "1"), ("b", "2"), ("a", "3")]), {"a": "1, 3", "b": "2"}),
        ({Role.USER: {b"b"}}, {"user": ["b"]}),
        (object(), None),
        (True, True),
        ([(inner := ["a"]), inner], [["a"], ["a"]]),
        (ring(), [None]),
    ],
)
def test_values_become_plain_data(value: Any, expected: Any) -> None:
    """Strings, numbers, lists and dicts of exactly these types, and nothing else."""
    found = Copier().value(value)
    assert found == expected
    assert type(found) is type(expected)


def test_attributes() -> None:
    """Short ones are words; the first of several counts; where some were dropped, one may be."""
    view = View(attributes={"kind": Role.USER, "number": 7, "json": '["a"]', "none": None})
    assert [word(view, name) for name in ("kind", "number", "none")] == ["user", "7", None]
    assert [value(view, "x", "json"), value(view, "x")] == [["a"], None]
    assert value(View(attributes={}, dropped=1), "x") is CUT
    assert value(View(attributes={"a": "b" * 9}, value_limit=9), "a") is CUT


MOST = 100
WHOLE, LONG = "a" * MOST, "b" * (MOST + 1)


def test_a_longer_text_is_cut_one_character_later() -> None:
    """A text at the limit is whole; the length of a longer one shows that it is cut."""
    copier = Copier(MOST)
    assert copier.value({"a": WHOLE, "b": [WHOLE]}) == {"a": WHOLE, "b": [WHOLE]}
    assert not copier.is_cut
    assert copier.value(["c", "b" * 10_000]) == ["c", LONG]
    assert copier.is_cut


def test_the_texts_of_long_json_are_cut_by_themselves() -> None:
    """JSON may be longer than one text; above four times as much, it is cut, and not parsed."""
    copier = Copier(MOST)
    pages = [{"text": WHOLE, "id": 1}, {"text": WHOLE, "id": 2}]
    assert copier.value(json.dumps(pages)) == pages
    assert not copier.is_cut
    assert copier.value(json.dumps([LONG, LONG * 2])) == [LONG, LONG]
    assert copier.value(json.dumps(pages * 2)) == json.dumps(pages * 2)[: MOST + 1]
    assert copier.is_cut


def test_a_plain_span() -> None:
    """Names, attributes, events and log records are cut, and so is the limit of what is read."""
    long = "x" * (MOST + 9)
    log = LogView(event=long, body=long, attributes={"a": long})
    view = View(
        name=long, scope=long, attributes={"a": long}, events=[(long, {"a": 1})], logs=[log]
    )
    plain, short = view.plain(MOST), "x" * MOST
    assert (plain.name, plain.scope, plain.events) == (short, short, [(short, {"a": 1})])
    assert plain.attributes == {"a": f"{short}x"}
    assert plain.logs == [LogView(event=short, body=f"{short}x", attributes={"a": f"{short}x"})]
    assert (plain.value_limit, plain.is_cut, view.plain().is_cut) == (MOST + 1, True, False)
    assert View(attributes={}, value_limit=7).plain(MOST).value_limit == 7
    route = View(attributes={"http.route": "/ask", "a": 1}, events=[("b", {})]).bystander()
    assert (route.attributes, route.events) == ({"http.route": "/ask"}, ())


@pytest.mark.parametrize("name", ["input.value", "retrieval.documents.0.document.content"])
def test_a_step_with_a_cut_text(name: str) -> None:
    """It says so, as half of a text might make a wrong sample; an image is no text of a turn."""
    assert read(View(attributes={OI: "RETRIEVER", name: LONG}), most=MOST).is_cut
    told = json.dumps({"answer": WHOLE, "image": LONG})
    assert not read(View(attributes={OI: "CHAIN", "output.value": told}), most=MOST).is_cut


# --- whose turn it was ----------------------------------------------------------------------------

ALL = {"session.id": "s-1", "user.id": "u-1", "gen_ai.conversation.id": "s-1"}


@pytest.mark.parametrize(
    "attributes",
    [
        {"session.id": "s-1", "user.id": "u-1"},
        {"metadata": '{"session_id": "s-1", "user_id": "u-1"}'},
        {"metadata.session_id": "s-1", "metadata.user_id": "u-1"},
        {"langsmith.metadata.session_id": "s-1", "langsmith.metadata.user_id": "u-1"},
        {
            "langfuse.observation.metadata.langfuse_session_id": '"s-1"',
            "langfuse.observation.metadata.langfuse_user_id": '"u-1"',
        },
        {
            "traceloop.association.properties.session_id": "s-1",
            "traceloop.association.properties.user_id": "u-1",
        },
        {"mlflow.trace.session": "s-1", "mlflow.trace.user": "u-1"},
        {"session.id": "s-1", "enduser.id": "u-1", "metadata": "{broken"},
        {"session.id": "s-1", "user.id": "u-1", "metadata": '["a list"]'},
        {"session.id": "s-1", "user.id": "u-1", "metadata": '{"session_id": null, "user_id": ""}'},
    ],
)
def test_names_of_libraries(attributes: Mapping[str, Any]) -> None:
    """Session and user are read from the attributes of each library."""
    assert about([read(View(attributes=attributes)).metadata]) == ALL


@pytest.mark.parametrize("value", [True, ["s"], {"a": 1}, None, "", 0])
def test_what_is_no_name_of_anybody(value: object) -> None:
    """A session is a text or a number."""
    assert about([{"session_id": value}]) == {}


def test_the_nearest_counts() -> None:
    """What a step says of itself goes before what is above it."""
    steps = [{"user_id": ""}, {"user_id": "near"}, {"user_id": "far", "thread_id": "t"}]
    assert about(steps) == {"user.id": "near", "gen_ai.conversation.id": "t"}


def test_chosen_metadata() -> None:
    """Of everything else only what is asked for is told, where it is a plain value."""
    metadata = {"tenant": "a", "tier": 2, "beta": False, "list": [1], "secret": "x"}
    chosen = about([metadata], ["tenant", "tier", "beta", "list", "missing"])
    expected = {"tenant": "a", "tier": 2, "beta": False}
    assert chosen == {f"rag.metadata.{name}": value for name, value in expected.items()}
