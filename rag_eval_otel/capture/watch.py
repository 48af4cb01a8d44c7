"""`SpanWatch`: foreign spans by trace, which of them to hold back, and when a trace is complete.

The end of a root says little: streams outlive it, and LangSmith ends it first. A trace is complete
once no span of it is open and none has come for a while; what comes after that begins anew.

On the application's thread a span that is none of our business costs a look at the names of its
attributes when it ends, and a note that it has started: who is still open is found out in the
background, for the few traces where it matters.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rag_eval_otel import semconv
from rag_eval_otel.capture.dialects import MARKS, kind_of, llamaindex, native
from rag_eval_otel.capture.fragment import RETRIEVALS, Kind
from rag_eval_otel.capture.retrievals import CONTEXT_TOOLS
from rag_eval_otel.capture.segment import (
    OVERHEAD,
    Below,
    Segment,
    SegmentLimits,
    is_late,
    size_of,
)
from rag_eval_otel.capture.view import LogView, SdkSpan, attribute_names

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_OPEN = 4096  # spans under way that are known; some never end
_GONE = 1024  # spans remembered that had ended when they were looked at
_STARTED = 256  # starts remembered until the background has looked at them; each is kept alive


_is_dull = MARKS.isdisjoint
"""Whether attributes are of no dialect; takes their names one by one."""


class SpanWatch:
    """Collects the spans of traces with a step of RAG, and hands complete segments to ``on_ready``.

    ``note_start`` and ``ended`` run on the application's thread; ``sweep``, which must be called
    now and then once ``on_begun`` has been, on ours. ``hold(span, size)`` holds a span back, or
    says that it can't. ``on_evicted`` is called for each segment that had to go early.
    """

    def __init__(
        self,
        on_ready: Callable[[Segment], None],
        *,
        hold: Callable[[ReadableSpan, int], bool],
        limits: SegmentLimits | None = None,
        on_begun: Callable[[], object] = lambda: None,
        on_evicted: Callable[[Segment], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty."""
        self._on_ready = on_ready
        self._hold = hold
        self._on_begun = on_begun
        self._limits = limits or SegmentLimits()
        self._on_evicted = on_evicted
        self._clock = clock
        self._is_open = True
        self.clear()

    def clear(self) -> None:
        """Forget everything (in a forked child: it is the parent's)."""
        self._lock = threading.RLock()
        self._segments: OrderedDict[int, Segment] = OrderedDict()
        self._starts: deque[ReadableSpan] = deque(maxlen=_STARTED)
        self._open: dict[int, list[ReadableSpan]] = {}
        self._gone: deque[ReadableSpan] = deque(maxlen=_GONE)
        self._logs: OrderedDict[tuple[int, int], list[LogView]] = OrderedDict()
        self._bytes = 0
        self.note_start = self._starts.append
        """Note that a span has started."""

    def __len__(self) -> int:
        """Return how many traces are under way."""
        return len(self._segments)

    @property
    def size(self) -> int:
        """About how many bytes are kept."""
        return self._bytes

    def logged(self, trace_id: int, span_id: int, record: LogView) -> None:
        """Keep a log record written within a span that has not ended yet."""
        with self._lock:
            self._logs.setdefault((trace_id, span_id), []).append(record)
            while len(self._logs) > self._limits.max_segments:
                self._logs.popitem(last=False)

    def ended(self, span: ReadableSpan) -> bool:
        """Take note of ``span``, which has ended; True if it was held: it may stand for a turn."""
        return self._is_open and self.concerns(span) and self._note(span)

    def concerns(self, span: ReadableSpan) -> bool:
        """Tell whether ``span`` may belong to a turn; of most spans it must say no, quickly."""
        scope = span.instrumentation_scope
        if _is_dull(attribute_names(span)):
            if scope is not None and scope.name == llamaindex.SCOPE:
                return True
            return bool(self._segments) and _trace(span) in self._segments
        # The callback handler knows what it has written.
        return scope is None or scope.name != semconv.SCOPE

    def _note(self, span: ReadableSpan) -> bool:
        context = span.context
        if context is None:
            return False
        logs = self._logs.pop((context.trace_id, context.span_id), ()) if self._logs else ()
        view = SdkSpan(span, logs)
        kind = kind_of(view)
        with self._lock:
            segment = self._segments.get(context.trace_id)
            is_new = segment is None
            if segment is None:
                if kind == "other":
                    return False
                segment = self._begin(view)
            held = self._add(segment, view, kind) and self._hold(span, segment.size)
            if held:
                segment.held[view.span_id] = view
            evicted = self._evict()
        if is_new:
            self._on_begun()
        for one in evicted:
            self._on_evicted(one)
        return held

    def _begin(self, view: SdkSpan) -> Segment:
        now = self._clock()
        segment = Segment(trace_id=view.trace_id, first=now, last=now, began=view.start)
        self._segments[view.trace_id] = segment
        return segment

    def _add(self, segment: Segment, view: SdkSpan, kind: Kind) -> bool:
        segment.last = self._clock()
        if len(segment.spans) >= self._limits.max_spans:
            segment.lost += 1
            return False
        segment.spans[view.span_id] = view
        segment.began = min(segment.began, view.start)
        is_root = view.parent_id is None or view.parent_is_remote
        segment.root_ended = segment.root_ended or is_root
        segment.is_slow = segment.is_slow or is_late(view.attributes)
        size = size_of(view.attributes) if kind != "other" else OVERHEAD
        segment.size += size
        self._bytes += size
        return self._stands_for_turn(segment, view, kind)

    def _stands_for_turn(self, segment: Segment, view: SdkSpan, kind: Kind) -> bool:
        """Tell whether ``view`` is the deepest span above a retrieval and a call after it.

        A call that is still open, as a stream may be when its chain has ended, counts.
        """
        own = segment.below.pop(view.span_id, None) or Below()
        said = native.parts_of(view)
        if "documents" in said:
            own.add(Below(searched=view.start))
        if "output" in said:
            own.add(Below(called=view.start if own.searched is None else own.searched))
        is_turn = False
        if kind in RETRIEVALS:
            up = Below(searched=view.start)
        elif kind == "llm":
            up = Below(own.searched, view.start)
        elif kind == "tool" and own.searched is None and CONTEXT_TOOLS.search(view.name):
            up = Below(view.start, own.called)
        else:
            up = own
            is_turn = own.is_turn or (own.searched is not None and self._goes_on(view, own))
            if own.is_turn:
                segment.has_turn = True
                up = Below(own.searched)
        if view.parent_id is not None and (up.searched is not None or up.called is not None):
            segment.below.setdefault(view.parent_id, Below()).add(up)
        return is_turn

    def _goes_on(self, view: SdkSpan, own: Below) -> bool:
        """Tell whether a span of this trace that began after the retrieval is still open."""
        searched = own.searched or 0
        for span in (*self._open.get(view.trace_id, ()), *self._starts.copy()):
            is_later = (span.start_time or 0) > searched and _trace(span) == view.trace_id
            if is_later and span.end_time is None:
                return True
        return False

    def sweep(self) -> None:
        """Hand on the segments that are complete."""
        now = self._clock()
        with self._lock:
            self._look_who_is_open()
            ready = [one for one in self._segments.values() if self._is_complete(one, now)]
            for segment in ready:
                self._remove(segment)
        for segment in ready:
            self._on_ready(segment)

    def flush(self) -> None:
        """Hand on the segments of which nothing is open, without waiting any longer."""
        with self._lock:
            self._look_who_is_open()
            ready = [one for one in self._segments.values() if not self._busy(one)]
            for segment in ready:
                self._remove(segment)
        for segment in ready:
            self._on_ready(segment)

    def close(self) -> None:
        """Hand on all segments, complete or not, and begin no more."""
        self._is_open = False
        with self._lock:
            self._look_who_is_open()
            ready = list(self._segments.values())
            self._segments.clear()
            self._bytes = 0
        for segment in ready:
            self._on_ready(segment)

    def _look_who_is_open(self) -> None:
        """Sort what has started since the last look, and forget what has ended."""
        begun = [self._starts.popleft() for _ in range(len(self._starts))]
        known = [*(span for spans in self._open.values() for span in spans), *begun]
        self._open = {}
        self._gone.extend(span for span in known if span.end_time is not None)
        for span in [span for span in known if span.end_time is None][-_OPEN:]:
            self._open.setdefault(_trace(span), []).append(span)
        for span in self._gone:
            self._add_late(span)

    def _add_late(self, span: ReadableSpan) -> None:
        """Add a span that had ended before anybody knew of its trace."""
        segment = self._segments.get(_trace(span))
        view = SdkSpan(span)
        if segment is None or view.span_id in segment.spans or view.scope == semconv.SCOPE:
            return
        if len(segment.spans) < self._limits.max_spans:
            segment.spans[view.span_id] = view
            segment.size += OVERHEAD
            self._bytes += OVERHEAD

    def _busy(self, segment: Segment) -> bool:
        """Tell whether more of the segment's turns is to be expected.

        Whatever has been open since before the first step of RAG, and is none itself, may stay
        open for ever: a server's request, a session.
        """
        spans = self._open.get(segment.trace_id, ())
        if not segment.is_settled():
            return any(span.end_time is None for span in spans)
        return any(
            span.end_time is None
            and ((span.start_time or 0) > segment.began or kind_of(SdkSpan(span)) != "other")
            for span in spans
        )

    def _is_complete(self, segment: Segment, now: float) -> bool:
        limits = self._limits
        quiet = limits.root_quiet if segment.root_ended else limits.quiet
        if segment.is_slow:
            quiet = limits.slow_quiet
        idle = now - segment.last >= quiet and not self._busy(segment)
        return idle or now - segment.first >= limits.max_age

    def _evict(self) -> list[Segment]:
        """Drop the oldest segments while there are too many or too much; return them."""
        evicted: list[Segment] = []
        while len(self._segments) > 1 and (
            len(self._segments) > self._limits.max_segments or self._bytes > self._limits.max_bytes
        ):
            oldest = next(iter(self._segments.values()))
            self._remove(oldest)
            evicted.append(oldest)
        return evicted

    def _remove(self, segment: Segment) -> None:
        self._segments.pop(segment.trace_id, None)
        self._bytes -= segment.size


def _trace(span: ReadableSpan) -> int:
    context = span.context
    return context.trace_id if context is not None else 0
