"""`Engine`: the live pipeline for spans that come over the network, from a file or from Kafka.

Spans that have nothing to do with RAG go on at once. The span of a turn (one question of a user and
its answer) waits until the turn is scored, and goes on with its scores.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from opentelemetry.trace import NoOpTracerProvider

from rag_eval_otel import semconv
from rag_eval_otel.capture.conventions import UNMARKED_SCOPES
from rag_eval_otel.capture.logs import may_be_read
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.capture.trace import Key
from rag_eval_otel.config import Config
from rag_eval_otel.export.drift import DriftSink
from rag_eval_otel.export.metrics import InstrumentSink, Stats, meter_of
from rag_eval_otel.live.instrument import build_sinks, check_targets
from rag_eval_otel.live.pipeline import Pipeline
from rag_eval_otel.live.scorer import TurnScorer
from rag_eval_otel.live.shutdown import Draining
from rag_eval_otel.live.store import HoldLimits
from rag_eval_otel.types import UNTOUCHED, Ending, Sink
from rag_eval_otel.worker.events import ServiceLogs
from rag_eval_otel.worker.traces import (
    LOGS_QUIET,
    TakenSpan,
    TakenSpans,
    WireStore,
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
    groups_in,
    plain_attributes,
    plain_value,
    untracked,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
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
    trace waits ``logs_quiet`` seconds for log records with its texts. ``services`` always have
    their names in metrics. ``scorer`` and ``clock`` are for tests. The methods may be called on any
    thread.
    """

    def __init__(
        self,
        config: Config,
        output: Output,
        *,
        max_bytes: int = MAX_BYTES,
        value_limit: int | None = None,
        logs_quiet: float = LOGS_QUIET,
        services: Collection[str] = (),
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
        self._strips = config.export_content == "none"
        instruments = InstrumentSink(meter_provider, services=services)
        self._store = WireStore(
            hold=HoldLimits.of(config),
            max_bytes=max_bytes // 2,
            logs_quiet=logs_quiet,
            contexts_from_prompt=config.contexts_from_prompt,
            clock=clock,
        )
        self.pipeline = _WirePipeline(
            config,
            provider=NoOpTracerProvider(),
            instruments=instruments,
            sinks=(*sinks, *self._built_in(config, meter_provider)),
            scorer=scorer,
            store=self._store,
            now=clock,
        )
        self.pipeline.taken = self._taken
        self.pipeline.scorer.service_of = self._taken.service_of
        self.pipeline.scorer.is_wanted = self._taken.is_wanted
        self.pipeline.attach(_Outlet(output))
        self._edge = self.pipeline.edge("worker")
        self._draining = Draining(self.pipeline, meters=meter_provider)
        instruments.watch(self._store, self.pipeline.scorer.measurements)
        meter = meter_of(meter_provider)
        self._spans = meter.create_counter(
            semconv.WORKER_SPANS, unit="{span}", description="Spans that a worker has received."
        )
        self._refused = meter.create_counter(
            semconv.WORKER_REFUSED, unit="{request}", description="Requests that it refused."
        )

    def _built_in(self, config: Config, meters: MeterProvider | None) -> Iterable[Sink]:
        return build_sinks(
            config,
            provider=None,
            meters=meters,
            logs=cast("Any", ServiceLogs(self._taken, self._output)),
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
        self._check_room()
        counts, groups = Counter[str](), groups_in(request, receipt)  # slow, so without the lock
        with self._lock:
            if not self._is_open:  # nobody would export the spans after a shutdown
                self._check_room()
            for group in groups:
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
            self._store.forget(keys)
        self.pipeline.clock.export()

    def is_collecting(self, trace_id: int) -> bool:
        """Return True if spans of this trace have come that are not read yet: more may follow."""
        return trace_id in self._store.traces

    def _check_room(self) -> None:
        state = self.state
        if state == "closed":
            self._refuse("the worker shuts down")
        if state == "overloaded":
            self._refuse(f"the worker has {self.size} bytes of spans in memory")

    def _check_backlog(self) -> None:
        store, pending = self._store, self.stats.pending
        if store.waiting >= _FULL * store.capacity or pending >= _BACKLOG * self.config.concurrency:
            self._refuse(f"{max(pending, store.waiting)} turns wait for their scores")

    def _refuse(self, why: str) -> None:
        self._store.refuse()
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
            self._store.open_spans.note_group(rest)
            self._output.put_group(rest)
            counts["passed"] += len(rest.messages)
        for span in others:
            counts[self._accept(span)] += 1

    def _concerned(self, group: WireGroup) -> list[bool]:
        scope = group.origin.scope
        if self._strips or scope == semconv.SCOPE or scope in UNMARKED_SCOPES:
            return [True] * len(group.messages)
        return concerned(group, self._store.traces)

    def _accept(self, span: WireSpan) -> str:
        """Export ``span``, or give it to the pipeline; return what was done, for the counter."""
        message, scope = span.message, span.origin.scope
        trace_id = message.trace_id
        traces = self._store.traces
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
            self._store.open_spans.note_early(span)
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
        self._store.discard(span.key[0])
        self.pipeline.clock.export()
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
            self._store.add_log(trace_id, int.from_bytes(record.span_id, "big"), view)

    # --- state ------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """About how many bytes of spans and log records are in memory."""
        return self._store.size + self._store.collecting_size + self._output.size

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
            self.taken.note_left(key, ending)
        super().export_enriched(span, ending)

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
