"""`TraceBuffer`: foreign spans by trace, which of them to hold back, and when a trace is complete.

The end of a root says little: streams outlive it, and LangSmith ends it first. A trace is complete
once no span of it is open and none has come for a while; what comes after that begins anew.

On the application's thread a span that is none of our business costs a look at the names of its
attributes when it ends, and a note that it has started: who is still open is found out in the
background, for the few traces where it matters.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects import LOG_EVENTS, MARKS, UNMARKED_SCOPES, kind_of
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.span import Bystander, LogView, SdkSpan, bears_none
from rag_eval_otel.capture.step import Kind
from rag_eval_otel.capture.trace import (
    OVERHEAD,
    OpenSpans,
    Trace,
    TraceLimits,
    is_bystander,
    size_of,
    size_of_log,
    stands_for_turn,
    trace_of,
    units_over,
)
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import ContextsFromPrompt

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


_MARK = "_rag_eval_otel_tap"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listener:
    """Adds log records to ``buffer``, except those that are written on ``own_threads``.

    ``edge`` keeps errors from the application.
    """

    buffer: TraceBuffer
    edge: Edge
    own_threads: Collection[int] = ()

    def tell(self, name: str, record: Any) -> None:
        """Hand a record on, if it was written within a span."""
        if not record.span_id or get_ident() in self.own_threads:
            return
        with self.edge:
            view = LogView(event=name, body=record.body, attributes=record.attributes or {})
            self.buffer.add_log(record.trace_id, record.span_id, view)


class LogTap:
    """A processor of log records for the SDK's logger provider; exports nothing."""

    def __init__(self) -> None:
        """Tell nobody yet."""
        self._listeners: tuple[Listener, ...] = ()

    def open(self, listener: Listener) -> None:
        """Tell ``listener`` from now on."""
        self._listeners = (*self._listeners, listener)

    def close(self, listener: Listener) -> None:
        """Tell ``listener`` no more."""
        self._listeners = tuple(one for one in self._listeners if one is not listener)

    def on_emit(self, log_record: Any) -> None:
        """Look at a log record that was written."""
        if self._listeners:
            record = log_record.log_record
            name = record.event_name
            if name is None and record.attributes:
                name = record.attributes.get("event.name")
            if may_be_read(name):
                for listener in self._listeners:
                    listener.tell(name, record)

    def enabled(self, *, event_name: str | None = None, **_: Any) -> bool:
        """Tell whether a record of this name would be looked at."""
        return bool(self._listeners) and may_be_read(event_name)

    def shutdown(self) -> None:
        """Tell nobody any more."""
        self._listeners = ()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's name
        """There is nothing to export."""
        return True


def may_be_read(event: object) -> bool:
    """Tell whether a dialect reads log records of this name; those of our own it does not."""
    if not isinstance(event, str):
        return False
    return event.startswith(LOG_EVENTS) and event != semconv.EVALUATION_EVENT


def log_tap(provider: Any) -> LogTap | None:
    """Return the `LogTap` of a logger provider; None if the provider is not the SDK's."""
    add = getattr(provider, "add_log_record_processor", None)
    known = getattr(provider, _MARK, None)
    if add is None or isinstance(known, LogTap):
        return known
    tap = LogTap()
    add(tap)
    with suppress(AttributeError):  # slots: then it gets another tap next time
        setattr(provider, _MARK, tap)
    return tap


_LOST = 4096  # traces that had to go, and are remembered to be passed over

_MOST = 4  # the part of all bytes that one trace may take, as a divisor


class Taken(NamedTuple):
    """The trace that has taken in a span or a run tree, and the consequences for the caller.

    ``anchor`` is the span, if it may stand for a turn and should be held. ``is_new``: the trace
    is new, so that `TraceBuffer.sweep` must be called from now on. The caller counts the traces
    in ``evicted`` and releases their held spans.
    """

    trace: Trace | None = None
    anchor: SdkSpan | None = None
    is_new: bool = False
    evicted: Sequence[Trace] = ()


_NOT_TAKEN = Taken()


class TraceBuffer:
    """Collects the spans of traces with a step of RAG, and returns the traces that are complete.

    ``concerns``, ``take`` and ``join`` run on the application's thread, ``sweep`` on a background
    thread. Later spans of an evicted trace are ignored until none of its spans is open.

    ``lock`` is held by a caller that takes a span and holds it back: otherwise another thread
    could read the trace in between.
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
        """Whether ended spans of the application are shown to it."""
        self.clear()

    def clear(self) -> None:
        """Forget everything (in a forked child: it is the parent's)."""
        self.lock = threading.RLock()
        self.traces: OrderedDict[int, Trace] = OrderedDict()
        """The traces under way, by id."""
        self._lost: OrderedDict[int, Trace] = OrderedDict()
        self._logs = PendingLogs(max_bytes=self._limits.max_bytes // _MOST)
        self._bytes = 0
        self.open_spans = OpenSpans()
        self._ended = self.open_spans.ended

    def __len__(self) -> int:
        """Return how many traces are under way."""
        return len(self.traces)

    @property
    def size(self) -> int:
        """About how many bytes are kept."""
        return self._bytes + self._logs.size

    def add_log(self, trace_id: int, span_id: int, record: LogView) -> None:
        """Keep a log record written within a span that has not ended yet."""
        if self._is_open:
            with self.lock:
                self._logs.add((trace_id, span_id), record)

    def concerns(self, span: ReadableSpan) -> bool:
        """Tell whether ``span`` may belong to a turn; of most spans it must say no, quickly."""
        scope = span.instrumentation_scope
        name = scope.name if scope is not None else ""
        if (
            not bears_none(MARKS, span)
            or name in UNMARKED_SCOPES
            or (self.traces and trace_of(span) in self.traces)
        ):
            return name != semconv.SCOPE  # our own are written from runs that have been read
        self._ended.append(span)
        return False

    def take(self, span: ReadableSpan) -> Taken:
        """Add ``span``, for which `concerns` has returned True, to its trace."""
        context = span.context
        if context is None or not self._is_open:
            return _NOT_TAKEN
        with self.lock:
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
        """Add LangChain runs that ran below the open span ``around`` to its trace."""
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
        """Return the trace with this id, which may be lost, or begin one."""
        trace = self.traces.get(trace_id) or self._lost.get(trace_id)
        if trace is None:
            now = self._clock()
            trace = self.traces[trace_id] = Trace(trace_id=trace_id, first=now, last=now)
            self._bytes += sum(map(trace.add_early, self.open_spans.just_ended(trace_id)))
            self.open_spans.note_current(trace_id)
        return trace

    def _add(self, trace: Trace, view: SdkSpan, kind: Kind) -> bool:
        """Take ``view`` in; tell whether it may stand for a turn."""
        known = trace.spans.get(view.span_id)
        if trace.is_lost or (isinstance(known, SdkSpan) and known.is_of(view)):
            trace.last = self._clock()
            return False
        trace.is_doubled = trace.is_doubled or known is not None
        size = size_of(view) if kind != "other" else OVERHEAD
        kept = view if kind != "other" else Bystander.of(view)
        trace.add(kept, size=size, now=self._clock())
        self._bytes += size
        return stands_for_turn(
            trace,
            view,
            kind,
            spans=self.open_spans,
            contexts_from_prompt=self._contexts_from_prompt,
        )

    def sweep(self) -> list[Trace]:
        """Remove and return the traces, and the parts of traces, that are complete."""
        now = self._clock()
        self.open_spans.look()
        with self.lock:
            self._add_gone()
            ready = [one for one in self.traces.values() if self._is_complete(one, now)]
            ready += self._parted(now - self._limits.quiet, self.open_spans.lately, ready=ready)
            self._finish(ready)
            for one in [one for one in self._lost.values() if self._is_complete(one, now)]:
                del self._lost[one.trace_id]
        return ready

    def flush(self) -> list[Trace]:
        """Remove and return the traces, and the parts of traces, of which no span is open."""
        self.open_spans.look()
        with self.lock:
            self._add_gone()
            opened = self.open_spans.of
            ready = [one for one in self.traces.values() if not opened(one.trace_id)]
            ready += self._parted(self._clock(), opened, ready=ready)
            self._finish(ready)
        return ready

    def close(self) -> list[Trace]:
        """Remove and return all traces, complete or not; take no more spans."""
        self._is_open = False
        self.open_spans.look()
        with self.lock:
            self._add_gone()
            ready = list(self.traces.values())
            self._finish(ready)
            self._logs.clear()
        return ready

    def _add_gone(self) -> None:
        """Add what had ended before anybody knew of its trace."""
        for span in self.open_spans.ended.copy() if self.traces else ():
            trace = self.traces.get(trace_of(span))
            if trace is not None:
                self._bytes += trace.add_early(span)
        for trace in self.traces.values():
            trace.settle()

    def _parted(
        self,
        until: float,
        opened: Callable[[int], Sequence[ReadableSpan]],
        *,
        ready: Sequence[Trace],
    ) -> list[Trace]:
        """Take what is over out of the traces that go on; ``opened`` tells what is under way."""
        done = {one.trace_id for one in ready}
        going_on = [one for one in self.traces.values() if one.trace_id not in done]
        parts = []
        for trace in going_on:
            going = opened(trace.trace_id)
            parts += [trace.part(ids) for ids in list(units_over(trace, going, until=until))]
            if not trace.spans:
                self._remove(trace)
        return parts

    def _is_complete(self, trace: Trace, now: float) -> bool:
        limits = self._limits
        is_soon = trace.root_ended and not trace.is_slow
        quiet = limits.root_quiet if is_soon else limits.slow_quiet
        idle = now - trace.last >= quiet and not self.open_spans.lately(trace.trace_id)
        return idle or now - trace.first >= limits.max_age

    def _evict(self, newest: Trace) -> list[Trace]:
        """Empty traces that are too many, or too much; return them."""
        limits, evicted = self._limits, []
        if len(newest.spans) > limits.max_spans or newest.size > limits.max_bytes // _MOST:
            evicted.append(newest)
            self._lose(newest)
        while self.traces and (
            len(self.traces) > limits.max_traces or self._bytes > limits.max_bytes
        ):
            oldest = next(iter(self.traces.values()))
            evicted.append(oldest)
            self._lose(oldest)
        return evicted

    def _lose(self, trace: Trace) -> None:
        self._remove(trace)
        trace.empty()
        self._lost[trace.trace_id] = trace
        if len(self._lost) > _LOST:
            self._lost.popitem(last=False)

    def _finish(self, traces: Iterable[Trace]) -> None:
        """Remove ``traces``, with what is open around them: else their top would be missing."""
        for trace in traces:
            self._remove(trace)
            for span in self.open_spans.of(trace.trace_id):
                view = SdkSpan(span)
                if is_bystander(view):
                    trace.stand_by(Bystander.of(view))

    def _remove(self, trace: Trace) -> None:
        if self.traces.get(trace.trace_id) is trace:
            del self.traces[trace.trace_id]
        self._bytes -= trace.size


_SPANS = 1024  # whose records are kept; some spans never end, or are not sampled

_LOST_RECORDS = (LogView(event=""),)  # in the place of records that had to go: it tells nothing

_Key: TypeAlias = "tuple[int, int]"


class PendingLogs:
    """Log records by trace and span; over ``max_bytes`` those of the oldest spans go."""

    def __init__(self, *, max_bytes: int) -> None:
        """Keep nothing yet."""
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._records: OrderedDict[_Key, Sequence[LogView]] = OrderedDict()
        self.size = 0

    def add(self, key: _Key, record: LogView) -> None:
        """Keep ``record`` until its span is taken."""
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
        """Return what was written within a span, and forget it."""
        found = self._records.pop(key, ())
        if found is not _LOST_RECORDS:
            self.size -= sum(map(size_of_log, found))
        return found
