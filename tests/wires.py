"""Requests of spans for the tests of the worker."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from live import answered, generated, retrieved
from rag_eval_otel.capture.otlp import ExportedSpan
from rag_eval_otel.worker.wire import (
    WireGroup,
    WireSpan,
    add_attributes,
    plain_attributes,
    set_value,
)
from replay import Recording

UNKNOWN = b"\xfa\x07\x03new"  # field 127, a text, that no version of OTLP has


def request_with(
    *spans: Span, service: str = "shop", scope: str = "acme"
) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add(schema_url="resource/1")
    resource.resource.attributes.add(key="service.name").value.string_value = service
    group = resource.scope_spans.add(schema_url="scope/1")
    group.scope.name = scope
    group.spans.extend(spans)
    return request


def span(number: int, *, change: Callable[[Span], None] = lambda _: None) -> Span:
    """Return a span with an unknown field, an attribute of each kind and an event."""
    made = Span(
        trace_id=number.to_bytes(16, "big"),
        span_id=number.to_bytes(8, "big"),
        name=f"span {number}",
        start_time_unix_nano=1_000 * number,
        end_time_unix_nano=1_000 * number + 500,
        trace_state="a=b",
    )
    values = made.attributes
    values.add(key="text").value.string_value = "hello"
    values.add(key="flag").value.bool_value = True
    values.add(key="count").value.int_value = 1
    values.add(key="share").value.double_value = 1.0
    values.add(key="raw").value.bytes_value = b"\xff"
    values.add(key="list").value.array_value.values.add().string_value = "one"
    values.add(key="map").value.kvlist_value.values.add(key="k").value.int_value = 2
    values.add(key="empty")
    made.events.add(name="event", time_unix_nano=7).attributes.add(
        key="of event"
    ).value.string_value = "x"
    change(made)
    made.MergeFromString(UNKNOWN)
    return made


@dataclass(slots=True)
class FakeOutput:
    """An output that acknowledges spans at once, or keeps them until `acknowledge`."""

    sent: list[WireSpan] = field(default_factory=list)
    waiting: list[WireSpan] = field(default_factory=list)
    logs: list[ExportLogsServiceRequest] = field(default_factory=list)
    is_slow: bool = False
    size: int = 0
    closed: float | None = None
    changed: Condition = field(default_factory=Condition)

    def put(self, span: WireSpan) -> None:
        with self.changed:
            self.waiting.append(span)
            if not self.is_slow:
                self.acknowledge()

    def put_group(self, group: WireGroup) -> None:
        for span in group.spans():
            self.put(span)

    def acknowledge(self) -> None:
        """Send the spans that were kept."""
        with self.changed:
            waiting, self.waiting = self.waiting, []
            self.sent += waiting
            self.changed.notify_all()
        for one in waiting:
            one.receipt.left()

    def put_logs(self, request: ExportLogsServiceRequest) -> None:
        self.logs.append(request)

    def flush(self, timeout: float) -> bool:
        return not self.waiting

    def close(self, timeout: float) -> None:
        self.closed = timeout

    def wait_for(self, number: int) -> list[Span]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.sent) >= number, 60), len(self.sent)
            return [one.message for one in self.sent]


def attributes_of(message: Span) -> dict[str, Any]:
    return plain_attributes(message.attributes)


def turn_spans(number: int, *, parent: int | None = None, trace: int | None = None) -> list[Span]:
    """Return retriever, LLM and chain of a turn, as OpenInference writes them, in order of end.

    The chain is the root of the trace ``number``, or the child of the span ``parent`` in ``trace``.
    """
    kinds = {"RETRIEVER": retrieved, "LLM": generated, "CHAIN": answered}
    chain = 10 * number
    made = []
    for i, (kind, content) in enumerate(kinds.items(), start=1):
        above = parent if kind == "CHAIN" else chain
        one = Span(
            trace_id=(trace or number).to_bytes(16, "big"),
            span_id=(chain if kind == "CHAIN" else chain + i).to_bytes(8, "big"),
            parent_span_id=b"" if above is None else above.to_bytes(8, "big"),
            name=kind.lower(),
            start_time_unix_nano=1_000_000 * number + (0 if kind == "CHAIN" else 10 * i),
            end_time_unix_nano=1_000_000 * number + 10 * i + 5,
        )
        add_attributes(one.attributes, {"openinference.span.kind": kind, **content(number)})
        one.MergeFromString(UNKNOWN)
        made.append(one)
    return made


def requests_of(recording: Recording) -> Iterator[tuple[int, Any]]:
    """Yield a request with the logs of each recorded span, and one with the span, with its time."""
    for call in recording.calls:
        if call.operation == "end":
            view = call.span
            if view.logs:
                yield call.at, logs_of(view)
            yield call.at, request_with(recorded(view), scope=view.scope)


def recorded(view: ExportedSpan) -> Span:
    """Return a recorded span as an exporter of OTLP sends it."""
    flags = 0x100 | (0x200 if view.parent_is_remote else 0)
    made = Span(
        trace_id=view.trace_id.to_bytes(16, "big"),
        span_id=view.span_id.to_bytes(8, "big"),
        parent_span_id=b"" if view.parent_id is None else view.parent_id.to_bytes(8, "big"),
        name=view.name,
        flags=flags if view.parent_id is not None else 0,
        start_time_unix_nano=view.start,
        end_time_unix_nano=view.end or 0,
        dropped_attributes_count=view.dropped,
        dropped_events_count=view.dropped_events,
    )
    add_attributes(made.attributes, view.attributes)
    for name, values in view.events:
        event = made.events.add(name=name, time_unix_nano=view.start)
        add_attributes(event.attributes, values)
    if view.error is not None:
        made.status.code, made.status.message = Status.STATUS_CODE_ERROR, view.error
    return made


def logs_of(view: ExportedSpan) -> ExportLogsServiceRequest:
    """Return the log records of a recorded span as an exporter of OTLP sends them."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for log in view.logs:
        record = scope.log_records.add(
            event_name=log.event,
            trace_id=view.trace_id.to_bytes(16, "big"),
            span_id=view.span_id.to_bytes(8, "big"),
        )
        set_value(record.body, log.body)
        add_attributes(record.attributes, log.attributes)
    return request
