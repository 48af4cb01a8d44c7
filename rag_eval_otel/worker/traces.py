"""`WireStore`: collect the spans of a trace that other processes have sent.

A worker is not told when a span starts, so it does not know which spans are open. A trace is read
when its root has come and no span has come for a short while, else after a longer time. Of a trace
that goes on, a turn is read whose outermost span has a parent in another service.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from rag_eval_otel.capture.conventions import MARKS, awaits_logs, owner_of
from rag_eval_otel.capture.span import LogView, SdkSpan
from rag_eval_otel.capture.step import RETRIEVALS, Kind
from rag_eval_otel.capture.trace import (
    Anchoring,
    Key,
    OpenSpans,
    Trace,
    TraceLimits,
    size_of_log,
)
from rag_eval_otel.live.store import HoldLimits, Store
from rag_eval_otel.types import UNTOUCHED, Ending, SpanRef
from rag_eval_otel.worker.wire import Origin, Receipt, WireGroup, WireSpan, parent_is_remote

LIMITS: Final = TraceLimits(root_quiet=0.5, max_traces=16_384)
"""The waiting times of a worker: spans of a trace may come in several requests."""

UNROOTED_QUIET: Final = 30.0
"""Seconds without a span after which a trace is read without its root: longer than most calls."""

LOGS_QUIET: Final = 6.0
"""Seconds for which a trace waits for log records with its texts.

SDKs export spans and log records apart from each other, every five seconds at most.
"""

_EARLY: Final = 4096  # spans that are kept because RAG may follow in their traces
_EARLY_BYTES: Final = 4 * 1024 * 1024  # of groups of such spans
_ID_BYTES: Final = 100  # of a trace id in a set
_TAKEN_SECONDS: Final = 120.0  # for which a span is recognised after it has left
_TAKEN_BYTES: Final = 16 * 1024 * 1024  # of spans that are recognised if they come again
_TAKEN_SIZE: Final = 512  # bytes of such a span, without its scores
_SCORE_SIZE: Final = 512  # bytes of a score, without its explanation
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NO_RESOURCE: Final = Resource.get_empty()


# Attribute names as protobuf writes them: field 1, length, text. The set of first letters comes
# before the names, because most names differ there. `is_marked` rejects what is no mark.
_MARK: Final = re.compile(
    b"\n.[%b](?:%b)"
    % (
        "".join(sorted({mark[0] for mark in MARKS})).encode(),
        b"|".join(re.escape(mark[1:].encode()) for mark in sorted(MARKS)),
    ),
    re.DOTALL,
)
_KEY: Final = attrgetter("key")
_TRACE_ID: Final = attrgetter("trace_id")
_DROPPED: Final = attrgetter("dropped_attributes_count")


def is_marked(message: Span) -> bool:
    """Return True if an attribute says that the span has to do with RAG."""
    return not MARKS.isdisjoint(map(_KEY, message.attributes))


def may_have_texts(message: Span) -> bool:
    """Return True if texts of users or models may be on the span."""
    return bool(message.events) or any(owner_of(one.key) for one in message.attributes)


def concerned(group: WireGroup, traces: Container[int]) -> list[bool]:
    """Return for each span of ``group`` whether it may have to do with RAG.

    That are spans with a mark, the other spans of their traces, and spans of ``traces``. A span
    whose attributes were dropped may have lost its mark.
    """
    messages = group.messages
    ids = list(map(_TRACE_ID, messages))
    near = {one for one in set(ids) if int.from_bytes(one, "big") in traces}
    if _MARK.search(group.content) is not None:  # most groups have no mark: one search is enough
        near.update(one.trace_id for one in messages if is_marked(one))
    dropped = list(map(_DROPPED, messages))
    if not near and not any(dropped):
        return [False] * len(messages)
    return [bool(number) or one in near for number, one in zip(dropped, ids, strict=True)]


class EarlySpan(NamedTuple):
    """What is kept of a span that has nothing to do with RAG: it may be a parent in a RAG trace."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    parent_is_remote: bool
    name: str
    scope: str
    start: int
    end: int

    @classmethod
    def of(cls, message: Span, scope: str) -> EarlySpan:
        return cls(
            message.trace_id,
            message.span_id,
            message.parent_span_id,
            parent_is_remote(message),
            message.name,
            scope,
            message.start_time_unix_nano,
            message.end_time_unix_nano,
        )

    def as_span(self) -> ReadableSpan:
        parent = self._context(self.parent_id, is_remote=self.parent_is_remote)
        return ReadableSpan(
            name=self.name,
            resource=_NO_RESOURCE,
            context=self._context(self.span_id, is_remote=False),
            parent=parent if any(self.parent_id) else None,
            start_time=self.start,
            end_time=self.end,
            instrumentation_scope=InstrumentationScope(self.scope),
        )

    def _context(self, span_id: bytes, *, is_remote: bool) -> SpanContext:
        ids = int.from_bytes(self.trace_id, "big"), int.from_bytes(span_id, "big")
        return SpanContext(*ids, is_remote=is_remote, trace_flags=_SAMPLED)


class _EarlyGroup(NamedTuple):
    scope: str
    trace_ids: frozenset[bytes]
    content: bytes  # serialized spans

    @property
    def size(self) -> int:
        return len(self.content) + _ID_BYTES * len(self.trace_ids)


class EarlySpans(OpenSpans):
    """Knows the recent spans of traces in which no RAG was found; no span is known to be open."""

    def __init__(self) -> None:
        super().__init__()
        self._early: deque[EarlySpan] = deque(maxlen=_EARLY)
        self._groups: deque[_EarlyGroup] = deque()
        self._size = 0  # bytes of the groups

    def note_early(self, span: WireSpan) -> None:
        self._early.append(EarlySpan.of(span.message, span.origin.scope))

    def note_group(self, group: WireGroup) -> None:
        """Keep the spans of ``group``, serialized as they are; read them only if RAG follows."""
        early = _EarlyGroup(
            group.origin.scope, frozenset(map(_TRACE_ID, group.messages)), group.content
        )
        self._groups.append(early)
        self._size += early.size
        while self._size > _EARLY_BYTES:
            self._size -= self._groups.popleft().size

    def recently_ended(self, trace_id: int) -> list[ReadableSpan]:
        key = trace_id.to_bytes(16, "big")
        found = [one.as_span() for one in self._early.copy() if one.trace_id == key]
        for group in self._groups.copy():
            if key in group.trace_ids:
                spans = ScopeSpans.FromString(group.content).spans
                early = (EarlySpan.of(s, group.scope) for s in spans if s.trace_id == key)
                found += [one.as_span() for one in early]
        return [*super().recently_ended(trace_id), *found]

    def note_current(self, trace_id: int) -> None:
        """Do nothing: the current span of this process is no part of the trace."""


class WireStore(Store):
    """A `Store` of spans from other processes.

    The root of a trace is kept back until the trace is whole, because what is below it may come
    later. While requests are refused (`refuse`), spans may be
    missing for that reason, so the waiting time of a trace without its root begins anew. A trace
    with a model call whose texts are expected in log records is read at the earliest ``logs_quiet``
    seconds after its last span or log record.
    """

    open_spans: EarlySpans

    def __init__(
        self,
        *,
        hold: HoldLimits | None = None,
        max_bytes: int = LIMITS.max_bytes,
        logs_quiet: float = LOGS_QUIET,
        contexts_from_prompt: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refused = float("-inf")
        self._logs_quiet = logs_quiet
        limits = replace(LIMITS, max_bytes=max_bytes)
        super().__init__(
            hold=hold, limits=limits, contexts_from_prompt=contexts_from_prompt, clock=clock
        )

    def reset(self) -> None:
        super().reset()
        self.open_spans = EarlySpans()
        self._ended = self.open_spans.ended

    def refuse(self) -> None:
        """Record that a request was refused, whose spans come later."""
        self._refused = self._clock()

    def add_log(self, trace_id: int, span_id: int, record: LogView) -> None:
        """Add a log record to its span, or store it until the span comes."""
        with self.lock:
            trace = self.traces.get(trace_id)
            view = trace.spans.get(span_id) if trace is not None else None
            if trace is None or not isinstance(view, SdkSpan):
                super().add_log(trace_id, span_id, record)
                return
            size, (came, known) = size_of_log(record), trace.arrivals[span_id]
            view.add_log(record)
            trace.arrivals[span_id] = (came, known + size)
            trace.last, trace.size = self._clock(), trace.size + size
            self._bytes += size

    def discard(self, trace_id: int) -> None:
        """Remove a trace, and ignore its later spans; its held spans leave as they are."""
        now = self._clock()
        with self.lock:
            trace = self.traces.get(trace_id) or Trace(trace_id=trace_id, first=now, last=now)
            self._give_up(trace, UNTOUCHED)

    def forget(self, keys: Iterable[Key]) -> None:
        """Remove the traces of the spans ``keys``; these and the held spans leave as they are.

        If spans of these traces come again, the traces begin anew.
        """
        keys = list(keys)
        with self.lock:
            for trace_id in dict.fromkeys(trace_id for trace_id, _ in keys):
                self._lost.pop(trace_id, None)
                trace = self.traces.get(trace_id)
                if trace is not None:
                    self._remove(trace)
                    for held in trace.held.values():
                        self.decide(held, UNTOUCHED)
            for held in filter(None, map(self.find, keys)):
                self.decide(held, UNTOUCHED)

    def _anchoring(self, trace: Trace, view: SdkSpan, *, kind: Kind) -> Anchoring:
        found = super()._anchoring(trace, view, kind=kind)
        is_root = view.parent_id is None and kind not in {"llm", "other", *RETRIEVALS}
        return "possibly" if found == "no" and is_root else found

    def _is_complete(self, trace: Trace, now: float) -> bool:
        """Return True if ``trace`` is whole.

        The end of a span with a parent in another service is not the end of the trace, because the
        caller's spans may come to this worker, too.
        """
        limits, idle = self._limits, now - trace.last
        if now - trace.first >= limits.max_age:
            return True
        if idle < limits.root_quiet or self._awaits_logs(trace, idle):
            return False
        if any(view.parent_id is None for view in trace.spans.values()):
            return not trace.is_slow or idle >= limits.slow_quiet
        return now - max(trace.last, self._refused) >= UNROOTED_QUIET

    def _parts(
        self,
        until: float,
        opened: Callable[[int], Sequence[ReadableSpan]],
        *,
        ready: Sequence[Trace],
    ) -> list[Trace]:
        now = self._clock()
        waiting = [
            one
            for one in self.traces.values()
            if one.last <= until < now and self._awaits_logs(one, now - one.last)
        ]
        return super()._parts(until, opened, ready=[*ready, *waiting])

    def _awaits_logs(self, trace: Trace, idle: float) -> bool:
        return idle < self._logs_quiet and any(map(awaits_logs, trace.spans.values()))


# --- spans that come again ------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class TakenSpan:
    """A span that the pipeline has taken.

    ``times`` is a hash of its start and its end, and ``left`` the time when it left, or None.
    ``ending`` is what was written on it then, or None if nothing was.
    """

    origin: Origin
    receipt: Receipt
    times: int
    left: float | None = None
    ending: Ending | None = None

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        evaluation = None if self.ending is None else self.ending.evaluation
        scores = () if evaluation is None else evaluation.scores
        return _TAKEN_SIZE + sum(_SCORE_SIZE + len(one.explanation or "") for one in scores)


class TakenSpans:
    """Knows the spans that the pipeline has taken, in case they come again.

    A span is forgotten two minutes after it has left. If there are more than 16 MiB, the oldest
    spans are forgotten before. ``clock`` is for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a garbage collection may export a span meanwhile
        self._taken: OrderedDict[Key, TakenSpan] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._taken)

    def add(self, span: WireSpan) -> TakenSpan:
        key = span.key
        made = TakenSpan(span.origin, span.receipt, _times(span))
        with self._lock:
            before = self._taken.pop(key, None)
            self._taken[key] = made
            self._bytes += made.size - (0 if before is None else before.size)
            self._forget()
        span.receipt.note(key)
        return made

    def _forget(self) -> None:
        """Remove the oldest spans that have left some time ago, or for which there is no room."""
        until = self._clock() - _TAKEN_SECONDS
        while self._taken:
            key, oldest = next(iter(self._taken.items()))
            is_over = oldest.left is not None and oldest.left < until
            if not is_over and self._bytes <= _TAKEN_BYTES:
                break
            del self._taken[key]
            self._bytes -= oldest.size

    def find(self, span: WireSpan) -> TakenSpan | None:
        """Return the span of which ``span`` is a copy, unless that span's request is revoked."""
        known = self._taken.get(span.key)
        is_same = known is not None and known.times == _times(span)
        return known if is_same and known is not None and not known.receipt.is_revoked else None

    def note_left(self, key: Key, ending: Ending | None) -> None:
        """Record that the span ``key`` leaves now, with ``ending``."""
        with self._lock:
            known = self._taken.get(key)
            if known is not None:
                self._bytes -= known.size
                known.left, known.ending = self._clock(), ending
                self._bytes += known.size

    def origin_of(self, key: Key) -> Origin | None:
        known = self._taken.get(key)
        return None if known is None else known.origin

    def service_of(self, span: SpanRef) -> str | None:
        origin = self.origin_of((span.trace_id, span.span_id))
        return None if origin is None else origin.service or None

    def is_wanted(self, span: SpanContext) -> bool:
        """Return False if the request of ``span`` is revoked."""
        known = self._taken.get((span.trace_id, span.span_id))
        return known is None or not known.receipt.is_revoked


def _times(span: WireSpan) -> int:
    return hash((span.message.start_time_unix_nano, span.message.end_time_unix_nano))
