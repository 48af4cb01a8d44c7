"""How many parts a request may have."""

# ruff: noqa: SLF001  # the limits are lowered, so that tests are small

from __future__ import annotations

import json
import random

import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rag_eval_otel.worker import parts
from rag_eval_otel.worker.parts import TooManyPartsError, check_parts, read_json
from wires import request_with, span


def batch(spans: int, *, attributes: int = 12) -> ExportTraceServiceRequest:
    made = ExportTraceServiceRequest()
    for first in range(0, spans, 10):
        request = request_with(*map(span, range(first + 1, first + 11)), service=f"shop {first}")
        for one in request.resource_spans[0].scope_spans[0].spans:
            for number in range(attributes):
                one.attributes.add(key=f"http.request.{number}").value.string_value = "a value"
        made.MergeFrom(request)
    return made


def test_a_large_batch_of_a_collector_may_pass() -> None:
    """10,000 spans with 20 attributes each are no attack."""
    content = batch(10_000).SerializeToString()
    assert len(content) < 16 * 2**20
    check_parts(ExportTraceServiceRequest, content)


@pytest.mark.parametrize("text", ['Zj\n"J', '\\" {[,', "ÊÚêŠ"])
def test_texts_do_not_count_as_parts(text: str) -> None:
    """A long text of the bytes with which parts begin is one part."""
    request = request_with(span(1, change=lambda one: setattr(one, "name", text * 1_000_000)))
    check_parts(ExportTraceServiceRequest, request.SerializeToString())
    content = {"resourceSpans": [{"schemaUrl": text * 1_000_000}]}
    assert read_json(json.dumps(content).encode()) == content


@pytest.mark.parametrize("most", [9, 10])
def test_parts_are_counted_exactly(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit a request passes, with one part more it does not."""
    monkeypatch.setitem(parts._MOST, "Event", most)
    monkeypatch.setattr(parts, "_BOUNDS", ((parts._BOUNDS[0][0], 0),))
    content = batch(10).SerializeToString()  # one event in each
    if most < 10:
        with pytest.raises(TooManyPartsError, match="larger than max"):
            check_parts(ExportTraceServiceRequest, content)
    else:
        check_parts(ExportTraceServiceRequest, content)


def test_what_protobuf_reads_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random changes of a request, those that protobuf reads may pass.

    Changes that make a group, which OTLP does not have, are refused.
    """
    chance = random.Random(22)
    content = batch(10, attributes=1).SerializeToString()
    read = groups = 0
    for _ in range(3000):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 2))):
            changed[chance.randrange(len(changed))] = chance.choice(content)
        try:
            ExportTraceServiceRequest.FromString(bytes(changed))
        except DecodeError:
            continue
        read += 1
        for bound in (0, 1_000_000):
            monkeypatch.setattr(parts, "_BOUNDS", ((parts._BOUNDS[0][0], bound),))
            try:
                check_parts(ExportTraceServiceRequest, bytes(changed))
            except ValueError:
                groups += 1
    assert read > 1000
    assert groups < read / 200


@pytest.mark.parametrize(
    "content", [b"\x0a", b"\x0a\x05a", b"\x0b", b"\x80", b"\x0a" + b"\xff" * 11]
)
def test_broken_content_is_malformed(content: bytes) -> None:
    """A field that is cut off, and a group, are errors."""
    for kind in (ExportTraceServiceRequest, ExportLogsServiceRequest):
        with pytest.raises(ValueError, match=r"field|number"):
            check_parts(kind, content)


def test_log_records_are_counted() -> None:
    """Their limit is that of spans."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for _ in range(32_769):
        scope.log_records.add()
    with pytest.raises(TooManyPartsError, match="32768 parts of the kind LogRecord"):
        check_parts(ExportLogsServiceRequest, request.SerializeToString())
