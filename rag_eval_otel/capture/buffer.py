"""Collect the ended spans of each trace until the trace is complete and can be scored.

A *turn* is one question of a user and its answer. The scores go on the span of the turn. So that
the scores can be added after the span has ended, the span is kept back from the exporter.

The end of the root span does not show that a trace is complete. The spans of a stream end after the
root span, and LangSmith exports the root span first. A trace is complete when none of its spans is
open and none has ended for a while. If another span of the trace ends later, a new trace is
started.

Most spans have nothing to do with RAG. For such a span, the application's thread only records that
the span started, and looks at the names of its attributes when it ends. All other work is done on a
background thread.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects import LOG_EVENTS, MARKS, UNMARKED_SCOPES, kind_of
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import Bystander, LogView, SdkSpan, has_none
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.capture.trace import (
    OVERHEAD,
    OpenSpans,
    Trace,
    TraceLimits,
    completed_parts,
    is_bystander,
    size_of,
    size_of_log,
    stands_for_turn,
    trace_of,
)
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import ContextsFromPrompt

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


_MARK = "_rag_eval_otel_tap"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listener:
    """Stores the log records that the application writes within spans in a `TraceBuffer`.

    ``buffer`` is that buffer. Log records that are written on a thread whose id is in
    ``own_threads`` (the threads of this library) are left out. ``edge`` is an error handler that
    keeps our exceptions from the application.
    """

    buffer: TraceBuffer
    edge: Edge
    own_threads: Collection[int] = ()

    def tell(self, name: str, record: Any) -> None:
        """Store the log ``record`` in the buffer if the record was written within a span.

        ``name`` is the event name of the record.
        """
        if not record.span_id or get_ident() in self.own_threads:
            return
        with self.edge:
            view = LogView(event=name, body=record.body, attributes=record.attributes or {})
            self.buffer.add_log(record.trace_id, record.span_id, view)


class LogTap:
    """A log record processor for the OpenTelemetry SDK that passes log records to listeners.

    The processor exports nothing.
    """

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def open(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)

    def close(self, listener: Listener) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)

    def on_emit(self, log_record: Any) -> None:
        if self._listeners:
            record = log_record.log_record
            name = record.event_name
            if name is None and record.attributes:
                name = record.attributes.get("event.name")
            if may_be_read(name):
                for listener in self._listeners:
                    listener.tell(name, record)

    def enabled(self, *, event_name: str | None = None, **_: Any) -> bool:
        """Return True if there is a listener and log records of this event are read.

        ``event_name`` is the name of the event.
        """
        return bool(self._listeners) and may_be_read(event_name)

    def shutdown(self) -> None:
        """Remove all listeners of this processor, so that no more log records are passed on."""
        self._listeners = ()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's name
        """Return True, because this processor exports nothing."""
        return True


def may_be_read(event: object) -> bool:
    """Return True if log records with the event name ``event`` may contain parts of a RAG trace.

    The event in which this library reports a score is not read.
    """
    if not isinstance(event, str):
        return False
    return event.startswith(LOG_EVENTS) and event != semconv.EVALUATION_EVENT


def log_tap(provider: Any) -> LogTap | None:
    """Return the `LogTap` of the logger ``provider``, and add a `LogTap` if there is none yet.

    Return None if ``provider`` is not the logger provider of the OpenTelemetry SDK. Other providers
    take no log record processors.
    """
    add = getattr(provider, "add_log_record_processor", None)
    known = getattr(provider, _MARK, None)
    if add is None or isinstance(known, LogTap):
        return known
    tap = LogTap()
    add(tap)
    with suppress(AttributeError):  # has slots: it gets another tap at the next call
        setattr(provider, _MARK, tap)
    return tap


_LOST = 4096  # the most evicted traces whose later spans are ignored

_SHARE = 4  # one trace may take a quarter of all bytes


class Taken(NamedTuple):
    """What happened when a span or a tree of LangChain runs was added to a trace.

    ``trace`` is the trace, or None if nothing was added. ``anchor`` is the added span if that span
    may get scores. The caller should then keep the span back from the exporter. If ``is_new`` is
    true, the trace has just been started, and the caller must call `TraceBuffer.sweep` at intervals
    from now on. ``evicted`` are the traces that were removed to limit memory. The caller counts
    these traces, and exports their spans that were kept back. If ``is_late`` is true, the span may
    stand for a turn, but the buffer is closed. The caller counts this turn as dropped.
    """

    trace: Trace | None = None
    anchor: SdkSpan | None = None
    is_new: bool = False
    evicted: Sequence[Trace] = ()
    is_late: bool = False


_NOT_TAKEN = Taken()


class TraceBuffer:
    """Collects the spans of traces that contain RAG, and returns the traces that are complete.

    ``concerns``, ``take`` and ``join`` run on the application's thread, ``sweep`` on a background
    thread. If a trace was removed to limit memory, its later spans are ignored until none of its
    spans is open.

    A caller that adds a span and keeps this span back from the exporter must hold ``lock`` during
    both actions. Otherwise another thread could remove the trace between the two actions.
    """

    def __init__(
        self,
        *,
        limits: TraceLimits | None = None,
        contexts_from_prompt: ContextsFromPrompt = "off",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits or TraceLimits()
        self._contexts_from_prompt: ContextsFromPrompt = contexts_from_prompt
        self._clock = clock
        self._is_open = True
        self.is_fed = False
        """Whether a span processor passes the ended spans of the application to this buffer."""
        self.clear()

    def clear(self) -> None:
        """Delete all traces and log records in this buffer.

        A forked child process calls this, too, because the traces belong to its parent process.
        """
        self.lock = threading.RLock()
        self.traces: OrderedDict[int, Trace] = OrderedDict()
        """The traces that are not complete yet, by trace id, oldest first."""
        self._lost: OrderedDict[int, Trace] = OrderedDict()
        self._logs = PendingLogs(max_bytes=self._limits.max_bytes // _SHARE)
        self._bytes = 0
        self.open_spans = OpenSpans()
        self._ended = self.open_spans.ended

    def __len__(self) -> int:
        return len(self.traces)

    @property
    def size(self) -> int:
        """The estimated size in bytes of all traces and log records in this buffer."""
        return self._bytes + self._logs.size

    def add_log(self, trace_id: int, span_id: int, record: LogView) -> None:
        """Store the log ``record`` until the span within which the record was written has ended.

        ``trace_id`` and ``span_id`` are the ids of that span.
        """
        if self._is_open:
            with self.lock:
                self._logs.add((trace_id, span_id), record)

    def concerns(self, span: ReadableSpan) -> bool:
        """Return True if the ended ``span`` may belong to a RAG trace.

        If so, the caller must pass the span to `take`. This is called for every span of the
        application. To be fast, it looks only at the scope, the attribute names and the trace id of
        the span.
        """
        scope = span.instrumentation_scope
        name = scope.name if scope is not None else ""
        if (
            not has_none(MARKS, span)
            or name in UNMARKED_SCOPES
            or (self.traces and trace_of(span) in self.traces)
        ):
            return name != semconv.SCOPE  # our own spans repeat LangChain runs, which were read
        self._ended.append(span)
        return False

    def take(self, span: ReadableSpan) -> Taken:
        """Add the ended ``span`` to its trace, and return what happened.

        The caller must have called `concerns` with this span, and `concerns` must have returned
        True.
        """
        context = span.context
        if context is None:
            return _NOT_TAKEN
        with self.lock:
            if not self._is_open:
                return Taken(is_late=self.is_fed and self._stands_late(span))
            view = SdkSpan(span, self._logs.take((context.trace_id, context.span_id)))
            kind = kind_of(view)
            is_new = context.trace_id not in self.traces and context.trace_id not in self._lost
            if is_new and kind == "other":
                self._ended.append(span)
                return _NOT_TAKEN
            trace = self._trace_of(context.trace_id)
            stands = self._add(trace, view, kind)
            evicted = self._evict(trace)
        return Taken(trace, view if stands and not trace.is_lost else None, is_new, evicted)

    def join(self, tree: RunTree, around: SdkSpan) -> Taken:
        """Add LangChain runs to the trace of the open span ``around``, within which they ran.

        ``tree`` is a LangChain root run with all runs below it.
        """
        if not (self._is_open and self.is_fed):
            return _NOT_TAKEN
        with self.lock:
            is_new = around.trace_id not in self.traces
            trace = self._trace_of(around.trace_id)
            if trace.is_lost:
                return _NOT_TAKEN
            size = OVERHEAD + tree.size
            trace.join(tree, around.span_id, size=size, now=self._clock())
            self._bytes += size
            return Taken(trace, None, is_new, self._evict(trace))

    def _trace_of(self, trace_id: int) -> Trace:
        """Return the trace with the id ``trace_id``. If no such trace is known, start the trace.

        The returned trace may have been removed to limit memory. Nothing more is added to such a
        trace.
        """
        trace = self.traces.get(trace_id) or self._lost.get(trace_id)
        if trace is None:
            now = self._clock()
            trace = self.traces[trace_id] = Trace(trace_id=trace_id, first=now, last=now)
            self._bytes += sum(map(trace.add_early, self.open_spans.recently_ended(trace_id)))
            self.open_spans.note_current(trace_id)
        return trace

    def _add(self, trace: Trace, view: SdkSpan, kind: Kind) -> bool:
        """Add the span ``view`` to ``trace``, and return True if this span may get scores."""
        known = trace.spans.get(view.span_id)
        if trace.is_lost or (known is not None and view.is_of(known)):
            trace.last = self._clock()
            return False
        trace.is_doubled = trace.is_doubled or known is not None
        size = size_of(view) if kind != "other" else OVERHEAD
        kept = view if kind != "other" else Bystander.of(view)
        trace.add(kept, size=size, now=self._clock())
        self._bytes += size
        return self._stands(trace, view, kind=kind)

    def sweep(self) -> list[Trace]:
        """Remove and return all traces that are complete.

        If only a part of a trace is complete, such as one answered question below an open span,
        that part is removed and returned as a trace.
        """
        now = self._clock()
        self.open_spans.refresh()
        with self.lock:
            self._add_early()
            ready = [one for one in self.traces.values() if self._is_complete(one, now)]
            ready += self._parts(
                now - self._limits.quiet, self.open_spans.recently_open, ready=ready
            )
            self._finish(ready)
            for one in [one for one in self._lost.values() if self._is_complete(one, now)]:
                del self._lost[one.trace_id]
        return ready

    def flush(self) -> list[Trace]:
        """Remove and return all traces without an open span, however recently a span ended.

        A trace in which a span ends during this call is left, as its open spans may not be known.
        Complete parts of the other traces are removed and returned, too. A part is one answered
        question below an open span.
        """
        until = self._clock()
        self.open_spans.refresh()
        with self.lock:
            self._add_early()
            opened, known = self.open_spans.of, self.traces.values()
            ready = [one for one in known if one.last <= until and not opened(one.trace_id)]
            ready += self._parts(until, opened, ready=ready)
            self._finish(ready)
        return ready

    def close(self) -> list[Trace]:
        """Remove and return all traces, complete or not, and accept no more spans."""
        self.open_spans.refresh()
        with self.lock:
            self._is_open = False
            self._add_early()
            ready = list(self.traces.values())
            self._finish(ready)
            self._logs.clear()
        return ready

    def _stands_late(self, span: ReadableSpan) -> bool:
        """Return True if ``span``, which has ended after `close`, may stand for a turn."""
        view, now, trace_id = SdkSpan(span), self._clock(), trace_of(span)
        late = self._lost.setdefault(trace_id, Trace(trace_id=trace_id, first=now, last=now))
        if len(self._lost) > _LOST:
            self._lost.popitem(last=False)
        return self._stands(late, view, kind=kind_of(view))

    def _stands(self, trace: Trace, view: SdkSpan, *, kind: Kind) -> bool:
        chosen = self._contexts_from_prompt
        return stands_for_turn(
            trace, view, kind, spans=self.open_spans, contexts_from_prompt=chosen
        )

    def _add_early(self) -> None:
        """Add to each trace its spans that ended before RAG was found in the trace."""
        for span in self.open_spans.ended.copy() if self.traces else ():
            trace = self.traces.get(trace_of(span))
            if trace is not None:
                self._bytes += trace.add_early(span)
        for trace in self.traces.values():
            trace.add_bystanders()

    def _parts(
        self,
        until: float,
        opened: Callable[[int], Sequence[ReadableSpan]],
        *,
        ready: Sequence[Trace],
    ) -> list[Trace]:
        """Remove and return the complete parts of traces, except of the traces in ``ready``.

        A part is a question with its answer below an open span. The part is complete only if none
        of its spans has ended since the time ``until``. ``opened`` is a function that returns the
        open spans of a trace for a trace id.
        """
        done = {one.trace_id for one in ready}
        going_on = [one for one in self.traces.values() if one.trace_id not in done]
        parts = []
        for trace in going_on:
            going = opened(trace.trace_id)
            parts += [trace.part(ids) for ids in list(completed_parts(trace, going, until=until))]
            if not trace.spans and not trace.trees:
                self._remove(trace)
        return parts

    def _is_complete(self, trace: Trace, now: float) -> bool:
        limits = self._limits
        is_soon = trace.root_ended and not trace.is_slow
        quiet = limits.root_quiet if is_soon else limits.slow_quiet
        idle = now - trace.last >= quiet and not self.open_spans.recently_open(trace.trace_id)
        return idle or now - trace.first >= limits.max_age

    def _evict(self, newest: Trace) -> list[Trace]:
        """Remove and return traces until the buffer is within its limits of number and size.

        The trace ``newest`` is removed if it is too large by itself. Then the oldest traces are
        removed.
        """
        limits, evicted = self._limits, []
        if len(newest.spans) > limits.max_spans or newest.size > limits.max_bytes // _SHARE:
            evicted.append(self._give_up(newest))
        while self.traces and (
            len(self.traces) > limits.max_traces or self._bytes > limits.max_bytes
        ):
            evicted.append(self._give_up(next(iter(self.traces.values()))))
        return evicted

    def _give_up(self, trace: Trace) -> Trace:
        """Ignore later spans of ``trace``, and return a copy with its spans to delete elsewhere."""
        self._remove(trace)
        removed = copy(trace)
        trace.empty()
        self._lost[trace.trace_id] = trace
        if len(self._lost) > _LOST:
            self._lost.popitem(last=False)
        return removed

    def _finish(self, traces: Iterable[Trace]) -> None:
        """Remove ``traces`` from the buffer, and add to each trace its spans that are still open.

        Only open spans that are no part of RAG are added. They may be parents of other spans of the
        trace.
        """
        for trace in traces:
            self._remove(trace)
            for span in self.open_spans.of(trace.trace_id):
                view = SdkSpan(span)
                if is_bystander(view):
                    trace.add_bystander(Bystander.of(view))

    def _remove(self, trace: Trace) -> None:
        if self.traces.get(trace.trace_id) is trace:
            del self.traces[trace.trace_id]
        self._bytes -= trace.size


_SPANS = 1024  # the most spans whose log records are kept; some spans never end, or are not sampled

_LOST_RECORDS = (LogView(event=""),)  # stands for log records that were dropped

_Key: TypeAlias = "tuple[int, int]"


class PendingLogs:
    """Stores log records by the trace id and span id of their span until that span has ended.

    If the records take more than ``max_bytes``, the records of the oldest spans are dropped.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        self._records: OrderedDict[_Key, Sequence[LogView]] = OrderedDict()
        self.size = 0

    def add(self, key: _Key, record: LogView) -> None:
        known = self._records.get(key, ())
        if known is _LOST_RECORDS:
            return
        self._records[key] = (*known, record)
        self.size += size_of_log(record)
        for oldest in list(self._records) if self.size > self._max_bytes else ():
            self.take(oldest)
            self._records[oldest] = _LOST_RECORDS
            if self.size <= self._max_bytes:
                break
        while len(self._records) > _SPANS:
            self.take(next(iter(self._records)))

    def take(self, key: _Key) -> Sequence[LogView]:
        """Remove and return the log records of one span. ``key`` is its trace id and span id."""
        found = self._records.pop(key, ())
        if found is not _LOST_RECORDS:
            self.size -= sum(map(size_of_log, found))
        return found
