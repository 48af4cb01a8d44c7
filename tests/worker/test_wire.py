"""Requests are bounded before they are parsed, divided by trace, and keep what is not known."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from base64 import b64decode
from collections.abc import Callable

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import Event

from rag_eval_otel.worker import wire
from rag_eval_otel.worker.wire import LARGEST, TooLargeError, UnreadableError, count_spans, parsed
from wires import UNKNOWN, attributes, content, request, span, turn


def sized(tag: int, inside: bytes) -> bytes:
    """Return a field of protobuf with ``inside``."""
    size, number = b"", len(inside)
    while number > 0x7F:
        size, number = size + bytes([number & 0x7F | 0x80]), number >> 7
    return bytes([tag]) + size + bytes([number]) + inside


def filled(part: bytes, most: int = LARGEST - 1000) -> bytes:
    return part * (most // len(part))


def in_scope(spans: bytes) -> bytes:
    return sized(0x0A, sized(0x12, spans))


def in_span(fields: bytes) -> bytes:
    return in_scope(sized(0x12, span(1, 1).SerializeToString() + fields))


ATTACKS: dict[str, Callable[[], bytes]] = {
    "resources": lambda: filled(b"\x0a\x00"),
    "scopes": lambda: sized(0x0A, filled(b"\x12\x00")),
    "spans without ids": lambda: in_scope(filled(b"\x12\x00")),
    "events": lambda: in_span(filled(b"\x5a\x00")),
    "events with a number": lambda: in_span(filled(b"\x5a\x02\x20\x01")),
    "links": lambda: in_span(filled(b"\x6a\x00")),
    "attributes": lambda: in_span(filled(b"\x4a\x00")),
    "attributes of an event": lambda: in_span(sized(0x5A, filled(b"\x1a\x00"))),
    "values in a list": lambda: in_span(
        sized(0x4A, b"\x0a\x01x" + sized(0x12, sized(0x2A, filled(b"\x0a\x00"))))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_request_of_many_parts_is_refused_before_it_is_parsed(name: str) -> None:
    """The parser would take gigabytes for a few kilobytes of gzip."""
    bomb = gzip.compress(ATTACKS[name]())
    assert len(bomb) < 20_000
    with pytest.raises(TooLargeError, match="larger than max"):
        count_spans(wire.unpacked(bomb))


def test_parts_inside_of_spans_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here with a limit of a thousandth of the usual one."""
    monkeypatch.setattr(wire, "_PARTS", 500)
    monkeypatch.setitem(wire._LIMITS, "message", 500)  # noqa: SLF001
    with pytest.raises(TooLargeError, match="more than 500 parts of the kind message"):
        count_spans(in_span(sized(0x4A, sized(0x12, sized(0x2A, filled(b"\x0a\x00", 1500))))))


def test_a_request_that_unpacks_to_too_much_is_refused() -> None:
    """The size counts after decompression, which stops at the limit."""
    with pytest.raises(TooLargeError, match=f"more than {LARGEST} bytes"):
        wire.unpacked(gzip.compress(bytes(LARGEST + 1)))
    with pytest.raises(TooLargeError):
        count_spans(bytes(LARGEST + 1))


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, bytes])
def test_a_compressed_request_is_recognised(pack: Callable[[bytes], bytes]) -> None:
    """By its first bytes, as gRPC does not say whether a message is compressed."""
    plain = content(*turn(1))
    assert wire.unpacked(pack(plain)) == plain


@pytest.mark.parametrize(
    ("read", "broken"),
    [
        # Fields that are longer than their message, groups, and numbers without an end.
        (count_spans, b"\x0a\x05\x12"),
        (count_spans, b"\x0b\x01"),
        (count_spans, b"\x0a" + b"\xff" * 10 + b"\x01"),
        # What is cut, goes on after its end, or only begins like gzip or zlib.
        (wire.unpacked, gzip.compress(content(*turn(1)))[:-9]),
        (wire.unpacked, gzip.compress(content(*turn(1))) * 2),
        (wire.unpacked, b"\x1f\x8b\x08nothing"),
        (parsed, in_span(sized(0x2A, b"\xff"))),  # a name that is not UTF-8
    ],
)
def test_a_broken_request_is_not_read(read: Callable[[bytes], object], broken: bytes) -> None:
    """The error says what was expected."""
    with pytest.raises(UnreadableError, match="no OTLP in protobuf" if read is parsed else None):
        read(broken)


@pytest.mark.parametrize("seed", range(20))
def test_spans_are_counted_as_protobuf_counts_them(seed: int) -> None:
    """Without the parser, in random requests, of which some are large enough for a closer look."""
    chance = random.Random(seed)
    message = ExportTraceServiceRequest()
    for _ in range(chance.randrange(5)):
        spans = [span(n, 1, text="x" * chance.randrange(40_000)) for n in range(1, 4)]
        message.MergeFrom(request(*spans[: chance.randrange(4)]))
    assert count_spans(message.SerializeToString()) == sum(
        len(scope.spans) for group in message.resource_spans for scope in group.scope_spans
    )


def test_a_request_is_divided_into_rag_traces_and_the_rest() -> None:
    """A trace without a mark goes on, unless it is known already; unknown fields stay."""
    message = request(*turn(1), span(2, 1), span(3, 1), *turn(4)[:2])
    message.MergeFrom(request(span(1, 7, parent=1), service="shipping"))
    message.MergeFromString(UNKNOWN)
    rest, parts = wire.divided(message.SerializeToString(), {(3).to_bytes(16, "big")})
    by_number = {int.from_bytes(key, "big"): part for key, part in parts.items()}
    assert {n: (part.spans, part.has_root) for n, part in by_number.items()} == {
        1: (4, True),
        3: (1, True),
        4: (2, False),
    }
    services = [
        attributes(group.resource)["service.name"]
        for group in parsed(by_number[1].content).resource_spans
    ]
    assert services == ["shop", "shipping"]
    names = {group.schema_url for group in parsed(by_number[1].content).resource_spans}
    assert names == {"resource/1"}
    assert [message.span_id for message in _spans(rest)] == [span(2, 1).span_id]
    everything = sorted(
        message.SerializeToString()
        for part in (rest, *(p.content for p in parts.values()))
        for message in _spans(part)
    )
    assert everything == sorted(m.SerializeToString() for m in _spans(message.SerializeToString()))


def _spans(content: bytes) -> list[ExportTraceServiceRequest]:
    return [
        s for g in parsed(content).resource_spans for scope in g.scope_spans for s in scope.spans
    ]


def test_a_request_without_rag_goes_on_byte_for_byte() -> None:
    """It is not parsed, or not changed if a text has the name of a mark."""
    plain, quoted = content(span(1, 1, text="x")), content(span(1, 1, text="rag.question"))
    assert not wire.may_have_rag(plain)
    assert wire.may_have_rag(content(span(1, 1, rag__question="x")))
    assert wire.divided(plain, ()) == (plain, {})
    assert wire.divided(quoted, ()) == (quoted, {})


@pytest.mark.parametrize("trace_id", [b"", b"\0" * 16, b"x"])
def test_a_span_without_a_valid_trace_id_goes_on_unread(trace_id: bytes) -> None:
    """Such spans belong to no trace."""
    spans = turn(1)
    for message in spans:
        message.trace_id = trace_id
    plain = content(*spans)
    assert wire.divided(plain, ()) == (plain, {})


def test_many_traces_of_a_large_resource_are_refused() -> None:
    """Each trace gets a copy of its resource, so a small request could become a large one."""
    message = request(*(s for n in range(1, 200) for s in turn(n)))
    value = message.resource_spans[0].resource.attributes.add(key="x").value
    value.string_value = "x" * 100_000
    with pytest.raises(TooLargeError, match="too many traces"):
        wire.divided(message.SerializeToString(), ())


def test_json_becomes_the_same_request() -> None:
    """Ids are hexadecimal in OTLP JSON, and unknown fields are ignored."""
    message = request(*turn(1))
    for one in message.resource_spans[0].scope_spans[0].spans:
        one.DiscardUnknownFields()
        one.links.add(trace_id=bytes(15) + b"\x07", span_id=bytes(7) + b"\x07")
    data = MessageToDict(message)
    for one in data["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for part in (one, *one["links"]):
            for name in part.keys() & {"traceId", "spanId", "parentSpanId"}:
                part[name] = b64decode(part[name]).hex()
    data["new field"] = 1
    assert parsed(wire.from_json(json.dumps(data).encode())) == message


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '{"resourceSpans": 1}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"kind": Infinity}]}]}]}',
        '{"resourceSpans": [{"resource": "\\ud800"}]}',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_json_that_is_no_otlp_is_not_read(text: str) -> None:
    """Also not if it is nested too deep for the parser."""
    with pytest.raises(UnreadableError):
        wire.from_json(text.encode())


def test_json_of_many_objects_is_refused() -> None:
    """They are counted before the text is parsed."""
    with pytest.raises(TooLargeError):
        wire.from_json(b'{"resourceSpans":[' + b"{}," * 600_000 + b"{}]}")


def test_scores_are_added_to_the_message_of_a_span() -> None:
    """Values of all types, and an event; what was there stays, unknown fields included."""
    message = span(1, 1, text="x")
    values = {"score": 0.5, "label": "pass", "tokens": 3, "is": True, "ids": ["a", "b"]}
    wire.write(message, values, [Event("event", {"name": "faithfulness"}, timestamp=7)])
    found = attributes(message)
    assert {key: found[key] for key in ("score", "label", "tokens", "is", "text")} == {
        **{k: v for k, v in values.items() if k != "ids"},
        "text": "x",
    }
    assert [value.string_value for value in found["ids"].values] == ["a", "b"]
    assert (message.events[0].name, message.events[0].time_unix_nano) == ("event", 7)
    assert attributes(message.events[0]) == {"name": "faithfulness"}
    assert UNKNOWN in message.SerializeToString()


def test_texts_are_stripped_from_spans_and_events() -> None:
    """Kinds and names stay."""
    message = request(*turn(1))
    first = message.resource_spans[0].scope_spans[0].spans[0]
    event = first.events.add(name="gen_ai.content.prompt")
    event.attributes.add(key="gen_ai.prompt").value.string_value = "secret"
    wire.strip(message)
    assert attributes(first) == {"openinference.span.kind": "RETRIEVER"}
    assert not event.attributes


@pytest.mark.parametrize("size", [1_000, 900_000, 3_000_000])
def test_a_large_request_is_divided_between_resources(size: int) -> None:
    """Its parts are requests of at most 2 MiB, or of one resource, and have all its bytes."""
    parts = [content(span(1, n + 1, name="x" * size)) for n in range(5)]
    divided_parts = list(wire.pieces(b"".join(parts)))
    assert b"".join(divided_parts) == b"".join(parts)
    assert len(divided_parts) == {1_000: 1, 900_000: 3, 3_000_000: 5}[size]
    assert sum(map(count_spans, divided_parts)) == 5
    assert list(wire.pieces(b"")) == [b""]
