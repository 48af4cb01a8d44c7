"""Events of scores, as log records of the application's service."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import get_current_span

from rag_eval_otel.capture.trace import Key
from rag_eval_otel.worker.traces import TakenSpans
from rag_eval_otel.worker.wire import Output, add_attributes, set_value

if TYPE_CHECKING:
    from opentelemetry.context import Context


class ServiceLogs:
    """A logger provider whose log records have the resource of the span that they are about."""

    def __init__(self, taken: TakenSpans, output: Output) -> None:
        self._taken = taken
        self._output = output
        self._own = Resource.create()

    def get_logger(self, name: str, version: str, schema_url: str) -> _ServiceLogger:
        return _ServiceLogger(self, name, version, schema_url)

    def send(self, request: ExportLogsServiceRequest, key: Key) -> None:
        """Send ``request``, which has one record about the span ``key``."""
        resource, origin = request.resource_logs[0], self._taken.origin_of(key)
        if origin is None:
            add_attributes(resource.resource.attributes, self._own.attributes)
        else:
            resource.resource.CopyFrom(origin.resource_spans.resource)
            resource.schema_url = origin.resource_spans.schema_url
        self._output.put_logs(request)


@dataclass(frozen=True, slots=True)
class _ServiceLogger:
    provider: ServiceLogs
    name: str
    version: str
    schema_url: str

    def emit(
        self,
        *,
        event_name: str,
        context: Context,
        severity_number: Any,
        attributes: Mapping[str, Any],
        body: Any = None,
    ) -> None:
        request = ExportLogsServiceRequest()
        scope = request.resource_logs.add().scope_logs.add(schema_url=self.schema_url)
        scope.scope.name, scope.scope.version = self.name, self.version
        record = scope.log_records.add(event_name=event_name)
        record.time_unix_nano = record.observed_time_unix_nano = time.time_ns()
        record.severity_number = severity_number.value
        add_attributes(record.attributes, attributes)
        if body is not None:
            set_value(record.body, body)
        about = get_current_span(context).get_span_context()
        if about.is_valid:
            record.trace_id = about.trace_id.to_bytes(16, "big")
            record.span_id = about.span_id.to_bytes(8, "big")
            record.flags = int(about.trace_flags)
        self.provider.send(request, (about.trace_id, about.span_id))
