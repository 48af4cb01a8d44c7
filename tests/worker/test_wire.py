"""Tests of `rag_eval_otel.worker.wire`: spans of OTLP are changed without losing anything."""

import pytest
from opentelemetry.sdk.trace import Event

from rag_eval_otel.export.attributes import ContentFilter, copied
from rag_eval_otel.worker.wire import (
    ReadableWireSpan,
    Receipt,
    WireSpan,
    count_spans,
    plain_attributes,
    request_of,
    spans_in,
    untracked,
)
from wires import UNKNOWN, request_with, span


def wire(number: int = 1) -> WireSpan:
    return spans_in(request_with(span(number)), untracked())[0]


def done() -> tuple[list[str], Receipt]:
    calls: list[str] = []
    return calls, Receipt(2, lambda: calls.append("done"))


class TestReceipt:
    """A receipt knows when all spans of a request have left."""

    def test_calls_once_when_the_last_span_has_left(self) -> None:
        """Further reports change nothing."""
        calls, receipt = done()
        receipt.left()
        assert calls == []
        receipt.left()
        receipt.left()
        assert calls == ["done"]

    def test_of_no_spans_is_done_at_once(self) -> None:
        """A message without spans is committed, too."""
        calls: list[str] = []
        Receipt(0, lambda: calls.append("done"))
        assert calls == ["done"]

    def test_that_is_revoked_is_never_done(self) -> None:
        """The partition's new owner commits the message."""
        calls, receipt = done()
        receipt.revoke()
        receipt.left()
        receipt.left()
        assert calls == []


class TestRequests:
    """Spans are taken out of requests, and put into others."""

    def test_spans_are_taken_out_and_put_back_as_they_came(self) -> None:
        """Resource, scope, schema URLs, order and unknown fields are those of the request."""
        request = request_with(span(1), span(2))
        request.resource_spans[0].MergeFromString(UNKNOWN)
        request.resource_spans[0].scope_spans[0].MergeFromString(UNKNOWN)
        before = request.SerializeToString(deterministic=True)
        assert count_spans(request) == 2
        spans = spans_in(request, untracked())
        assert count_spans(request) == 0
        assert [one.message.name for one in spans] == ["span 1", "span 2"]
        assert request_of(spans).SerializeToString(deterministic=True) == before

    def test_spans_of_several_requests_share_their_resource(self) -> None:
        """Equal resources and scopes are sent once for a batch."""
        first = spans_in(request_with(span(1), scope="a"), untracked())
        second = spans_in(request_with(span(2), scope="b"), untracked())
        third = spans_in(request_with(span(3), scope="a"), untracked())
        other = spans_in(request_with(span(4), service="other"), untracked())
        request = request_of([*first, *second, *third, *other])
        assert [
            [(group.scope.name, [s.name for s in group.spans]) for group in resource.scope_spans]
            for resource in request.resource_spans
        ] == [[("a", ["span 1", "span 3"]), ("b", ["span 2"])], [("acme", ["span 4"])]]

    def test_the_origin_names_service_and_scope(self) -> None:
        """Service and scope are read once for many spans."""
        origin = wire().origin
        assert (origin.service, origin.scope) == ("shop", "acme")

    @pytest.mark.parametrize("length", [10, 1_000_000])
    def test_large_origins_are_not_kept(self, length: int) -> None:
        """A thousand resources of a megabyte would fill the memory, beside all limits."""
        first, second = (
            spans_in(request_with(span(1), service="x" * length), untracked())[0].origin
            for _ in range(2)
        )
        assert (first is second) == (length == 10)
        assert first.service == second.service

    def test_a_detached_span_has_its_unknown_fields(self) -> None:
        """A copy has the same content, and is changed apart from the original."""
        one = wire()
        made = one.detached()
        assert made.message.SerializeToString() == one.message.SerializeToString()
        made.message.name = "other"
        assert one.message.name == "span 1"


class TestReadable:
    """The pipeline reads a span of OTLP, and its changes are written into the message."""

    def test_has_the_fields_of_the_message(self) -> None:
        """Ids, times, parent, status, counts, attributes and events are those of the message."""

        def change(message: object) -> None:
            message.parent_span_id = b"\0" * 7 + b"\5"  # type: ignore[attr-defined]
            message.flags = 0x301  # type: ignore[attr-defined]
            message.status.code = 2  # type: ignore[attr-defined]
            message.status.message = "broken"  # type: ignore[attr-defined]
            message.dropped_attributes_count = 3  # type: ignore[attr-defined]

        found = spans_in(request_with(span(2, change=change)), untracked())[0]
        read = ReadableWireSpan(found, value_limit=9)
        assert (read.name, read.start_time, read.end_time) == ("span 2", 2000, 2500)
        assert read.context is not None
        assert (read.context.trace_id, read.context.span_id) == found.key == (2, 2)
        assert read.parent is not None
        assert (read.parent.span_id, read.parent.is_remote) == (5, True)
        assert (read.status.is_ok, read.status.description) == (False, "broken")
        assert (read.dropped_attributes, read.dropped_events) == (3, 0)
        assert read.instrumentation_scope is not None
        assert read.instrumentation_scope.name == "acme"
        assert dict(read.attributes or {}) == {
            "text": "hello",
            "flag": True,
            "count": 1,
            "share": 1.0,
            "raw": b"\xff",
            "list": ["one"],
            "map": {"k": 2},
            "empty": None,
        }
        assert [(one.name, dict(one.attributes or {})) for one in read.events] == [
            ("event", {"of event": "x"})
        ]

    def test_an_unchanged_span_is_exported_as_it_came(self) -> None:
        """Without a difference, not a byte of the message changes."""
        one = wire()
        before = one.message.SerializeToString()
        assert ReadableWireSpan(one).written() is one
        assert one.message.SerializeToString() == before

    @pytest.mark.parametrize("dropped", [0, 3])
    def test_scores_are_added_and_nothing_else_changes(self, dropped: int) -> None:
        """Attributes that the SDK cannot have, such as bytes and maps, and unknown fields stay."""
        one = wire()
        one.message.dropped_attributes_count = dropped
        expected = span(1)
        expected.dropped_attributes_count = dropped
        expected.attributes.add(key="rag.evaluation.status").value.string_value = "scored"
        expected.attributes.add(key="score").value.double_value = 1.0
        expected.events.add(name="score", time_unix_nano=9).attributes.add(
            key="value"
        ).value.int_value = 1
        read = ReadableWireSpan(one)
        enriched = copied(
            read,
            attributes={**(read.attributes or {}), "rag.evaluation.status": "scored", "score": 1.0},
            events=[*read.events, Event("score", {"value": 1}, 9)],
        )
        assert isinstance(enriched, ReadableWireSpan)
        enriched.written()
        assert one.message.SerializeToString() == expected.SerializeToString()

    def test_a_value_that_is_equal_but_of_another_type_is_written(self) -> None:
        """Python says that 1 equals True; OTLP has a type for each."""
        one = wire()
        changed = copied(ReadableWireSpan(one), attributes={"count": True}, events=())
        assert isinstance(changed, ReadableWireSpan)
        changed.written()
        assert plain_attributes(one.message.attributes) == {"count": True}
        assert one.message.attributes[0].value.WhichOneof("value") == "bool_value"
        assert not one.message.events

    def test_all_attributes_of_a_removed_name_go(self) -> None:
        """A message may have a name twice; removed content must not stay in the other one."""
        one = wire()
        one.message.attributes.add(key="input.value").value.string_value = "secret"
        one.message.attributes.add(key="input.value").value.string_value = "secret, too"
        shown = ContentFilter(exported="none").shown(ReadableWireSpan(one))
        assert isinstance(shown, ReadableWireSpan)
        shown.written()
        assert b"secret" not in one.message.SerializeToString()
        assert one.message.SerializeToString().endswith(UNKNOWN)

    def test_attributes_of_events_are_changed_in_place(self) -> None:
        """A redacted event keeps its name and its time."""
        one = wire()
        read = ReadableWireSpan(one)
        event = Event("event", {"of event": "redacted"}, 7)
        changed = copied(read, attributes=read.attributes or {}, events=[event])
        assert isinstance(changed, ReadableWireSpan)
        changed.written()
        found = one.message.events[0]
        assert plain_attributes(found.attributes) == {"of event": "redacted"}
        assert (found.name, found.time_unix_nano) == ("event", 7)
