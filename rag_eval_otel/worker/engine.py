"""`Engine`: the live pipeline for spans that come over the network, from a file or from Kafka.

Spans that have nothing to do with RAG go on at once. The span of a turn (one question of a user and
its answer) waits until the turn is scored, and goes on with its scores.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NoOpTracerProvider, get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.buffer import may_be_read
from rag_eval_otel.capture.dialects import UNMARKED_SCOPES, is_recorded
from rag_eval_otel.capture.span import LogView, SdkSpan
from rag_eval_otel.capture.trace import Trace
from rag_eval_otel.config import Config
from rag_eval_otel.live.draining import Draining
from rag_eval_otel.live.hold import Key
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.score import TurnScorer
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.sinks.drift import DriftSink
from rag_eval_otel.sinks.factory import build_sinks, check_targets
from rag_eval_otel.sinks.health import meter_of
from rag_eval_otel.sinks.instruments import InstrumentSink, Stats
from rag_eval_otel.types import UNTOUCHED, Ending, Sink
from rag_eval_otel.worker.traces import (
    LOGS_QUIET,
    TakenSpan,
    TakenSpans,
    WireBuffer,
    concerned,
    is_marked,
    may_have_texts,
)
from rag_eval_otel.worker.wire import (
    Output,
    OverloadedError,
    ReadableWireSpan,
    Receipt,
    WireGroup,
    WireSpan,
    add_attributes,
    groups_in,
    plain_attributes,
    plain_value,
    set_value,
    untracked,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.sdk.trace import ReadableSpan, Span

State: TypeAlias = Literal["ready", "overloaded", "closed"]
"""Whether an engine takes requests; ``overloaded``: not at the moment, ``closed``: no more."""

MAX_BYTES: Final = 256 * 1024 * 1024
_RETRY_AFTER: Final = 1.0  # seconds
_BACKLOG: Final = 4  # times the concurrency: the evaluator would give up turns beyond
_FULL: Final = 0.9  # of the most spans that may wait for scores
_ID_SIZES: Final = (16, 8)  # bytes of a trace id and of a span id


class Engine:
    """Score RAG turns in requests of spans, and pass all spans on to ``output``.

    At most about ``max_bytes`` of spans wait for scores or for their export at the same time.
    ``value_limit`` is the ``OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT`` of the applications, or None. A
    trace waits ``logs_quiet`` seconds for log records with its texts. ``scorer`` and ``clock`` are
    for tests. The methods may be called on any thread.
    """

    def __init__(
        self,
        config: Config,
        output: Output,
        *,
        max_bytes: int = MAX_BYTES,
        value_limit: int | None = None,
        logs_quiet: float = LOGS_QUIET,
        sinks: Sequence[Sink] = (),
        meter_provider: MeterProvider | None = None,
        scorer: TurnScorer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_targets(config)
        self.config = config
        self._output = output
        self._max_bytes = max_bytes
        self._value_limit = value_limit
        self._lock = threading.RLock()
        self._is_open = True
        self._taken = TakenSpans(clock)
        self._strips = config.content == "strip"
        instruments = InstrumentSink(meter_provider)
        self._buffer = WireBuffer(
            max_bytes=max_bytes // 2,
            logs_quiet=logs_quiet,
            contexts_from_prompt=config.contexts_from_prompt,
            clock=clock,
        )
        self.pipeline = _WirePipeline(
            config,
            provider=NoOpTracerProvider(),
            instruments=instruments,
            sinks=(*sinks, *self._built_in(config, instruments, meter_provider)),
            scorer=scorer,
            buffer=self._buffer,
            clock=clock,
        )
        self.pipeline.taken = self._taken
        self.pipeline.scorer.service_of = self._taken.service_of
        self.pipeline.scorer.is_wanted = self._taken.is_wanted
        self.pipeline.attach(_Outlet(output))
        self._edge = self.pipeline.edge("worker")
        self._draining = Draining(self.pipeline, meters=meter_provider)
        instruments.watch(self.pipeline.hold, self.pipeline.scorer.measurements)
        meter = meter_of(meter_provider)
        self._spans = meter.create_counter(
            semconv.WORKER_SPANS, unit="{span}", description="Spans that a worker has received."
        )
        self._refused = meter.create_counter(
            semconv.WORKER_REFUSED, unit="{request}", description="Requests that it refused."
        )

    def _built_in(
        self, config: Config, instruments: InstrumentSink, meters: MeterProvider | None
    ) -> Iterable[Sink]:
        return build_sinks(
            config,
            provider=None,
            meters=meters,
            logs=cast("Any", _ServiceLogs(self._taken, self._output)),
            guard=Edge("sink", on_error=instruments.internal_error, mode=config.errors),
        )

    # --- requests ---------------------------------------------------------------------------------

    def accept(self, request: ExportTraceServiceRequest, receipt: Receipt | None = None) -> None:
        """Take the spans out of ``request``. Raise `OverloadedError` if there is no room for them.

        If the sender keeps the request until ``receipt`` is done, it is also refused while more
        turns wait than can be scored in time. Without a receipt, their spans leave without scores.
        """
        if receipt is None:
            receipt = untracked()
        else:
            self._check_backlog()
        counts: Counter[str] = Counter()
        with self._lock:
            self._check_room()  # here: nobody would export the spans after a shutdown
            for group in groups_in(request, receipt):
                self._accept_group(group, counts)
        for fate, number in counts.items():
            self._spans.add(number, {semconv.OUTCOME: fate})

    def accept_logs(self, request: ExportLogsServiceRequest) -> None:
        """Read texts of turns in the log records of ``request``, and pass the records on."""
        scopes = (scope for one in request.resource_logs for scope in one.scope_logs)
        with self._lock:
            self._check_room()
            for record in (record for scope in scopes for record in scope.log_records):
                with self._edge:
                    self._read_log(record)
            self._output.put_logs(request)

    def drop(self, receipts: Iterable[Receipt]) -> None:
        """Drop the spans of ``receipts``: they are neither exported nor scored any more."""
        keys: list[Key] = []
        for receipt in receipts:
            receipt.revoke()
            keys += receipt.keys
        with self._lock:
            traces = self._buffer.forget(dict.fromkeys(trace_id for trace_id, _ in keys))
        for trace in traces:
            self.pipeline.release_held(trace, UNTOUCHED)
        for key in keys:
            self.pipeline.hold.release(key, UNTOUCHED)

    def is_collecting(self, trace_id: int) -> bool:
        """Return True if spans of this trace have come that are not read yet: more may follow."""
        return trace_id in self._buffer.traces

    def share(self, workers: float) -> None:
        """Divide the limits of the judge among ``workers``, unless the option ``workers`` does."""
        if self.config.workers == 1:
            self.pipeline.scorer.share(workers)

    def _check_room(self) -> None:
        state = self.state
        if state == "closed":
            self._refuse("the worker shuts down")
        if state == "overloaded":
            self._refuse(f"the worker has {self.size} bytes of spans in memory")

    def _check_backlog(self) -> None:
        hold, pending = self.pipeline.hold, self.stats.pending
        if len(hold) >= _FULL * hold.capacity or pending >= _BACKLOG * self.config.concurrency:
            self._refuse(f"{max(pending, len(hold))} turns wait for their scores")

    def _refuse(self, why: str) -> None:
        self._buffer.refuse()
        self._refused.add(1)
        msg = f"{why}; send the request again later"
        raise OverloadedError(msg, retry_after=_RETRY_AFTER)

    # --- spans ------------------------------------------------------------------------------------

    def _accept_group(self, group: WireGroup, counts: Counter[str]) -> None:
        """Pass on together the spans of ``group`` that have nothing to do with RAG."""
        flags, rest, others = self._concerned(group), group, list[WireSpan]()
        if any(flags):
            rest = group.of(list(compress(group.messages, map(not_, flags))))
            others = list(compress(group.spans(), flags))
        if rest.messages:
            self._buffer.open_spans.note_group(rest)
            self._output.put_group(rest)
            counts["passed"] += len(rest.messages)
        for span in others:
            counts[self._accept(span)] += 1

    def _concerned(self, group: WireGroup) -> list[bool]:
        scope = group.origin.scope
        if self._strips or scope == semconv.SCOPE or scope in UNMARKED_SCOPES:
            return [True] * len(group.messages)
        return concerned(group, self._buffer.traces)

    def _accept(self, span: WireSpan) -> str:
        """Export ``span``, or give it to the pipeline; return what was done, for the counter."""
        message, scope = span.message, span.origin.scope
        trace_id = message.trace_id
        traces = self._buffer.traces
        if (
            is_marked(message)
            or scope in UNMARKED_SCOPES
            or message.dropped_attributes_count
            or (traces and int.from_bytes(trace_id, "big") in traces)
        ) and (len(trace_id), len(message.span_id)) == _ID_SIZES:
            if scope != semconv.SCOPE:
                return self._take(span)
            self._note_evaluated(span)  # its other spans repeat LangChain runs, which were read
        else:
            self._buffer.open_spans.note_early(span)
        self._pass_on(span)
        return "passed"

    def _pass_on(self, span: WireSpan) -> None:
        if self._strips and may_have_texts(span.message):
            read = self._read(span)
            if read is not None:
                self.pipeline.export(read)
                return
            del span.message.attributes[:], span.message.events[:]
        self._output.put(span)

    def _read(self, span: WireSpan) -> ReadableWireSpan | None:
        with self._edge:
            return ReadableWireSpan(span, value_limit=self._value_limit)
        return None

    def _take(self, span: WireSpan) -> str:
        """Give ``span`` to the pipeline, unless the pipeline has it already."""
        known = self._taken.find(span)
        if known is not None:
            return self._repeat(span, known)
        span = span.detached()
        read = self._read(span)
        if read is None:
            self._pass_on(span)
            return "passed"
        self._taken.add(span)
        if self._note_evaluated(span):
            self._taken.note_left(span.key, None)
            self.pipeline.export(read)
            return "passed"
        fate = self.pipeline.take(read)
        if fate == "held":
            return "held"
        self._taken.note_left(span.key, None)
        if fate == "no room":
            self.pipeline.release_unheld(read)
        else:
            self.pipeline.export(read)
        read.let_go()
        return "passed"

    def _repeat(self, span: WireSpan, known: TakenSpan) -> str:
        """Export a span that has come before as it left then. If it has not left, drop the copy."""
        if known.left is None:
            span.receipt.left()
            return "repeated"
        read = self._read(span) if known.ending is not None or self._strips else None
        if read is None:
            self._pass_on(span)
        else:
            self.pipeline.export_again(read, known.ending or UNTOUCHED)
        return "repeated"

    def _note_evaluated(self, span: WireSpan) -> bool:
        """Return True if the turn of ``span`` was evaluated before, in the application or a worker.

        The other spans of the trace are then not evaluated either.
        """
        if not any(one.key == semconv.EVALUATION_STATUS for one in span.message.attributes):
            return False
        self.pipeline.release_held(self._buffer.discard(span.key[0]), UNTOUCHED)
        return True

    def _read_log(self, record: LogRecord) -> None:
        if (len(record.trace_id), len(record.span_id)) != _ID_SIZES:
            return
        name = record.event_name or next(
            (one.value.string_value for one in record.attributes if one.key == "event.name"), ""
        )
        if may_be_read(name):
            trace_id = int.from_bytes(record.trace_id, "big")
            view = LogView(
                event=name,
                body=plain_value(record.body),
                attributes=plain_attributes(record.attributes),
            )
            self._buffer.add_log(trace_id, int.from_bytes(record.span_id, "big"), view)

    # --- state ------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """About how many bytes of spans and log records are in memory."""
        return self.pipeline.hold.size + self._buffer.size + self._output.size

    @property
    def state(self) -> State:
        if not self._is_open:
            return "closed"
        return "ready" if self.size < self._max_bytes else "overloaded"

    @property
    def stats(self) -> Stats:
        """The counts of turns, waiting spans and errors up to now."""
        return self.pipeline.stats

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait for scores for half of ``timeout`` (5 s at most), then export all spans.

        Return False if this takes longer than ``timeout`` seconds.
        """
        return self._draining.flush(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Take no more requests, wait for scores, export all spans, and close the output.

        This takes about ``timeout`` seconds, by default the option ``shutdown_seconds``.
        """
        with self._lock:
            self._is_open = False
        timeout = self.config.shutdown_seconds if timeout is None else timeout
        end = time.monotonic() + timeout
        self._draining.drain(timeout)
        self.pipeline.instruments.stop_watching()
        for sink in self.pipeline.scorer.sinks:
            if isinstance(sink, DriftSink):
                sink.stop_gauge()
        self._output.close(max(1.0, end - time.monotonic()))


class _WirePipeline(Pipeline):
    """A `Pipeline` that records what is written on each span that leaves."""

    taken: TakenSpans

    def export_enriched(self, span: ReadableSpan, ending: Ending) -> None:
        context = span.context
        if context is not None:
            key = (context.trace_id, context.span_id)
            if ending.status == "timeout" and not self._may_be_turn(key):
                ending = UNTOUCHED
            self.taken.note_left(key, ending)
        super().export_enriched(span, ending)

    def _may_be_turn(self, key: Key) -> bool:
        trace = self.buffer.traces.get(key[0])
        view = None if trace is None else trace.held.get(key[1])
        return trace is None or view is None or _is_turn(trace, view)

    def release_held(self, trace: Trace, ending: Ending) -> None:
        """Export the kept-back spans of ``trace``; ``ending`` concerns those below which was RAG.

        A worker keeps back further spans, below which RAG might still have come.
        """
        for view in [one for one in trace.held.values() if not _is_turn(trace, one)]:
            del trace.held[view.span_id]
            self.hold.release((trace.trace_id, view.span_id), UNTOUCHED)
        super().release_held(trace, ending)

    def export_again(self, span: ReadableSpan, ending: Ending) -> None:
        """Export a span that has come again, with what was written on it before."""
        with self.release_edge:
            if ending.status is not None:
                span = self._scores.copy(span, ending)
        with self.release_edge:
            self.export(span)


class _Outlet:
    """The processor after the pipeline: it writes the changes of a span into its message."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a worker sees ended spans only."""

    def on_end(self, span: ReadableSpan) -> None:
        wire = cast("ReadableWireSpan", span).written()
        if not wire.receipt.is_revoked:
            self._output.put(wire)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._output.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Do nothing: the engine closes the output."""


def _is_turn(trace: Trace, held: SdkSpan) -> bool:
    below = trace.subtrees.get(held.span_id)
    return (below is not None and below.is_turn) or is_recorded(held)


# --- events of scores, as log records of the application's service --------------------------------


class _ServiceLogs:
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
    provider: _ServiceLogs
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
